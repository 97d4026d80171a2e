"""Every solver on Ray: the model of one thread, for any number of workers, through deaths."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray as ray_module

from tests.support.small_trainings import PARAMS, References, compare, once_at, spec_of
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.solvers.memoir import state
from xcray.training import TrainSpec, train

pytestmark = pytest.mark.usefixtures("ray")
QUICK = [("ppdsparse", 2), ("dsmlr", 2)]
DRILLS = [(name, 2) for name in PARAMS if name not in ("ppdsparse", "dsmlr", "memoir-paper")]
DRILLS += [(name, 4) for name in ("ppdsparse", "indexed-bcd", "memoir", "stagewise")]


@pytest.fixture(scope="module")
def references(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> References:
    """Return the results on one thread."""
    return References(tiny, tmp_path_factory.mktemp("references"))


@pytest.mark.parametrize(
    ("solver", "workers"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.drill) for case in DRILLS)],
)
def test_the_model_is_that_of_one_thread(
    tiny: Dataset, references: References, tmp_path: Path, solver: str, workers: int
) -> None:
    spec = spec_of(tiny, solver, pool="ray", workers=workers)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job=solver)
    compare(solver, result, references[solver])
    assert 1 <= len(result.report["busy_share"]) <= workers
    if solver == "dsmlr":
        assert result.report["workers"] == 2
        assert Predictor(Model.open(result.model_path)).probability_source == "softmax"


@pytest.mark.drill
@pytest.mark.parametrize("solver", ["memoir", "stagewise"])
def test_kill_minus_nine_of_a_worker_changes_no_bit(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    killed: list[int] = []

    def kill() -> None:
        actor = ray_module.get_actor(f"xcray:killed-{solver}:worker-1")
        killed.append(ray_module.get(actor.pid.remote()))
        os.kill(killed[0], signal.SIGKILL)

    result = train(
        spec_of(tiny, solver, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        job=f"killed-{solver}",
        progress=once_at(1, kill),
    )
    assert len(killed) == result.report["workers_lost"] == 1
    assert result.sha256 == references[solver].sha256


def _train_and_die(spec: TrainSpec, folder: Path) -> None:
    """Train in this process, which is killed after round 5; every round is saved."""
    state.CHECKPOINT_SECONDS = 0.0
    die: Any = once_at(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(spec, run_dir=folder / "run", out=folder / "model", job="dies", progress=die)


@pytest.mark.drill
def test_kill_minus_nine_of_the_driver_changes_no_bit(
    tiny: Dataset, references: References, tmp_path: Path
) -> None:
    spec = replace(spec_of(tiny, "memoir"), pool="ray", workers=2)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_train_and_die, args=(spec, tmp_path))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    again = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job="again")
    assert again.sha256 == references["memoir"].sha256
