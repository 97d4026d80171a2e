"""MEMOIR: how many workers it takes, what a search missed, the settings of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xcray.data.dataset import Dataset
from xcray.solvers import describe_solver, make_solver
from xcray.training import TrainSpec, train
from xcray.training.report.render import draw_report
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext

LSH = {"group": 10, "oracle": "lsh"}


def test_samples_that_change_weights_one_by_one_need_one_worker(tiny: Dataset) -> None:
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="ray", workers=2)
    for params, workers in (({"group": 32}, 2), ({"group": 1}, 1), (LSH, 1)):
        solver = make_solver("memoir", params)
        strategy = make_strategy(TrainingContext(spec, tiny, solver, tiny.path, "job"))
        assert strategy.workers == workers


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
