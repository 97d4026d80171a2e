"""A small training of every solver on the data set `tiny`, and its reference on one thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.support.toy_solvers import TOYS
from xcray.data.dataset import Dataset
from xcray.solvers import BUILT_IN
from xcray.storage import checkpoints
from xcray.training import TrainResult, TrainSpec, train
from xcray.workers import timeline

_MEMOIR = {"rounds": 8, "early_stopping_rounds": 0}
_EPOCHS = {"lam": 1e-3, "tolerance": 1e-3}
PARAMS: dict[str, dict[str, Any]] = {
    **{name: {} for name in (*BUILT_IN, *TOYS)},
    "memoir": {**_MEMOIR, "batch": 200, "group": 32, "average_from": 4, "row_norm": "l2"},
    "memoir-paper": {"rounds": 2},
    "memoir-paper-frozen": {"rounds": 2},
    "memoir-scripts": {"rounds": 2},
    "dsmlr": {**_EPOCHS, "shards": 4, "blocks": 3},
    "lbfgs": _EPOCHS,
    "lc": _EPOCHS,
    "generalized-least-squares": {"lam": 1e-3},
    "calibrated-least-squares": {"rounds": 3},
    "stagewise": {"stages": 3, "block_size": 60},
    "block-minimisation": {"C": 0.3, "eps": 0.01, "blocks": 4},
    "selective-block-minimisation": {"C": 0.3, "eps": 0.01, "blocks": 4},
    "indexed-bcd": {"selection": "forest", "first_rows": 20, "query_rows": 10},
}
# one solver for each way to share a training among workers and to store what is finished
DISTINCT = ("ppdsparse", "indexed-bcd", "pdsparse", "memoir", "dsmlr", "lbfgs", "lc")
DISTINCT += ("generalized-least-squares", "calibrated-least-squares", "stagewise", *TOYS)
# Their sums depend on the number of workers, so the objective is compared and not the bits.
ROUNDED = ("lbfgs", "lc", "toy-gradient")


def spec_of(data: Dataset, solver: str, **changes: Any) -> TrainSpec:
    """Return the specification of a small training of `solver` on one thread."""
    params = {**PARAMS[solver], **changes.pop("params", {})}
    fields = {"dataset": str(data.path), "solver": solver, "params": params, "pool": "serial"}
    return TrainSpec(**fields | changes)


class References(dict[str, TrainResult]):
    """Results of the small trainings on one thread, each trained when it is first used."""

    def __init__(self, data: Dataset, folder: Path) -> None:
        super().__init__()
        self._data = data
        self._folder = folder

    def __missing__(self, solver: str) -> TrainResult:
        run = self._folder / f"{solver}.run"
        self[solver] = train(
            spec_of(self._data, solver), run_dir=run, out=self._folder / solver, job=solver
        )
        return self[solver]


def compare(
    solver: str, result: TrainResult, reference: TrainResult, rounded: bool = False
) -> None:
    """Assert that a training gave the model of the reference; rounded: or one as good."""
    if rounded or solver in ROUNDED:
        objectives = [each.report["objective"] for each in (result, reference)]
        assert abs(objectives[0] - objectives[1]) <= 1e-4 * objectives[1]
    else:
        assert result.sha256 == reference.sha256


def once_at(number: int, act: Callable[[], None]) -> Callable[[Any], None]:
    """Return a receiver of progress that acts once, when `number` labels or epochs are done."""
    acted: list[int] = []

    def receive(progress: Any) -> None:
        if progress.phase == "TRAINING" and progress.done >= number and not acted:
            acted.append(progress.done)
            act()

    return receive


def kill(spec: TrainSpec, run_dir: Path, done: int, seconds: float = 0.0) -> None:
    """Train in a process that is killed when it reports `done`; seconds: between checkpoints."""
    process = get_context("spawn").Process(
        target=_train_and_die, args=(spec, run_dir, done, seconds)
    )
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    assert not (run_dir / "model").exists()


def _train_and_die(spec: TrainSpec, run_dir: Path, done: int, seconds: float) -> None:
    """Train in this process, which is killed at a report."""
    timeline.FLUSH_SECONDS = 0.0
    checkpoints.seconds_between = lambda _: seconds
    die = once_at(done, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(spec, run_dir=run_dir, out=run_dir / "model", progress=die)
