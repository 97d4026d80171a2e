"""Evaluate grid points by complete trainings, for solvers that train all labels together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xcray.data.dataset import Dataset
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.telemetry.progress import Progress
from xcray.training.run import train
from xcray.training.spec import TrainSpec
from xcray.training.tuning.grid import Point
from xcray.workers.pool import StopFlag


class TrainedPointEvaluator:
    """Trains a model for each grid point and measures it on the held-out rows.

    spec, data, folder, stop, job: as in `PointEvaluator`. Every point starts from zero; one that
    was interrupted is resumed from its run directory.
    """

    def __init__(
        self, spec: TrainSpec, data: Dataset, folder: Path, stop: StopFlag, job: str = "local"
    ) -> None:
        self._spec = replace(spec, dataset=str(data.path), calibrate=False)
        self._n_labels, self._folder = data.n_labels, folder
        self._stop, self._job = stop, job

    def evaluate(
        self, point: Point, start: Point | None, tick: Callable[[int], None] = lambda _: None
    ) -> dict[str, Any]:
        """Return the result of a point, see `PointEvaluator.evaluate`; `start` has no effect."""
        folder = self._folder / point.key
        if not (folder / "result.json").exists():
            write_json(folder / "result.json", self._train(folder, point, tick))
        return {**read_json(folder / "result.json"), "params": point.params}

    def remove_duals(self, points: Sequence[Point], done: int) -> None:
        """Do nothing: these points have no dual variables."""

    def _train(self, folder: Path, point: Point, tick: Callable[[int], None]) -> dict[str, Any]:
        """Train and measure one point; its model is not kept."""

        def report(progress: Progress) -> None:
            tick(round(self._n_labels * min(1.0, progress.done / max(progress.total, 1))))

        began = time.monotonic()
        model, run_dir = folder / "model", folder / "run"
        discard_directory(model)
        spec = replace(self._spec, params={**self._spec.params, **point.params})
        result = train(
            spec, run_dir=run_dir, out=model, progress=report, stop=self._stop, job=self._job
        )
        discard_directory(model)
        discard_directory(run_dir)
        return {
            "params": point.params,
            "measures": result.measures,
            "nnz": result.report["weights"],
            "seconds": time.monotonic() - began,
            "core_seconds": result.report["core_seconds"],
            "labels": self._n_labels,
            "certified": None,
            "largest_gap": None,
            "start": None,
        }
