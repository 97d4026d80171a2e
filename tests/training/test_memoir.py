"""MEMOIR on several workers: the same bits; what a search missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xcray.data.dataset import Dataset
from xcray.solvers import describe_solver, make_solver
from xcray.training import TrainResult, TrainSpec, group_training, train
from xcray.training.report.render import draw_report
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext
from xcray.workers.local_group import ThreadGroup

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


def test_samples_that_change_weights_one_by_one_need_one_worker(
    reference: tuple[TrainSpec, TrainResult], groups: list[ThreadGroup], tiny: Dataset
) -> None:
    spec = replace(reference[0], pool="ray", workers=2)
    for params in ({"group": 1}, {"group": 10, "oracle": "lsh"}):
        solver = make_solver("memoir", params)
        strategy = make_strategy(TrainingContext(spec, tiny, solver, tiny.path, "job"))
        assert strategy.workers == 1


def test_the_report_says_what_an_approximate_search_missed(tiny: Dataset, tmp_path: Path) -> None:
    params = {"rounds": 6, "batch": 100, "group": 0, "oracle": "lsh", "bits": 128}
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
        ("memoir-paper", {"lam": 1.0, "group": 1, "oracle": "sw-graph"}),
        ("memoir-paper-frozen", {"lam": 1.0, "group": 0, "margin_at": "step"}),
        ("memoir-scripts", {"lam": 1.0, "step": "batch", "draws": "labels", "margin": 1e30}),
    ],
)
def test_the_settings_of_the_paper_and_its_scripts(name: str, expected: dict[str, Any]) -> None:
    solver = make_solver(name, {})
    table4 = {"eta0": 0.1, "eta_step": 0.02, "batch": 0, "rounds": 25, "early_stopping_rounds": 0}
    assert {**table4, **expected}.items() <= solver.as_dict().items()
    assert describe_solver(name)["family"] == "group"
