"""Resource monitor of a running training: memory, free disk, and comparison with the estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import Float64
from xcray.system.memory import anonymous_bytes, release_mapped_files
from xcray.training.block_store import BlockStore
from xcray.training.capacity.disk import check_disk
from xcray.training.capacity.preflight import (
    MODEL_BYTES_PER_LABEL,
    PART_BYTES_PER_LABEL,
    Estimate,
    compare_estimate,
)

POLL_SECONDS: Final = 2.0  # interval of disk and worker checks
# Share of finished labels whose weights predict the rest better than the estimate.
MIN_DONE_SHARE: Final = 0.05

# Resident pages of mapped files after solving, from which they are released: they add to the
# pages of the weights in a pass over these.
MAPPED_BYTES: Final = 1 << 28


class ResourceMonitor:
    """Monitors one training in this process.

    estimate: made before the start. weights: (K,), in proportion to the expected weights per label.
    parts: of the run, in `run_dir`. out: future path of the model.
    """

    def __init__(
        self,
        estimate: Estimate,
        weight_shares: Float64,
        parts: BlockStore,
        run_dir: Path,
        out: Path,
    ) -> None:
        self.estimate = estimate
        self._weight_shares = weight_shares
        self._parts = parts
        self._run_dir = run_dir
        self._out = out
        self._start_bytes = self._peak_bytes = anonymous_bytes()
        self._start_part_bytes = part_bytes(run_dir)
        self._last_poll = time.monotonic()
        self._workers: dict[str, int] = {}
        self._read_workers: Callable[[], Mapping[str, int]] = dict

    def set_worker_source(self, read_workers: Callable[[], Mapping[str, int]]) -> None:
        """Set the function that reads the memory of workers in separate processes."""
        self._read_workers = read_workers

    def poll(self) -> None:
        """Record the memory of this process.

        Every few seconds, also poll the workers and check the disk.
        Raises Refused if the disk is too small.
        """
        now = anonymous_bytes()
        if now is not None:
            self._peak_bytes = max(now, self._peak_bytes or 0)
        if time.monotonic() - self._last_poll > POLL_SECONDS:
            self._last_poll = time.monotonic()
            self.poll_workers()
            self._check_disk()

    def poll_publishing(self) -> None:
        """Poll, and bound the resident pages of mapped weights, which are used in passes."""
        self.poll()
        release_mapped_files(".arrow", MAPPED_BYTES)

    def poll_workers(self) -> None:
        """Record the memory of workers in separate processes; keep the peak per worker."""
        for name, n_bytes in self._read_workers().items():
            self._workers[name] = max(n_bytes, self._workers.get(name, 0))

    def summarize(self, measured: Mapping[str, float]) -> dict[str, Any]:
        """Return the estimate compared with the measured values, and the memory of processes; JSON.

        measured: values by their names in `Estimate`; those of memory and parts are added here.
        """
        estimate, actual = self.estimate, dict(measured)
        actual["parts"] = part_bytes(self._run_dir) - self._start_part_bytes
        growth = (
            None
            if self._peak_bytes is None or self._start_bytes is None
            else self._peak_bytes - self._start_bytes
        )
        if growth is not None:
            actual["memory" if estimate.place == "thread" else "driver"] = growth
        if self._workers:
            actual["worker_process"] = max(self._workers.values())
        return {
            "estimate": estimate.as_dict(),
            "compared": compare_estimate(estimate, actual),
            "driver": {"anonymous_before": self._start_bytes, "anonymous_peak": self._peak_bytes},
            "workers": {
                name: {"anonymous": n_bytes} for name, n_bytes in sorted(self._workers.items())
            },
        }

    def _check_disk(self) -> None:
        """Raise Refused if the remaining output does not fit on the disk.

        Its size is extrapolated from the weights of the finished labels.
        """
        missing, K = self._parts.missing, len(self._weight_shares)
        if K - len(missing) < MIN_DONE_SHARE * K:
            return
        done = np.ones(K, bool)
        done[missing] = False
        weights = int(self._parts.lengths.sum())
        missing_weights = (
            weights
            * float(self._weight_shares[missing].sum())
            / max(float(self._weight_shares[done].sum()), 1e-9)
        )
        model = int(16 * (weights + missing_weights)) + MODEL_BYTES_PER_LABEL * K
        basis = f"(by the {weights:,} weights of {K - len(missing):,} finished labels)"
        check_disk(
            int(8 * missing_weights) + PART_BYTES_PER_LABEL * len(missing),
            model,
            self._run_dir,
            self._out,
            basis,
        )


def part_bytes(run_dir: Path) -> int:
    """Return the bytes of the part files in a run directory."""
    return sum(path.stat().st_size for path in run_dir.glob("part-*.arrow"))


def memory_bytes(preflight: Mapping[str, Any]) -> int | None:
    """Return the anonymous memory of a training, from `CapacityMonitor.summarize`."""
    driver = preflight.get("driver", {})
    before, peak = (driver.get(f"anonymous_{name}") for name in ("before", "peak"))
    if before is None or peak is None:
        return None
    workers = preflight.get("workers", {}).values()
    return int(peak - before + sum(each["anonymous"] for each in workers))
