"""The benchmark of multinomial logistic regression: its methods and summaries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.multinomial import __main__ as mlr
from benchmarks.multinomial import data as mlr_data
from benchmarks.multinomial import run as mlr_run
from benchmarks.multinomial.run import Point
from tests.naive import multinomial as naive


@pytest.fixture(scope="module")
def problem():
    """Return a problem that is small enough for textbook formulas."""
    whole = mlr_data.generated("generated-sparse", 1e-2)
    X, Y = (
        take(what, np.arange(300))
        for take, what in ((mlr_data.take_rows, whole.X), (mlr_data.take_pattern_rows, whole.Y))
    )
    return whole._replace(X=X, Y=Y)


@pytest.fixture(scope="module")
def best(problem):
    X, Y = (
        problem.X.to_scipy().toarray().astype(float),
        problem.Y.to_scipy().toarray().astype(float),
    )
    Y /= Y.sum(axis=1, keepdims=True)
    points = mlr_run.run("L-BFGS", problem, 2, math.inf, -math.inf, looks=False)
    c = np.full(len(X), 1.0 / len(X))
    W = np.zeros((X.shape[1], Y.shape[1]))
    assert points[0].objective < naive.objective(W, X, Y, c, problem.lam)
    assert len(points) > 5
    return points[-1].objective


@pytest.mark.parametrize("name", list(mlr_run.SOLVERS))
def test_every_method_reaches_the_best_objective_within_5_percent(name, problem, best):
    points = mlr_run.run(name, problem, 2, 120.0, 1.05 * best)
    assert best <= points[-1].objective * (1 + 1e-5)
    assert points[-1].objective <= 1.05 * best
    assert all(point.objective > 1.05 * best for point in points[:-1])
    assert (np.diff([point.seconds for point in points]) > 0).all()
    assert points[-1].micro is not None
    assert 0.2 < points[-1].micro < 1.0


def test_times_come_from_the_points():
    points = [
        Point(1.0, 2.0, None, None),
        Point(2.0, 1.04, 0.5, 0.4),
        Point(3.0, 1.005, None, None),
        Point(4.0, 1.0, 0.6, 0.5),
    ]
    row = mlr.row_of(
        "L-BFGS", 2, [points, [point._replace(seconds=3 * point.seconds) for point in points]], 1.0
    )
    assert row["seconds"] == {"0.05": 4.0, "0.01": 6.0}
    assert row["above"] == 0.0
    assert (row["micro-F1"], row["macro-F1"]) == (0.6, 0.5)
    assert mlr.row_of("L-BFGS", 2, [points[:2]], 1.0)["seconds"] == {"0.05": 2.0, "0.01": None}
    assert "1 %:      - s" in mlr.line(mlr.row_of("L-BFGS", 2, [points[:2]], 1.0))
