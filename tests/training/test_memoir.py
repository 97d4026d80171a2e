"""MEMOIR on several workers: the same bits, losses and resumes; what a search missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_trainings import once_at
from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.solvers import describe_solver, make_solver
from xcray.storage import checkpoints
from xcray.storage.checkpoints import CheckpointFolder
from xcray.training import TrainResult, TrainSpec, group_training, train
from xcray.training.report.render import draw_report
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext
from xcray.workers.local_group import ThreadGroup
from xcray.workers.pool import StopFlag
from xcray.workers.ray.local_cluster import local_ray

PARAMS: dict[str, Any] = {
    "rounds": 12,
    "batch": 200,
    "group": 32,
    "early_stopping_rounds": 10,
    "average_from": 4,
    "row_norm": "l2",
}


@pytest.fixture(scope="module")
def reference(
    tiny: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainSpec, TrainResult]:
    """Return the specification and the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="serial", params=PARAMS)
    return spec, train(spec, run_dir=folder / "run", out=folder / "model")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a local Ray with room for four workers."""
    with local_ray(num_cpus=4) as cluster:
        yield cluster


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[ThreadGroup]:
    """Run the workers of Ray trainings in threads of this process; return their groups."""
    made: list[ThreadGroup] = []

    def make_group(spec: TrainSpec, factory: Any, workers: int, *_: Any) -> ThreadGroup:
        made.append(ThreadGroup(factory, workers))
        return made[-1]

    monkeypatch.setattr(group_training, "make_worker_group", make_group)
    return made


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_with_all_weights_give_the_same_bits(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    tmp_path: Path,
    workers: int,
) -> None:
    spec, result = reference
    seen: list[int] = []
    other = train(
        replace(spec, pool="ray", workers=workers),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=lambda p: seen.append(p.done) if p.phase == "TRAINING" else None,
    )
    assert [len(group.workers) for group in groups] == [workers]
    assert other.sha256 == result.sha256
    assert other.report["stopped"] == result.report["stopped"]
    assert other.report["workers_lost"] == 0
    assert set(range(1, 12)) <= set(seen)  # progress by rounds


@pytest.mark.parametrize(("interval", "worker"), [(0.0, "worker-1"), (1e9, "worker-0")])
def test_after_the_loss_of_a_worker_all_go_back_to_the_checkpoint(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    interval: float,
    worker: str,
) -> None:
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: interval)
    spec, result = reference
    other = train(
        replace(spec, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=once_at(5, lambda: groups[0].simulate_loss(worker)),
    )
    assert other.report["workers_lost"] == 1
    assert other.sha256 == result.sha256


def test_a_training_resumes_on_another_number_of_workers(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
    spec, result = reference
    paths = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    for workers, number in ((2, 4), (3, 8)):
        stop, done = StopFlag(), once_at(number, lambda: stop.set())  # noqa: B023
        with pytest.raises(Stopped):
            train(replace(spec, pool="ray", workers=workers), **paths, progress=done, stop=stop)
    newest = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert 8 <= newest.note["state"]["number"] < 12
    assert train(spec, **paths).sha256 == result.sha256


def test_samples_that_change_weights_one_by_one_need_one_worker(
    reference: tuple[TrainSpec, TrainResult], groups: list[ThreadGroup], tiny: Dataset
) -> None:
    spec = replace(reference[0], pool="ray", workers=2)
    for params in ({"group": 1}, {"group": 10, "oracle": "lsh"}):
        solver = make_solver("memoir", params)
        strategy = make_strategy(TrainingContext(spec, tiny, solver, tiny.path, "job"))
        assert strategy.workers == 1


def test_the_report_says_what_an_approximate_search_missed(tiny: Dataset, tmp_path: Path) -> None:
    params = {"rounds": 6, "batch": 100, "oracle": "lsh", "bits": 128}
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="serial", params=params)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    rounds = result.report["oracle"]
    assert [each["round"] for each in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds[0]["agreement"] == 1.0  # W is 0
    assert any(each["mean"] > 0.0 for each in rounds)
    assert all(0.0 <= each["mean"] <= each["p95"] <= each["largest"] for each in rounds[1:])
    report = draw_report(result.model_path, tmp_path / "report")
    assert report["pictures"]["oracle"] == "oracle.svg"
    assert "mean" in (tmp_path / "report" / "oracle.svg").read_text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memoir-paper", {"lam": 1.0, "step": "sample", "early_stopping_rounds": 5}),
        ("memoir-scripts", {"lam": 1.0, "step": "batch", "draws": "labels", "margin": 1e30}),
    ],
)
def test_the_settings_of_the_paper_and_its_scripts(name: str, expected: dict[str, Any]) -> None:
    solver = make_solver(name, {})
    table4 = {"eta0": 0.1, "eta_step": 0.02, "batch": 0, "rounds": 25}
    assert {**table4, **expected}.items() <= solver.as_dict().items()
    assert describe_solver(name)["family"] == "group"
