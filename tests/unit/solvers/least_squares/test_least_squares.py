"""Least squares and its generalisation, against textbook formulas and optimality conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.naive import multinomial as naive
from tests.support.group_programs import problem
from tests.support.group_programs import train_rows as train
from xcray.arrays import csr, csr_from, frozen, pattern
from xcray.errors import ParameterError, Stopped
from xcray.solvers.group_contract import Layout, TrainingRows
from xcray.solvers.least_squares import gram as gram_module
from xcray.solvers.least_squares import solver as solver_module
from xcray.solvers.least_squares.gram import solver_of, weighted_gram
from xcray.solvers.least_squares.solver import GeneralizedLeastSquaresSolver, LeastSquaresSolver

LAM = 0.02
LOGISTIC = GeneralizedLeastSquaresSolver(lam=LAM, tolerance=1e-12, max_rounds=2000)
LINEAR = LeastSquaresSolver(lam=LAM, tolerance=1e-8)


def rows_of(X: Any, Y: Any, c: Any) -> TrainingRows:
    """Return dense X (N, D), Y (N, K) with the row weights c (N,) as training rows."""
    labels = csr_from((Y > 0).astype(np.float32))
    c = np.where(c > 0, c, 1.0)  # rows without labels have no weight in any case
    return TrainingRows(
        csr_from(X), pattern(labels.indptr, labels.indices, Y.shape[1]), frozen(c, np.float32)
    )


def multi_hot(Y: Any) -> Any:
    """Return 1 for each label of a row."""
    return (Y > 0).astype(np.float64)


def ridge(X: Any, T: Any, c: Any, lam: float) -> Any:
    """Return the solution of the normal equations: (D, K)."""
    H = X.T @ (c[:, None] * X) + lam * np.eye(X.shape[1])
    return np.linalg.solve(H, X.T @ (c[:, None] * T))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("cells", [1, 40, 1 << 21])  # chunks of a row, of a few rows, of all
def test_gram_is_the_weighted_sum_of_outer_products(
    share: float, double: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram_module, "CHUNK_CELLS", cells)
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(50, 9)) * (rng.random((50, 9)) < share)).astype(np.float32)
    c = rng.uniform(0.5, 2.0, 50)
    outer = [weight * np.outer(x, x) for x, weight in zip(X.astype(np.float64), c, strict=True)]
    exact = np.tril(sum(outer))
    for sparse in (True, False):
        shard = naive.shard_of(X, np.eye(50, 3), c, np.arange(50), sparse)
        close = (
            pytest.approx(exact, rel=1e-12, abs=1e-12)
            if double
            else pytest.approx(exact, rel=1e-5, abs=1e-4)
        )
        assert weighted_gram(shard, double=double) == close


def test_solver_of_solves_or_reports_an_indefinite_matrix() -> None:
    A = np.array([[4.0, 1.0], [1.0, 3.0]])  # of which the lower triangle is read
    solve = solver_of(np.tril(A), 0.5)
    assert solve is not None
    G = np.array([[1.0], [2.0]])
    assert (A + 0.5 * np.eye(2)) @ solve(G) == pytest.approx(G)
    assert solver_of(np.array([[1.0, 2.0], [2.0, 1.0]]), 0.1) is None


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_least_squares_solve_the_normal_equations(workers: int) -> None:
    X, Y, c = problem()
    c = c.astype(np.float32).astype(np.float64)
    c = np.where(c > 0, c, 0.0) / c.sum()
    result = train(LINEAR, rows_of(X, Y, c), workers)
    W = result.weights
    assert result.reason == "the gradient is small"
    assert pytest.approx(ridge(X, multi_hot(Y), c, LAM), abs=1e-7) == W
    R = X @ W - multi_hot(Y)
    objective = 0.5 * float((c[:, None] * R * R).sum()) + 0.5 * LAM * float((W * W).sum())
    assert result.last.entry["objective"] == pytest.approx(objective, rel=1e-6)


def test_one_step_is_enough_at_the_default_tolerance() -> None:
    result = train(LeastSquaresSolver(), rows_of(*problem()))
    assert (result.last.number, result.reason) == (1, "the gradient is small")


def test_generalized_least_squares_reach_the_optimum_of_logistic_regression() -> None:
    X, Y, c = problem()
    result = train(LOGISTIC, rows_of(X, Y, c), 2)
    W = result.weights
    assert result.reason == "the duality gap is small"
    assert np.linalg.norm(naive.gradient(W, X, Y, c, LAM)) < 1e-6
    assert pytest.approx(naive.solve(X, Y, c, LAM), abs=1e-5) == W


def test_few_rounds_are_needed_on_badly_scaled_correlated_features() -> None:
    X, Y, c = problem(1)
    mixed = X @ np.random.default_rng(2).normal(size=(8, 8)) * 10.0 ** np.arange(-2, 6, 1.0)[:8]
    solver = GeneralizedLeastSquaresSolver(lam=1e-6, tolerance=1e-3)
    result = train(solver, rows_of(mixed.astype(np.float32), Y, c))
    assert result.reason == "the duality gap is small"
    assert result.last.number < 60


def test_the_end_is_as_close_to_the_optimum_as_the_certificate() -> None:
    rng = np.random.default_rng(0)
    X = (10.0 + 2.0 * rng.normal(size=(200, 10))).astype(np.float32)
    Y = np.eye(6)[(X @ rng.normal(size=(10, 6)) + rng.normal(size=(200, 6))).argmax(axis=1)]
    data = rows_of(X, Y, np.ones(200))
    result = train(GeneralizedLeastSquaresSolver(lam=1e-6), data)
    best = train(GeneralizedLeastSquaresSolver(lam=1e-6, tolerance=1e-6, max_rounds=2000), data)
    excess = result.last.entry["objective"] / best.last.entry["objective"] - 1.0
    assert result.reason == "the duality gap is small"
    assert -1e-6 <= excess <= result.last.entry["gap"] <= 0.01
    assert best.last.entry["gap"] <= 1e-6


def test_without_history_the_steps_are_those_of_the_paper() -> None:
    X, Y, c = problem()
    c = c.astype(np.float32).astype(np.float64)
    c = np.where(c > 0, c, 0.0) / c.sum()
    solver = GeneralizedLeastSquaresSolver(lam=LAM, max_rounds=4, tolerance=1e-9, history=0)
    H = 0.5 * X.T @ (c[:, None] * X) + LAM * np.eye(X.shape[1])
    W = np.zeros((X.shape[1], Y.shape[1]))
    for _ in range(4):
        W -= np.linalg.solve(H, naive.gradient(W, X, Y, c, LAM))
    assert train(solver, rows_of(X, Y, c)).weights == pytest.approx(W, abs=1e-6)


@pytest.mark.parametrize("solver", [LINEAR, LOGISTIC], ids=["linear", "logistic"])
def test_bits_do_not_depend_on_the_number_of_workers(solver: Any) -> None:
    data = rows_of(*problem(2))
    one, *more = (train(solver, data, workers).weights.tobytes() for workers in (1, 2, 3, 8, 11))
    assert all(bits == one for bits in more)


def test_double_precision_is_used_when_single_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = []
    exact = weighted_gram

    def recorded(shard: Any, *, double: bool, stopped: Any) -> Any:
        used.append(double)
        return exact(shard, double=double, stopped=stopped)

    monkeypatch.setattr("xcray.solvers.least_squares.worker.weighted_gram", recorded)
    X, Y, c = problem(3)
    train(LINEAR, rows_of(X, Y, c))
    assert set(used) == {False}
    # two columns that differ by one part in 10^5: the condition of their moments is 10^10
    X = np.column_stack([X, X[:, 0] * (1 + 1e-5 * np.sin(np.arange(len(X))))]).astype(np.float32)
    lam = 1e-13
    result = train(LeastSquaresSolver(lam=lam, tolerance=1e-6), rows_of(X, Y, c))
    assert set(used) == {False, True}
    assert result.reason == "the gradient is small"


def test_products_that_overflow_are_repeated_in_double_precision() -> None:
    X, Y, c = problem(3)
    X[:, 0] *= 1e25
    result = train(LeastSquaresSolver(lam=LAM), rows_of(X, Y, c))
    c = c.astype(np.float32) / c.astype(np.float32).sum()
    scores = X @ ridge(X, multi_hot(Y), c, LAM)
    assert X @ result.weights == pytest.approx(scores, rel=1e-4, abs=1e-6)


def test_the_bias_is_a_constant_feature() -> None:
    X, Y, c = problem(5)
    solver = LeastSquaresSolver(lam=LAM, bias=2.0, tolerance=1e-8)
    data = rows_of(X, Y, c)
    result = train(solver, data, 2)
    (block,) = result.labels
    c = c.astype(np.float32) / c.astype(np.float32).sum()
    W = ridge(np.column_stack([X, np.full(len(X), 2.0)]), multi_hot(Y), c, LAM)
    assert block.bias == pytest.approx(2.0 * W[-1], abs=1e-6)
    assert block.W.to_scipy().toarray().T == pytest.approx(W[:-1], abs=1e-6)


@pytest.mark.parametrize("solver", [LINEAR, LOGISTIC], ids=["linear", "logistic"])
def test_held_out_rows_are_evaluated(solver: Any) -> None:
    X, Y, c = problem(6)
    data = rows_of(X, Y, c)
    data = data._replace(held_out=(data.X, data.Y, data.weights))
    result = train(solver, data, 3)
    held, W = result.last.held_out, result.weights
    assert held is not None
    penalty = 0.5 * LAM * float((W * W).sum())
    assert held.loss == pytest.approx(result.last.entry["objective"] - penalty, rel=1e-9)
    assert np.array_equal(held.labels[:, 0], (X[held.rows] @ W).argmax(axis=1))


def test_a_stop_ends_a_pass() -> None:
    data = rows_of(*problem(7))
    worker = LOGISTIC.create_worker(data, 0, Layout(1), lambda: True)
    with pytest.raises(Stopped):
        worker.gradient(0, np.zeros((8, 5)))


def test_too_many_features_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_module, "MAX_FEATURES", 7)
    with pytest.raises(ParameterError, match="second moments of 8 features"):
        train(LINEAR, rows_of(*problem()))


def test_rows_without_entries_and_single_rows_are_valid() -> None:
    Y = pattern([0, 1, 2], [0, 1], 2)
    empty = train(LeastSquaresSolver(), TrainingRows(csr([0, 0, 0], [], [], 3), Y))
    assert not empty.weights.any()
