"""Trainings that are killed in the middle, in a process of their own."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from pathlib import Path

from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, train
from xcray.training.independent import IndependentLabels


def kill_in_the_middle(spec: TrainSpec, folder: Path, rows_limit: int | None = None) -> None:
    """Train into `folder`, in a process that is killed when some labels are finished.

    rows_limit: bytes of a worker's rows, instead of what the memory limit leaves.
    """
    process = get_context("spawn").Process(target=_train, args=(spec, folder, rows_limit))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (folder / "model").exists()
    assert list((folder / "run").glob("part-*"))


def _train(spec: TrainSpec, folder: Path, rows_limit: int | None) -> None:
    """Train in this process until some labels are finished."""

    def die(progress: Progress) -> None:
        if progress.phase == "TRAINING" and 0 < progress.done < progress.total:
            os.kill(os.getpid(), signal.SIGKILL)

    if rows_limit is not None:
        IndependentLabels.rows_limit = lambda strategy: rows_limit  # type: ignore[method-assign]
    train(spec, run_dir=folder / "run", out=folder / "model", progress=die)
