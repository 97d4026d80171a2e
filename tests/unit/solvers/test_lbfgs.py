"""L-BFGS: the sums of its workers, and the control of the driver's optimiser."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.naive import multinomial as naive
from tests.support.group_programs import problem, train, work_of
from xcray.errors import Unavailable
from xcray.solvers import label_weights, row_losses
from xcray.solvers.lbfgs.solver import LBFGSSolver
from xcray.solvers.solved_labels import concatenate

LAM = 0.01


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("cells", [1, 7, 1 << 19])  # rows: one at a time, a few, all
def test_gradient_is_that_of_finite_differences(sparse, cells, monkeypatch):
    monkeypatch.setattr(row_losses, "MAX_SCORES", cells)
    X, Y, c = problem(0, n=40, d=6, k=4)
    work = work_of(LBFGSSolver(lam=LAM), (X, Y, c), 3, sparse)
    W = np.random.default_rng(1).normal(size=(6, 4))
    answers = [
        work.create_worker(f"worker-{share}", lambda: False).gradient(share, W)
        for share in range(3)
    ]
    loss, G = sum(loss for _, loss in answers), sum(G for G, _ in answers)
    assert loss == pytest.approx(naive.objective(W, X, Y, c, 0.0), rel=1e-12)
    h = 1e-5
    for j, k in np.ndindex(*W.shape):
        shift = np.zeros_like(W)
        shift[j, k] = h
        slope = (
            naive.objective(W + shift, X, Y, c, 0.0) - naive.objective(W - shift, X, Y, c, 0.0)
        ) / (2 * h)
        assert G[j, k] == pytest.approx(slope, abs=1e-8)


def test_scores_of_any_size_give_finite_sums():
    X, Y, c = problem(1)
    hand = work_of(LBFGSSolver(), (1e3 * X, Y, c), 1).create_worker("worker-0", lambda: False)
    G, loss = hand.gradient(0, 1e3 * np.random.default_rng(0).normal(size=(8, 5)))
    assert np.isfinite(G).all()
    assert np.isfinite(loss)


def test_bits_do_not_depend_on_how_often_it_is_run():
    rows, solver = problem(2), LBFGSSolver(lam=LAM)
    one, two = (train(solver, rows, 3).weights.tobytes() for _ in range(2))
    assert one == two


def test_it_ends_after_max_iterations_or_without_improvement():
    rows = problem(3)
    short = train(LBFGSSolver(lam=LAM, max_iterations=3), rows)
    assert (short.last.number, short.reason) == (3, "after 3 rounds")
    whole = train(LBFGSSolver(lam=LAM, tolerance=1e-300), rows)
    assert whole.reason == "no step improves the objective in double precision"
    assert np.linalg.norm(naive.gradient(whole.weights, *rows, LAM)) < 1e-6


def test_the_gradient_bounds_the_distance_to_the_optimum():
    rows = problem(4)
    best = train(LBFGSSolver(lam=LAM, tolerance=1e-10), rows).weights
    for tolerance in (0.1, 0.01, 0.001):
        result = train(LBFGSSolver(lam=LAM, tolerance=tolerance), rows)
        assert np.linalg.norm(result.weights - best) <= result.last.entry["gradient"] / LAM
        assert result.last.entry["gradient"] <= tolerance * np.linalg.norm(
            naive.gradient(np.zeros_like(best), *rows, LAM)
        )


def test_labels_are_exported_in_ranges(monkeypatch):
    rows = problem(5)
    whole = train(LBFGSSolver(lam=LAM), rows).labels
    monkeypatch.setattr(label_weights, "PART_WEIGHTS", 17)  # 8 features: at most two labels
    parts = train(LBFGSSolver(lam=LAM), rows).labels
    assert [part.labels.tolist() for part in parts] == [[0], [1, 2], [3, 4]]
    assert concatenate(parts).digest() == whole[0].digest()


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(Unavailable, match=r"xcray\[sklearn\]"):
        train(LBFGSSolver(), problem(6))


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_a_feature_of_huge_values_does_not_hide_the_others(sparse):
    """Its gradient at 0 is 1e6 times larger: a test relative to that gradient alone stops early."""
    X, Y, c = problem(5, n=120)
    huge = np.hstack([X, np.full((len(X), 1), 1e6)])
    trained = train(LBFGSSolver(lam=LAM, tolerance=1e-5), (huge, Y, c), 2, sparse)
    assert trained.reason == LBFGSSolver().stopping.reached
    # A constant feature of huge values is a bias that is almost not regularised. With a value of
    # 1e3, the naive solver can solve the same problem within a millionth.
    near = np.hstack([X, np.full((len(X), 1), 1e3)])
    optimum = naive.objective(naive.solve(near, Y, c, LAM), near, Y, c, LAM)
    assert naive.objective(trained.weights, huge, Y, c, LAM) == pytest.approx(optimum, rel=1e-5)
