"""MEMOIR: the kernel against naive code, invariants of W, draws, labels, stops and parameters."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from tests.naive import memoir as naive
from xcray.arrays import csr_from, frozen, pattern_from
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.kernels.training import memoir as kernel
from xcray.solvers import memoir
from xcray.solvers.memoir import MemoirSolver

N, D, K = 40, 12, 7


def problem(seed: int = 0, labels_per_row: int = 2):
    """Return sparse X (N, D) in float32 and Y (N, K) bool; class K - 1 has no rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.4)
    Y = np.zeros((N, K), bool)
    for row in Y:
        row[rng.choice(K - 1, rng.integers(1, labels_per_row + 1), replace=False)] = True
    return X.astype(np.float32), Y


def local_of(solver, X, Y):
    """Return the state of a worker."""
    rows = csr_from(X)
    return solver.load(rows, transpose(rows), transpose_pattern(pattern_from(Y)))


def solved(solver, X, Y):
    """Return the trained labels in order."""
    return solver.solve(local_of(solver, X, Y), frozen(np.arange(Y.shape[1]), np.int32))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"lam": 0.5},
        {"penalty": "l1", "lam": 0.5},
        {"penalty": "l1", "lam": 0.02, "group": 5},
        {"group": 7},
        {"oracle": "random"},
        {"step": "batch", "margin": 1e9, "lam": 1.0},
        {"draws": "classes", "margin": 0.5},
        {"labels": "first"},
        {"eta0": 2.0, "eta_step": 0.5, "lam": 0.05},
    ],
    ids=str,
)
def test_the_kernel_equals_naive_code(monkeypatch, params):
    monkeypatch.setattr(memoir, "INITIAL_CAPACITY", 1)  # pools grow
    monkeypatch.setattr(memoir, "SLICE_ENTRIES", 37)  # rounds are interrupted
    X, Y = problem()
    solver = MemoirSolver(rounds=8, batch=30, seed=3, **params)
    local = local_of(solver, X, Y)
    rounds = memoir._Rounds(local.problem, solver, 30)
    draws = [rounds.draw(number) for number in range(1, 9)]
    own = Y if solver.labels == "all" else Y & (np.cumsum(Y, axis=1) == 1)
    W = naive.train(X.astype(float), own, local.problem.rows, local.problem.classes, draws, solver)
    block = solver.solve(local, frozen(np.arange(K), np.int32))
    assert np.abs(W).max() > 0.0
    np.testing.assert_allclose(block.W.to_scipy().toarray(), W, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(block.records["nnz"], np.diff(block.W.indptr))


@pytest.mark.parametrize("lam", [0.001, 0.3])
def test_the_squared_norm_is_kept_and_bounded(lam):
    X, Y = problem()
    solver = MemoirSolver(lam=lam, batch=50)
    rounds = memoir._Rounds(local_of(solver, X, Y).problem, solver, 50)
    for number in range(1, 30):
        rounds.run(number, 0.1, lambda: False)
        values, kept = np.zeros(20_000), np.zeros(K, np.int64)
        kernel.count_weights(rounds.lists, rounds.state, 0.0, kept, np.zeros(K, np.int64))
        ends = np.cumsum(kept) - kept
        features = np.zeros(20_000, np.int32)
        kernel.export_weights(rounds.lists, rounds.state, 0.0, ends, features, values)
        norm = float(rounds.state["norm_sq"][0])
        assert norm == pytest.approx((values**2).sum(), rel=1e-9)
        assert norm <= 1.0 / lam * (1.0 + 1e-12)


def test_a_multiplier_that_becomes_small_is_folded_into_the_values(monkeypatch):
    X, Y = problem()
    solver = MemoirSolver(lam=1.0, rounds=20, batch=30)
    plain = solved(solver, X, Y)
    monkeypatch.setattr(memoir, "MIN_SCALE", 0.5)
    folded = solved(solver, X, Y)
    np.testing.assert_allclose(
        folded.W.to_scipy().toarray(), plain.W.to_scipy().toarray(), rtol=1e-5, atol=1e-7
    )


def test_l1_drops_weights():
    X, Y = problem()
    weights = [
        solved(MemoirSolver(penalty="l1", lam=lam, rounds=20, batch=50), X, Y).W.nnz
        for lam in (1e-6, 0.3, 100.0)
    ]
    assert weights[0] > weights[1] > weights[2] == 0


def test_separated_classes_are_learned():
    X, y = make_blobs(300, 6, centers=5, cluster_std=0.5, random_state=0)
    X = np.hstack([X, np.ones((300, 1))]).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    block = solved(MemoirSolver(), X, np.eye(5, dtype=bool)[y])
    assert ((X @ block.W.to_scipy().T).argmax(axis=1) == y).mean() > 0.98


def test_draws_by_class_are_balanced_and_have_the_class():
    Y = np.zeros((100, 3), bool)
    Y[:97, 0], Y[97:, 2] = True, True
    solver = MemoirSolver(draws="classes", batch=4000)
    rounds = memoir._Rounds(
        local_of(solver, np.ones((100, 2), np.float32), Y).problem, solver, 4000
    )
    classes = rounds.problem.classes[rounds.draw(1)[0]]
    assert set(classes) == {0, 2}
    assert (classes == 2).mean() == pytest.approx(0.5, abs=0.05)


def test_the_seed_decides_and_labels_without_rows_have_bias_minus_one():
    X, Y = problem()
    a, b, c = (solved(MemoirSolver(rounds=5, seed=seed), X, Y) for seed in (0, 0, 1))
    assert a.digest() == b.digest() != c.digest()
    np.testing.assert_array_equal(a.bias, [0.0] * (K - 1) + [-1.0])
    assert a.records["rounds"].tolist() == [5] * (K - 1) + [-1]
    np.testing.assert_array_equal(a.records["positives"], Y.sum(axis=0))


def test_one_label_has_no_rivals():
    X, _ = problem()
    block = solved(MemoirSolver(), X, np.ones((N, 1), bool))
    assert block.W.nnz == 0
    assert block.bias.tolist() == [0.0]


def test_a_stop_is_noticed_within_a_round(monkeypatch):
    monkeypatch.setattr(memoir, "SLICE_ENTRIES", 100)
    X, Y = problem()
    answers = iter([False, False, True])
    solver = MemoirSolver()
    with pytest.raises(Stopped):
        solver.solve(local_of(solver, X, Y), frozen(np.arange(K), np.int32), lambda: next(answers))


def test_wrong_parameters_and_inputs_are_refused():
    X, Y = problem()
    with pytest.raises(ParameterError, match="eta0 \\* lam"):
        MemoirSolver(eta0=10.0, lam=1.0)
    solver = MemoirSolver()
    with pytest.raises(ParameterError, match="all labels together"):
        solver.solve(local_of(solver, X, Y), frozen([0, 1], np.int32))
    rows = csr_from(X)
    with pytest.raises(ParameterError, match="sample weights"):
        solver.load(
            rows,
            transpose(rows),
            transpose_pattern(pattern_from(Y)),
            frozen(np.ones(N), np.float32),
        )
