"""Indexed block coordinate descent of all classes: one index, one and two workers.

python -m benchmarks.indexed_bcd.classes --data DIR [--copies 8] [--pool threads] [--divisor 0]

MNIST with copies that are shifted by up to two pixels, ten classes against the rest, C = 0.01. The
metric forest is built once. Reported: seconds and processor seconds of the index; seconds and
processor seconds (of this process) of the trainings with one and with two workers; the share of the
index in each; the SHA-256 of the models, which must be equal; test accuracy. With --divisor, the
workers have this fraction of the bytes of the rows for pages and active rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.common import arguments, in_folder
from benchmarks.indexed_bcd.memory import shifted_copies, volume
from xcray.data.dataset import Dataset
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.training import TrainSpec, train
from xcray.training.independent import IndependentLabels

PARAMS = {"C": 0.01, "selection": "forest"}


def timed(action: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a call, its seconds and processor seconds."""
    wall, cpu = time.monotonic(), time.process_time()
    result = action()
    seconds = {"seconds": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    return result, {name: round(value, 2) for name, value in seconds.items()}


def train_all(data: Dataset, folder: Path, pool: str, workers: int) -> dict[str, Any]:
    """Train all classes; return the figures."""
    spec = TrainSpec(str(data.path), "indexed-bcd", params=PARAMS, pool=pool, workers=workers)
    name = f"{pool}-{workers}"
    result, figures = timed(
        lambda: train(spec, run_dir=folder / f"run-{name}", out=folder / f"model-{name}", job=name)
    )
    report = result.report
    return {
        **figures,
        "sha256": result.sha256,
        "rows_read": round(report["rows_read"] / data.train.n_rows, 2),
        "volumes": round(report["bytes_read"] / volume(data), 2),
        "support_vectors": report["support_vectors"],
    }


def main() -> None:
    """Measure; print a line per step, and one JSON object at the end."""
    options = arguments(
        __doc__ or "",
        copies={"type": int, "default": 8},
        pool={"default": "threads"},
        divisor={"type": int, "default": 0},
    )

    def run(folder: Path) -> dict[str, Any]:
        data = shifted_copies(options.data, folder / "mnist", options.copies)
        IndexedBCDSolver(**PARAMS).warm_up()
        _, index = timed(lambda: build_forest_directory(data))
        print("index", index, flush=True)
        limit = volume(data) // options.divisor if options.divisor else None
        figures: dict[str, Any] = {"index": index}
        with patch.object(IndependentLabels, "rows_limit", lambda strategy: limit):
            for workers in (1, 2):
                figures[f"{workers}"] = train_all(data, folder, options.pool, workers)
                print(workers, figures[f"{workers}"], flush=True)
        figures["speed_up"] = round(figures["1"]["seconds"] / figures["2"]["seconds"], 2)
        figures["index_share"] = round(index["cpu"] / (index["cpu"] + figures["1"]["cpu"]), 3)
        return figures

    in_folder(run, options.json)


if __name__ == "__main__":
    main()
