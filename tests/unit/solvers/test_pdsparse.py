"""PD-Sparse: objective, optimality conditions and certificate, against naive and scipy code."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime, minimize
from sklearn.preprocessing import normalize

from tests.naive import pdsparse as naive
from tests.support.group_programs import train_rows
from xcray.arrays import CSR, Pattern, csr_from, frozen, pattern_from
from xcray.errors import ParameterError, Stopped
from xcray.kernels.training import dynamic_csr as growing
from xcray.kernels.training.pdsparse import project
from xcray.solvers.group_contract import StateLost, TrainingRows
from xcray.solvers.pdsparse import PDSparseSolver, PDSparseWorker, _empty_table
from xcray.solvers.solved_labels import SolvedLabels


def problem(
    seed: int, n: int = 60, d: int = 25, k: int = 7, density: float = 0.25, single: bool = False
) -> tuple[CSR, Pattern]:
    """Return sparse rows of unit length, and labels that depend on a few features each.

    Row i has at least label i. With `single`, each row has one label.
    """
    rng = np.random.default_rng(seed)
    X = normalize(sp.random(n, d, density, "csr", np.float32, random_state=rng))
    scores = X @ (rng.normal(size=(d, k)) * (rng.random((d, k)) < 0.3)) + 0.05 * rng.normal(
        size=(n, k)
    )
    np.fill_diagonal(scores, 9.0)
    Y = scores >= scores.max(axis=1, keepdims=True) if single else scores > 0.2
    return csr_from(X), pattern_from(Y.astype(np.float32))


def solved(solver: PDSparseSolver, X: CSR, Y: Pattern) -> SolvedLabels:
    """Solve all labels."""
    [labels] = train_rows(solver, TrainingRows(X, Y)).labels
    return labels


def dense(X: CSR, Y: Pattern) -> tuple[np.ndarray, list[list[int]]]:
    """Return X as an array, and the labels of each row as a list."""
    return X.to_scipy().toarray().astype(float), [Y.row(i).tolist() for i in range(Y.n_rows)]


def objectives(
    block: SolvedLabels, X: CSR, Y: Pattern, solver: PDSparseSolver
) -> tuple[float, float, float]:
    """Return the naive primal of the block's weights, and its reported gap and null objective."""
    rows, labels = dense(X, Y)
    result = naive.primal(
        block.W.to_scipy().toarray().T.astype(float), rows, labels, solver.lam, solver.tau, solver.C
    )
    return result, float(block.records["gap"].sum()), float(block.records["null"].sum())


def assert_same(a: SolvedLabels, b: SolvedLabels) -> None:
    """Check that two results have the same bits."""
    assert a.digest() == b.digest()


# ---- the whole problem ----


@pytest.mark.parametrize(
    ("lam", "tau", "C", "single"),
    [
        (0.01, 1.0, 1.0, False),
        (0.0, 1.0, 1.0, True),
        (0.3, 1.0, 1.0, True),
        (0.05, 0.2, 3.0, False),
        (0.02, 5.0, 0.1, True),
    ],
)
def test_objective_and_weights_equal_the_naive_solution(lam, tau, C, single):
    X, Y = problem(1, n=15, d=10, k=5, single=single)
    solver = PDSparseSolver(lam=lam, tau=tau, C=C, eps=1e-5, max_passes=3000)
    block = solved(solver, X, Y)
    rows, labels = dense(X, Y)
    W, beta = naive.solve(rows, labels, 5, lam, tau, C)
    upper, lower = naive.primal(W, rows, labels, lam, tau, C), naive.dual(beta, rows, lam, tau)
    result, gap, null = objectives(block, X, Y, solver)
    assert upper - lower <= 1e-3 * null, "the twin itself has not solved it"
    assert lower - 1e-6 * null <= result <= upper + 2e-5 * null
    assert 0.0 <= gap <= 1e-5 * null
    assert result - gap <= upper + 1e-6 * null
    distance = np.linalg.norm(
        block.W.to_scipy().toarray().T - W
    )  # the primal is tau-strongly convex
    assert 0.5 * tau * distance**2 <= 2.0 * (gap + upper - lower) + 1e-6 * null


