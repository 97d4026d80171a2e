"""While a training runs: what it takes, whether it still fits on the disk, and in the end how the estimate compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import Float64
from xcray.system.memory import Footprint, anonymous
from xcray.training.block_store import Parts
from xcray.training.capacity.preflight import MODEL_LABEL, PART_LABEL, Estimate, check_disk, compare

SECONDS: Final = 2.0  # between two looks at disk and workers
ENOUGH: Final = 0.05  # of the labels: from then on their weights tell more than the estimate


class Watch:
    """Follows one training in this process.

    found: what was foreseen; weights: (K,) what each label's weights are thought to be in proportion to; parts: the run's,
    in `run_dir`; out: where the model will be.
    """

    def __init__(
        self, found: Estimate, weights: Float64, parts: Parts, run_dir: Path, out: Path
    ) -> None:
        self.estimate = found
        self._weights = weights
        self._parts = parts
        self._run_dir = run_dir
        self._out = out
        self._before = self._peak = anonymous()
        self._bytes_before = part_bytes(run_dir)
        self._looked = time.monotonic()
        self._workers: dict[str, Footprint] = {}
        self._ask: Callable[[], Mapping[str, Footprint]] = dict

    def follow(self, ask: Callable[[], Mapping[str, Footprint]]) -> None:
        """From now on, ask workers in processes of their own by `ask` what they hold."""
        self._ask = ask

    def look(self) -> None:
        """Note what this process holds; now and then, see whether the disk is large enough. Raises Refused when it is not."""
        now = anonymous()
        if now is not None:
            self._peak = max(now, self._peak or 0)
        if time.monotonic() - self._looked > SECONDS:
            self._looked = time.monotonic()
            self.look_around()
            self._check_disk()

    def look_around(self) -> None:
        """Note what workers in processes of their own hold; the largest of what each one held is kept."""
        for name, held in self._ask().items():
            if name not in self._workers or held.anonymous > self._workers[name].anonymous:
                self._workers[name] = held

    def report(self, happened: Mapping[str, float]) -> dict[str, Any]:
        """The estimate beside what happened, and what processes held; JSON.

        happened: figures by their names in `Estimate`; those of memory and parts are added here.
        """
        found, actual = self.estimate, dict(happened)
        actual["parts"] = part_bytes(self._run_dir) - self._bytes_before
        taken = None if self._peak is None or self._before is None else self._peak - self._before
        if taken is not None:
            actual["memory" if found.place == "here" else "driver"] = taken
        if self._workers:
            actual["worker_process"] = max(seen.anonymous for seen in self._workers.values())
        return {
            "estimate": found.as_dict(),
            "compared": compare(found, actual),
            "driver": {"anonymous_before": self._before, "anonymous_peak": self._peak},
            "workers": {name: seen._asdict() for name, seen in sorted(self._workers.items())},
        }

    def _check_disk(self) -> None:
        """Raise Refused when what is still to be written won't fit, by the weights of the labels that are done."""
        missing, K = self._parts.missing, len(self._weights)
        if K - len(missing) < ENOUGH * K:
            return
        done = np.ones(K, bool)
        done[missing] = False
        weights = int(self._parts.lengths.sum())
        more = (
            weights
            * float(self._weights[missing].sum())
            / max(float(self._weights[done].sum()), 1e-9)
        )
        model = int(16 * (weights + more)) + MODEL_LABEL * K
        why = f"(by the {weights:,} weights of {K - len(missing):,} finished labels)"
        check_disk(int(8 * more) + PART_LABEL * len(missing), model, self._run_dir, self._out, why)


def part_bytes(run_dir: Path) -> int:
    """Bytes of the part files in a run directory."""
    return sum(path.stat().st_size for path in run_dir.glob("part-*.arrow"))
