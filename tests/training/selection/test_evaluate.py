"""Settings of a search have the result of a training with their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xcray.data.dataset import Dataset
from xcray.training import TrainSpec, train
from xcray.training.selection.evaluate import Evaluator
from xcray.training.selection.grid import plan_points
from xcray.training.selection.held_out import held_out_rows, hold_out


@pytest.mark.parametrize(
    ("solver", "params", "grid"),
    [
        ("ppdsparse", {}, {"positive_weight": (1.0, 4.0)}),
        ("l2svm", {}, {"C": (0.1, 10.0)}),
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


def test_a_warm_point_is_nearly_the_cold_one(tiny: Dataset, tmp_path: Path) -> None:
    rows = held_out_rows(hold_out(tiny, 0.2, 0, tmp_path / "held"))
    points = plan_points({"C": (0.1, 1.0), "tau": (1.0, 0.5)})
    cold, warm = (Evaluator("ppdsparse", {}, rows, "P@1", pool="serial") for _ in range(2))
    for point in points:
        start = None if point.start is None else points[point.start].params
        result, other = warm.evaluate(point.params, start), cold.evaluate(point.params)
        assert result["start"] == start
        assert result["certified"] == result["labels"] == tiny.n_labels
        assert result["measures"]["P@1"] == pytest.approx(other["measures"]["P@1"], abs=0.03)
