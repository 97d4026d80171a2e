"""Every solver on Ray: the model of one thread, for any number of workers, through deaths."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import ray as ray_module

from tests.support.small_trainings import DISTINCT, References, compare, kill, once_at, spec_of
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training import train
from xcray.training.block_store import BlockStore

pytestmark = pytest.mark.usefixtures("ray")
QUICK = [("ppdsparse", 2), ("dsmlr", 2)]
DRILLS = [(name, 2) for name in DISTINCT if (name, 2) not in QUICK]
DRILLS += [(name, 4) for name in ("indexed-bcd", "memoir")]


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


def test_workers_that_see_the_run_directory_write_all_parts(
    tiny: Dataset, references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xcray.training.part_writer.SHARED_BYTES", 0)
    monkeypatch.setattr(BlockStore, "commit", lambda *_: pytest.fail("the driver writes"))
    spec = spec_of(tiny, "ppdsparse", pool="ray", workers=2)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job="writes")
    assert result.sha256 == references["ppdsparse"].sha256


@pytest.mark.drill
@pytest.mark.parametrize("solver", ["memoir", "stagewise"])
def test_kill_minus_nine_of_a_worker_changes_no_bit(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    killed: list[int] = []

    def kill_worker() -> None:
        actor = ray_module.get_actor(f"xcray:killed-{solver}:worker-1")
        killed.append(ray_module.get(actor.pid.remote()))
        os.kill(killed[0], signal.SIGKILL)

    result = train(
        spec_of(tiny, solver, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        job=f"killed-{solver}",
        progress=once_at(1, kill_worker),
    )
    assert len(killed) == result.report["workers_lost"] == 1
    assert result.sha256 == references[solver].sha256


@pytest.mark.drill
def test_kill_minus_nine_of_the_driver_changes_no_bit(
    tiny: Dataset, references: References, tmp_path: Path
) -> None:
    spec = replace(spec_of(tiny, "memoir"), pool="ray", workers=2)
    kill(spec, tmp_path / "run", 5)
    again = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job="again")
    assert again.sha256 == references["memoir"].sha256
