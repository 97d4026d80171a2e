"""The benchmark of multinomial logistic regression: its problems, clock, summaries and methods."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.multinomial import __main__ as mlr
from benchmarks.multinomial import data as mlr_data
from benchmarks.multinomial import run as mlr_run
from benchmarks.multinomial.run import Clock, Point
from tests.naive import multinomial as naive
from tests.support.report_data import png_size
from xcray.arrays import csr_from, pattern_from


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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", list(mlr_run.SOLVERS))
def test_every_method_reaches_the_best_objective_within_5_percent(name, workers, problem, best):
    points = mlr_run.run(name, problem, workers, 120.0, 1.05 * best)
    assert best <= points[-1].objective * (1 + 1e-5)
    assert points[-1].objective <= 1.05 * best
    assert all(point.objective > 1.05 * best for point in points[:-1])
    assert (np.diff([point.seconds for point in points]) > 0).all()
    assert points[-1].micro is not None
    assert 0.2 < points[-1].micro < 1.0


def test_clocks_evaluate_at_intervals_and_at_the_end(problem):
    W = np.zeros((problem.X.n_cols, problem.Y.n_cols))
    clock = Clock(problem, math.inf, 1.0, looks=True)
    clock.go()
    reports = [clock.record(objective, lambda: W) for objective in (3.0, 2.0, 1.0)]
    assert reports == [False, False, True]
    assert clock.points[0].micro is not None
    assert clock.points[2].micro == pytest.approx(mlr_run.held_out(problem, W)[0])
    blind = Clock(problem, 0.0, 0.0, looks=False)
    blind.go()
    assert blind.record(3.0, lambda: W)
    assert blind.points[0].micro is None


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


def test_thinned_points_keep_evaluated_points():
    points = [Point(float(i), 1.0, 0.5 if i % 97 == 0 else None, None) for i in range(1000)]
    selection = mlr.thinned(points, 100)
    assert len(selection) <= 111
    assert {point.seconds for point in points if point.micro} <= {
        point.seconds for point in selection
    }


def test_the_picture_has_one_row_of_panels_per_set(tmp_path):
    points = [[0.1, 2.0, 0.3, 0.2], [0.2, 1.5, None, None], [0.3, 1.1, 0.5, 0.4]]
    runs = [{"method": name, "cores": 2, "points": points} for name in mlr.LOOKS]
    sets = [{"set": name, "labels": 20, "best": 1.0, "runs": runs} for name in ("one", "two")]
    sizes = []
    for some in (sets[:1], sets):
        mlr.picture(some, tmp_path / "picture.png")
        sizes.append(png_size(tmp_path / "picture.png"))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > 1.5 * sizes[0][1]


def test_problems_can_be_restricted_to_labels_rows_and_features():
    X = csr_from(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    Y = pattern_from(np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]]))
    assert mlr_data.of_length_1(X).to_scipy().toarray() == pytest.approx(
        np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    )
    assert mlr_data.of_labels(Y, np.array([0, 2])).to_scipy().toarray().tolist() == [
        [1, 1],
        [0, 0],
        [0, 0],
        [0, 1],
    ]
    assert mlr_data.labelled(Y, 0).tolist() == [0, 1, 3]
    assert len(mlr_data.labelled(Y, 2)) == 2
    selection, state = mlr_data.of_features(mlr_data.take_rows(X, np.array([0, 3])), X)
    assert selection.to_scipy().toarray().tolist() == [[3.0, 4.0], [1.0, 0.0]]
    assert state.shape == (4, 2)