@pytest.mark.parametrize("single", [False, True])
def test_objective_equals_a_general_solvers(single):
    X, Y = problem(2, n=8, d=4, k=4, density=0.7, single=single)
    solver = PDSparseSolver(lam=0.05, eps=1e-6, max_passes=5000)
    rows, labels = dense(X, Y)
    _, best = naive.solve_program(rows, labels, 4, 0.05, 1.0, 1.0)
    result, gap, null = objectives(solved(solver, X, Y), X, Y, solver)
    assert result - gap - 1e-5 * null <= best <= result + 1e-5 * null


@pytest.mark.parametrize("eps", [0.1, 0.01, 0.001])
def test_gap_is_true_and_at_most_eps(eps):
    X, Y = problem(3)
    solver = PDSparseSolver(eps=eps, C=2.0, max_passes=2000)
    block = solved(solver, X, Y)
    _, gap, null = objectives(block, X, Y, solver)
    live = [0 < len(row) < Y.n_cols for row in dense(X, Y)[1]]
    assert null == pytest.approx(2.0 * sum(live))
    assert gap <= eps * null
    assert block.records["certified"].all()
    best = objectives(solved(PDSparseSolver(eps=1e-5, C=2.0, max_passes=5000), X, Y), X, Y, solver)[
        0
    ]
    assert objectives(block, X, Y, solver)[0] <= best + gap + 1e-5 * null


def test_a_missing_certificate_is_reported():
    X, Y = problem(4)
    block = solved(PDSparseSolver(eps=1e-6, max_passes=1), X, Y)
    assert not block.records["certified"].any()
    assert block.records["gap"].sum() > 1e-6 * block.records["null"].sum()
    assert (block.records["rounds"] == 1).all()


def test_sampled_search_ends_on_the_same_certificate():
    X, Y = problem(5, n=40, d=30, k=15)
    solver = PDSparseSolver(sample=0.5, eps=0.02, max_passes=2000)
    sampled, exact = solved(solver, X, Y), solved(PDSparseSolver(eps=1e-4, max_passes=2000), X, Y)
    result, gap, null = objectives(sampled, X, Y, solver)
    best = objectives(exact, X, Y, solver)[0]
    assert gap <= 0.02 * null
    assert best - 1e-4 * null <= result <= best + gap + 1e-6 * null
    assert sampled.digest() != exact.digest()


# ---- the formulas ----


def test_dual_slope_is_that_of_finite_differences():
    """The slope of the dual is 1 - z for labels of a sample and -z for others, as in the kernel."""
    X, Y = problem(6, n=6, d=5, k=4, density=0.8)
    rows, labels = dense(X, Y)
    rng = np.random.default_rng(0)
    own = np.array([[k in row for k in range(4)] for row in labels])
    beta = np.where(own, 1.0, -1.0) * rng.random(own.shape)
    z = rows @ naive.soft(rows.T @ beta, 0.1) / 2.0
    slope = approx_fprime(
        beta.ravel(), lambda b: naive.dual(b.reshape(own.shape), rows, 0.1, 2.0), 1e-7
    )
    np.testing.assert_allclose(slope.reshape(own.shape), own - z, atol=1e-5)


def test_gap_is_the_sum_of_the_gaps_of_samples():
    X, Y = problem(7, n=10, d=6, k=5)
    rows, labels = dense(X, Y)
    _, beta = naive.solve(rows, labels, 5, 0.05, 1.0, 1.0, sweeps=3)
    W = naive.soft(rows.T @ beta, 0.05)
    z = rows @ W
    terms = [
        naive.loss(z[i], labels[i]) - np.maximum(beta[i], 0.0).sum() + beta[i] @ z[i]
        for i in range(10)
    ]
    assert min(terms) >= -1e-12
    assert sum(terms) == pytest.approx(
        naive.primal(W, rows, labels, 0.05, 1.0, 1.0) - naive.dual(beta, rows, 0.05, 1.0)
    )


