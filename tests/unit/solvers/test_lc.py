"""LC: classes are solved independently, many at once, and their mean is subtracted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.naive import multinomial as naive
from tests.support.group_programs import problem, train, work_of
from xcray.solvers.label_weights import LabelWeights
from xcray.solvers.lc import poisson
from xcray.solvers.lc import solver as lc
from xcray.solvers.lc.solver import LCSolver

LAM = 0.05


def class_value(w, k, X, Y, c, b, lam):
    """Return f_k(w) by its definition."""
    return lam / 2 * w @ w - sum(c * Y[:, k] * (X @ w)) + sum(c * np.exp(X @ w + b))


def solve(rows, W, b, lam=LAM, sparse=True, **settings):
    """Run one round of one worker with all labels."""
    hand = work_of(LCSolver(lam=lam, **settings), rows, 1, sparse).create_worker(
        "worker-0", lambda: False
    )
    return hand.solve(0, LabelWeights(0, W.shape[1], W), b, np.zeros(len(W)))


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("cells", [1, 200, 1 << 21])  # classes: one at a time, two, all
def test_each_class_is_solved_as_if_alone(sparse, cells, monkeypatch):
    monkeypatch.setattr(lc, "MAX_CELLS", cells)
    X, Y, c = rows = problem(0)
    b = np.random.default_rng(0).normal(-1.5, 0.5, len(X))
    part, report = solve(rows, np.zeros((8, 5)), b, sparse=sparse, inner=1e-9, inner_steps=50)
    for k in range(5):
        best = minimize(
            class_value,
            np.zeros(8),
            args=(k, X, Y, c, b, LAM),
            method="BFGS",
            options={"gtol": 1e-8},
        ).x
        assert part.W[:, k] == pytest.approx(best, abs=1e-5)
    G = np.stack([(c * np.exp(b) - c * Y[:, k]) @ X for k in range(5)], axis=1)
    assert report.gradient == pytest.approx(float((G**2).sum()))
    S = X @ part.W
    assert report.sums.max_score + np.log(report.sums.total) == pytest.approx(
        np.log(np.exp(S).sum(axis=1))
    )
    assert report.sums.linear == pytest.approx(float((c[:, None] * Y * S).sum()))
    assert report.sums.squared_norm == pytest.approx(float((part.W**2).sum()))
    assert report.sums.weights == pytest.approx(part.W.sum(axis=1))


def test_no_class_ends_above_where_it_began():
    X, Y, c = rows = problem(1)
    rng = np.random.default_rng(1)
    for _ in range(5):
        W, b = rng.normal(size=(8, 5)), rng.normal(size=len(X))
        after = solve(rows, W, b, inner_steps=1)[0].W
        for k in range(5):
            assert class_value(after[:, k], k, X, Y, c, b, LAM) <= class_value(
                W[:, k], k, X, Y, c, b, LAM
            )


def test_steps_that_are_too_long_are_halved_instead_of_overflowing():
    X, Y, c = problem(2)
    rows = (1024.0 * X, Y, c)
    result = train(LCSolver(lam=1e-3, tolerance=1e-6, max_rounds=2000), rows, 2)
    W = result.weights
    assert np.isfinite(W).all()
    assert result.last.entry["objective"] == pytest.approx(
        naive.objective(W, *rows, 1e-3), rel=1e-9
    )
    assert np.linalg.norm(naive.gradient(W, *rows, 1e-3)) <= 2e-6 * np.linalg.norm(
        naive.gradient(0.0 * W, *rows, 1e-3)
    )


def test_a_step_that_overflows_counts_as_one_that_does_not_fall():
    X, Y, c = problem(3)
    values = lc._RowData(work_of(LCSolver(), (X, Y, c), 1)._shards[0])
    task = poisson._PoissonTask(
        poisson.PoissonProblem(values.rows, values.targets(0, 5), c, np.full(len(X), -1.6), LAM),
        np.zeros((8, 5)),
        lambda: None,
    )
    going = np.arange(5)
    V = -1e6 * task.gradient(going)
    sizes = task.line_search(
        going, V, values.rows.scores(V), np.einsum("jk,jk->k", task.gradient(going), V)
    )
    assert (sizes > 0).all()
    assert (sizes < 1e-3).all()


def test_subtracting_the_mean_reaches_the_published_optimum_sooner():
    rows = problem(4)
    centred = train(LCSolver(lam=LAM, tolerance=1e-6), rows, 2)
    published = train(
        LCSolver(
            lam=LAM, tolerance=1e-6, centre="no", inner=1e-3, inner_steps=50, max_rounds=20_000
        ),
        rows,
        2,
    )
    assert published.reason == centred.reason == "the gradient is small"
    assert published.weights == pytest.approx(centred.weights, abs=1e-4)
    assert centred.weights.sum(axis=1) == pytest.approx(0.0, abs=1e-12)
    assert centred.last.number < published.last.number / 2


def test_more_workers_than_labels_leave_some_without_work():
    rows = problem(5, k=3)
    one, five = (train(LCSolver(lam=LAM), rows, workers).weights for workers in (1, 5))
    assert five == pytest.approx(one, abs=1e-9)


def test_b_is_shifted_by_the_subtracted_mean():
    X, Y, c = rows = problem(6)
    W, mean = np.random.default_rng(6).normal(size=(8, 5)), np.random.default_rng(7).normal(size=8)
    b = -np.log(np.exp(X @ W).sum(axis=1))
    hand = work_of(LCSolver(lam=LAM), rows, 1).create_worker("worker-0", lambda: False)
    moved, report = hand.solve(0, LabelWeights(0, 5, W), b, mean)
    centred, same = hand.solve(0, LabelWeights(0, 5, W - mean[:, None]), b + X @ mean, np.zeros(8))
    assert moved.W == pytest.approx(centred.W, abs=1e-12)
    assert report.gradient == pytest.approx(same.gradient)
    assert report.gradient == pytest.approx(
        float((naive.gradient(W - mean[:, None], X, Y, c, LAM) ** 2).sum())
    )
