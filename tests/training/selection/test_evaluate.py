"""Settings of a search have the result of a training with their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.data.dataset import Dataset
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.training import TrainSpec, train
from xcray.training.selection.evaluate import Evaluator
from xcray.training.selection.grid import plan_points
from xcray.training.selection.held_out import held_out_rows, hold_out


@pytest.mark.parametrize(
    ("solver", "params", "grid"),
    [
        ("ppdsparse", {}, {"positive_weight": (1.0, 4.0)}),
        ("indexed-bcd", {"selection": "pages"}, {"C": (0.1, 10.0), "s": (0.5, 2.0)}),
        ("indexed-bcd", {"selection": "forest"}, {"C": (0.1, 1.0), "leaf_rows": (32, 64)}),
    ],
)
@pytest.mark.parametrize("pool", [pytest.param("serial", marks=pytest.mark.drill), "threads"])
def test_cold_points_are_those_of_a_training(
    tiny: Dataset,
    tmp_path: Path,
    solver: str,
    params: dict[str, Any],
    grid: dict[str, tuple[float, ...]],
    pool: str,
) -> None:
    holdout = hold_out(tiny, 0.2, 0, tmp_path / "held")
    rows = held_out_rows(holdout)
    evaluator = Evaluator(solver, params, rows, "P@1", ks=(1, 3, 5), pool=pool, workers=2)
    for point in plan_points(grid):
        alone = train(
            TrainSpec(str(holdout.path), solver, params={**params, **point.params}, pool="serial"),
            run_dir=tmp_path / point.key / "run",
            out=tmp_path / point.key / "model",
        )
        result = evaluator.evaluate(point.params)
        assert (result["measures"], result["weights"], result["largest_gap"]) == (
            alone.measures,
            alone.report["weights"],
            alone.report["largest_gap"],
        )


def test_all_points_share_one_forest(tiny: Dataset) -> None:
    train_part = tiny.train
    data = (train_part.X, train_part.XT, train_part.YT, train_part.weights)
    before = IndexedBCDSolver(C=0.1, selection="forest").load(*data)
    after = IndexedBCDSolver(C=10.0, selection="forest").reload(before, *data)
    assert after.positions is before.positions
    np.testing.assert_allclose(after.store.costs, 100.0 * before.store.costs)
    other = IndexedBCDSolver(selection="forest", leaf_rows=64).reload(before, *data)
    assert other.positions is not before.positions


def test_a_truncated_loss_is_solved_from_large_s_on() -> None:
    points = plan_points({"s": [1, 1e30, 0.5], "C": [1.0, 0.1]})
    assert [(point.params["s"], point.params["C"]) for point in points] == [
        (1e30, 0.1),
        (1e30, 1.0),
        (1.0, 0.1),
        (0.5, 0.1),
        (1.0, 1.0),
        (0.5, 1.0),
    ]
    assert [point.start for point in points] == [None, 0, 0, 2, 2, 4]


def test_a_warm_point_is_nearly_the_cold_one(tiny: Dataset, tmp_path: Path) -> None:
    rows = held_out_rows(hold_out(tiny, 0.2, 0, tmp_path / "held"))
    points = plan_points({"C": (0.1, 1.0), "s": (1e30, 1.0)})
    cold, warm = (Evaluator("indexed-bcd", {}, rows, "P@1", pool="serial") for _ in range(2))
    for point in points:
        start = None if point.start is None else points[point.start].params
        result, other = warm.evaluate(point.params, start), cold.evaluate(point.params)
        assert result["start"] == start
        assert result["certified"] == result["labels"] == tiny.n_labels
        assert result["measures"]["P@1"] == pytest.approx(other["measures"]["P@1"], abs=0.03)