def test_conditions_of_the_optimum():
    """The mass of a sample is on its lowest own labels and the highest other labels.

    If the sample has a loss, the mass is C.
    """
    X, Y = problem(8, n=40)
    solver = PDSparseSolver(eps=1e-6, max_passes=5000)
    rows, labels = dense(X, Y)
    z = rows @ solved(solver, X, Y).W.to_scipy().toarray().T
    _, beta = naive.solve(rows, labels, Y.n_cols, 0.01, 1.0, 1.0, sweeps=1000)
    for i, own in enumerate(labels):
        others = [k for k in range(Y.n_cols) if k not in own]
        if own and others:
            low, best = z[i, own].min(), z[i, others].max()
            assert z[i, [p for p in own if beta[i, p] > 1e-3]] == pytest.approx(low, abs=0.02)
            assert z[i, [k for k in others if beta[i, k] < -1e-3]] == pytest.approx(best, abs=0.02)
            if 1.0 + best - low > 0.02:
                assert np.maximum(beta[i], 0.0).sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_projection_equals_the_naive_twins_and_a_general_solvers(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        p, n, C = (
            int(rng.integers(1, 6)),
            int(rng.integers(1, 7)),
            float(rng.choice([0.1, 1.0, 10.0])),
        )
        c = rng.normal(size=p + n) * rng.choice([0.1, 1.0, 5.0]) + rng.normal()
        if rng.random() < 0.3:
            c = np.round(c)  # ties
        result = c.copy()
        project(result, p, C, np.empty(p + n))
        np.testing.assert_allclose(result, naive.project(c, p, C), atol=1e-6)
    best = minimize(
        lambda u: 0.5 * ((u - c) ** 2).sum(),
        np.zeros(p + n),
        jac=lambda u: u - c,
        method="SLSQP",
        bounds=[(0.0, None)] * (p + n),
        constraints=[
            {"type": "eq", "fun": lambda u: u[:p].sum() - u[p:].sum()},
            {"type": "ineq", "fun": lambda u: C - u[:p].sum()},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(result, best.x, atol=1e-4)


def test_projection_of_many_meets_its_conditions():
    rng = np.random.default_rng(9)
    c = rng.normal(size=500)
    for C in (0.01, 3.0, 1e9):
        result = c.copy()
        project(result, 60, C, np.empty(500))
        mass = result[:60].sum()
        assert result.min() >= 0.0
        assert mass == pytest.approx(result[60:].sum())
        assert mass <= C * (1 + 1e-12)
        t, h = (c[:60] - result[:60])[result[:60] > 0], (c[60:] - result[60:])[result[60:] > 0]
        assert np.ptp(t) < 1e-9
        assert np.ptp(h) < 1e-9
        assert (c[:60][result[:60] == 0] <= t[0] + 1e-9).all()
        assert (c[60:][result[60:] == 0] <= h[0] + 1e-9).all()
        assert (
            t[0] + h[0] == pytest.approx(0.0, abs=1e-9)
            if mass < 0.999 * C
            else t[0] + h[0] >= -1e-9
        )


def test_nothing_violates_means_nothing_moves():
    for c in ([-1.0, 0.5], [-3.0, -2.0, 1.0]):
        result = np.array(c)
        project(result, len(c) - 1, 1.0, np.empty(len(c)))
        assert (result == 0.0).all()


# ---- awkward data ----


def test_labels_without_positives_rows_without_labels_and_empty_rows():
    X = sp.csr_matrix(
        np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 1]], np.float32)
    )
    Y = sp.csr_matrix(
        np.array(
            [[1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]],
            np.float32,
        )
    )
    # Labels 1 and 3 have no row; row 2 is empty and labelled; row 5 has all other labels.
    X, Y = (
        csr_from(X),
        pattern_from(Y),
    )
    solver = PDSparseSolver(eps=1e-6, max_passes=1000)
    block = solved(solver, X, Y)
    assert block.records["null"].sum() == pytest.approx(3.0)
    assert block.records["gap"].sum() <= 1e-6 * 3.0
    assert block.records["positives"].tolist() == [3, 0, 2, 0]
    assert block.records["rounds"].tolist()[1::2] == [-1, -1]
    assert block.bias.tolist() == [0.0, -1.0, 0.0, -1.0]
    assert np.diff(block.W.indptr)[1::2].tolist() == [0, 0]
    keep = Pattern(Y.indptr, frozen(Y.indices // 2, np.int32), 2)
    rows, labels = dense(X, keep)
    W = block.W.to_scipy().toarray()[::2].T.astype(float)
    best, beta = naive.solve(rows, labels, 2, 0.01, 1.0, 1.0)
    assert naive.primal(W, rows, labels, 0.01, 1.0, 1.0) == pytest.approx(
        naive.primal(best, rows, labels, 0.01, 1.0, 1.0), abs=1e-4
    )


def test_one_label_leaves_nothing_to_learn():
    X, _ = problem(10, n=5)
    Y = pattern_from(np.ones((5, 1), np.float32))
    block = solved(PDSparseSolver(), X, Y)
    assert block.W.nnz == 0
    assert block.bias.tolist() == [0.0]
    assert block.records["certified"].all()


def test_duplicate_rows_count_twice():
    X, Y = problem(11, n=20)
    twice = (
        csr_from(sp.vstack([X.to_scipy(), X.to_scipy()])),
        pattern_from(sp.vstack([Y.to_scipy(), Y.to_scipy()])),
    )
    solver = PDSparseSolver(eps=1e-5, max_passes=5000)
    double = PDSparseSolver(eps=1e-5, C=2.0, max_passes=5000)
    a, b = (
        objectives(solved(solver, *twice), *twice, solver),
        objectives(solved(double, X, Y), X, Y, double),
    )
    assert a[0] == pytest.approx(b[0], abs=2e-5 * b[2])
    assert a[2] == b[2]


def test_common_features_of_many_labels_grow_tables():
    """Rows of W move several times as they grow, and their tables still find all entries.

    Two features occur in every row, and there are thirty labels.
    """
    X, Y = problem(12, n=150, d=12, k=30, density=0.6, single=True)
    solver = PDSparseSolver(eps=1e-4, max_passes=3000)
    result, gap, null = objectives(solved(solver, X, Y), X, Y, solver)
    rows, labels = dense(X, Y)
    assert gap <= 1e-4 * null
    W, beta = naive.solve(rows, labels, 30, 0.01, 1.0, 1.0, sweeps=60)
    assert (
        naive.dual(beta, rows, 0.01, 1.0) - 1e-6 * null
        <= result
        <= naive.primal(W, rows, labels, 0.01, 1.0, 1.0) + gap
    )


# ---- the growing matrix ----


def test_growing_matrix_equals_a_dense_one():
    rng = np.random.default_rng(13)
    table, state = _empty_table(3), np.zeros((3, 200))
    for turn in range(100):
        j, n = np.int32(rng.integers(3)), int(rng.integers(1, 6))  # a compiled signature
        columns = rng.choice(200 if j else 6, n, replace=False).astype(np.int32)
        changes = rng.choice([0.0, 0.5, -0.5, 1.0], n)
        assert growing.has_capacity(table, frozen([j], np.int32), n)
        growing.add(table, j, columns, changes, np.float32(0.75), 0.6)
        state[j, columns] += 0.75 * changes
        if turn % 50 == 49:
            check(table, state, 0.6)
    growing.clear(table)
    check(table, np.zeros((3, 200)), 0.6)
    growing.add(
        table, np.int32(1), np.arange(50, dtype=np.int32), np.ones(50), np.float32(1.0), 0.6
    )
    check(table, np.stack([np.zeros(200), np.arange(200) < 50, np.zeros(200)]), 0.6)


def check(table: growing.DynamicRows, state: np.ndarray, edge: float) -> None:
    """Check that the table has the entries of `state`, the large ones first, and finds each."""
    for j in range(len(state)):
        lo, n, strong = table.begin[j], table.size[j], table.n_large[j]
        columns, values = table.columns[lo : lo + n], table.values[lo : lo + n]
        assert len(set(columns.tolist())) == n
        dense_row = np.zeros(state.shape[1])
        dense_row[columns] = values
        np.testing.assert_allclose(dense_row, state[j], atol=1e-12)
        assert (np.abs(values[:strong]) > edge).all()
        assert (np.abs(values[strong:]) <= edge).all()
        out = np.zeros(state.shape[1])
        growing.gather(
            table, np.int32(j), np.arange(state.shape[1], dtype=np.int32), 2.0, edge, out
        )
        np.testing.assert_allclose(out, 2.0 * naive.soft(state[j], edge), atol=1e-12)


def test_full_pools_are_detected():
    table = _empty_table(1)
    wide = frozen([0], np.int32)
    assert growing.has_capacity(table, wide, 1000)
    assert not growing.has_capacity(table, wide, 1 << 17)


# ---- as a solver ----


def test_same_bits_in_slices_and_with_small_pools(monkeypatch):
    X, Y = problem(14, n=200, d=60, k=20)
    solver = PDSparseSolver()
    whole = solved(solver, X, Y)
    monkeypatch.setattr("xcray.solvers.pdsparse.SLICE_ENTRIES", 53)
    monkeypatch.setattr("xcray.solvers.pdsparse.INITIAL_CAPACITY", 8)
    assert_same(solved(solver, X, Y), whole)


def test_other_seed_same_optimum():
    X, Y = problem(15)
    a, b = (solved(PDSparseSolver(seed=seed, eps=1e-5, max_passes=3000), X, Y) for seed in (0, 1))
    assert a.digest() != b.digest()
    np.testing.assert_allclose(a.W.to_scipy().toarray(), b.W.to_scipy().toarray(), atol=0.1)


def test_a_stop_is_detected(monkeypatch):
    monkeypatch.setattr("xcray.solvers.pdsparse.SLICE_ENTRIES", 50)
    X, Y = problem(16)
    turns = count()
    worker = PDSparseWorker(PDSparseSolver(), X, Y, lambda: next(turns) > 20)
    worker.begin(None)
    with pytest.raises(Stopped, match="next run"):
        any(worker.advance()[1][1] for _ in range(1000))


def test_a_new_worker_has_lost_the_state():
    worker = PDSparseWorker(PDSparseSolver(), *problem(16))
    for method in (worker.advance, worker.snapshot, worker.labels):
        with pytest.raises(StateLost, match="is new"):
            method()


def test_a_training_of_one_search_has_one_round():
    X = csr_from(np.eye(3, dtype=np.float32))
    Y = pattern_from(np.ones((3, 2), np.float32))  # rows with all labels cost nothing
    trained = train_rows(PDSparseSolver(), TrainingRows(X, Y))
    assert [done.number for done in trained.rounds] == [1]
    assert trained.reason == PDSparseSolver().stopping.reached
    again = train_rows(PDSparseSolver(), TrainingRows(X, Y), state=trained.last.state)
    assert again.labels[0].digest() == trained.labels[0].digest()


def test_pruning_drops_the_reported_weights():
    X, Y = problem(20)
    plain, pruned = (
        solved(PDSparseSolver(tau=2.0), X, Y),
        solved(PDSparseSolver(tau=2.0, prune=0.1), X, Y),
    )
    selection = np.abs(plain.W.data) > 0.1
    np.testing.assert_array_equal(np.sort(pruned.W.data), np.sort(plain.W.data[selection]))
    np.testing.assert_array_equal(
        pruned.records["nnz"] + pruned.records["pruned"], plain.records["nnz"]
    )
    np.testing.assert_array_equal(np.diff(plain.W.indptr), plain.records["nnz"])


def test_shares_add_up_and_support_counts_samples():
    X, Y = problem(21, n=80)
    solver = PDSparseSolver(eps=0.02)
    block = solved(solver, X, Y)
    counts = np.diff(Y.indptr)
    live = (counts > 0) & (counts < Y.n_cols)
    expected = [
        sum(1.0 / counts[i] for i in range(80) if live[i] and k in Y.row(i))
        for k in range(Y.n_cols)
    ]
    np.testing.assert_allclose(block.records["null"], expected)
    assert (block.records["support"] <= 80).all()
    assert (block.records["support"] >= 1).all()
    assert (block.records["gap"] >= -1e-9).all()


def test_l1_makes_it_sparse():
    X, Y = problem(22)
    counts = [solved(PDSparseSolver(lam=lam), X, Y).W.nnz for lam in (0.0, 0.1, 1.0)]
    assert counts[0] > counts[1] > counts[2]


@pytest.mark.parametrize(
    ("inputs", "fix"),
    [
        ({"lam": -1}, "at least 0"),
        ({"tau": 0}, "greater than 0"),
        ({"growth": 0}, "at least 1"),
        ({"sample": 1.5}, "at most 1"),
        ({"inner": 0.5}, "whole number"),
    ],
)
def test_bad_parameters_are_refused(inputs, fix):
    with pytest.raises(ParameterError, match=fix):
        PDSparseSolver(**inputs)
