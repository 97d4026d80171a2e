"""Trainings that are killed in the middle, in a process of their own."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from pathlib import Path

from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, train


def kill_in_the_middle(spec: TrainSpec, folder: Path) -> None:
    """Train into `folder`, in a process that is killed when some labels are finished."""
    process = get_context("spawn").Process(target=_train, args=(spec, folder))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (folder / "model").exists()
    assert list((folder / "run").glob("part-*"))


def _train(spec: TrainSpec, folder: Path) -> None:
    """Train in this process until some labels are finished."""

    def die(progress: Progress) -> None:
        if progress.phase == "TRAINING" and 0 < progress.done < progress.total:
            os.kill(os.getpid(), signal.SIGKILL)

    train(spec, run_dir=folder / "run", out=folder / "model", progress=die)
