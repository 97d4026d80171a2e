"""Newton's method for long rows over few features keeps the promises of the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.naive import ppdsparse as naive
from tests.support.ppdsparse_problems import local_of, problem, signs, solved
from xcray.arrays import CSR, Pattern, csr_from, frozen, pattern_from
from xcray.errors import Stopped
from xcray.kernels.sparse import row_norms_sq, transpose, transpose_pattern
from xcray.kernels.training import newton as kernel
from xcray.solvers import newton
from xcray.solvers.ppdsparse import PPDSparseSolver

ALL = np.arange(5, dtype=np.int32)


def long_rows(seed: int, n: int = 200, d: int = 20, k: int = 5) -> tuple[CSR, Pattern]:
    """Return dense rows of length about 30 with correlated features, and noisy labels.

    The last label has no positive.
    """
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) + 3.0 * rng.normal(size=(n, 1))).astype(np.float32) * 2.0
    Y = (X @ rng.normal(size=(d, k)) + 20.0 * rng.normal(size=(n, k)) > 25.0).astype(np.float32)
    Y[:, -1] = 0.0
    return csr_from(X), pattern_from(Y)


@pytest.mark.parametrize(
    ("lam", "tau", "C", "penalty"),
    [(0.01, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0), (20.0, 0.5, 2.0, 1.0), (0.1, 1.0, 1.0, 0.01)],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_optimum_is_the_naive_twins(lam, tau, C, penalty, weighted):
    X, Y = long_rows(1)
    solver = PPDSparseSolver(
        lam=lam, tau=tau, C=C, bias_penalty=penalty, eps=1e-6, positive_weight=2.0
    )
    weights = (
        np.random.default_rng(0).uniform(0.5, 2.0, X.n_rows).astype(np.float32)
        if weighted
        else np.ones(X.n_rows, np.float32)
    )
    local = solver.load(X, transpose(X), transpose_pattern(Y), weights)
    assert newton.is_suitable(local.problem, solver._objective())
    block = solver.solve(local, ALL)
    dense, W = X.to_scipy().toarray().astype(float), block.W.to_scipy().toarray().astype(float)
    for label in np.flatnonzero(block.records["positives"]):
        y, record = signs(Y, label), block.records[label]
        costs = C * weights * np.where(y > 0, 2.0, 1.0)
        best = naive.solve_squared_hinge(dense, y, lam, tau, costs, penalty)[2]
        assert record["gap"] <= 1e-6 * record["null"]
        assert record["null"] == pytest.approx(
            naive.null_objective(y, tau, costs, penalty=penalty), rel=1e-4
        )
        value = naive.primal(
            W[label], block.bias[label], dense, y, lam, tau, costs, penalty=penalty
        )
        assert record["primal"] == pytest.approx(value, rel=1e-6)
        assert record["primal"] == pytest.approx(best, abs=1e-4 * record["null"])
        assert record["dual"] <= best + 1e-7 * record["null"]


def test_a_class_with_fewer_violating_rows_than_features_is_certified():
    # if coordinate descent alone minimises the model, two of these classes take 74 and 100 rounds
    rng = np.random.default_rng(3)
    X = (100.0 * rng.normal(size=(300, 40)) + 2000.0 * rng.normal(size=(300, 1))).astype(np.float32)
    Y = pattern_from((X @ rng.normal(size=(40, 3)) > 0.0).astype(np.float32))
    solver = PPDSparseSolver(lam=20.0, C=50.0, eps=1e-4)
    records = solver.solve(local_of(solver, csr_from(X), Y), ALL[:3]).records
    assert (records["violating"] < 40).all()
    assert (records["gap"] <= 1e-4 * records["null"]).all()
    assert records["rounds"].max() < 40


def repeated_rows(seed):
    """Return 130 rows of 50 features eight times each, and three classes."""
    rng = np.random.default_rng(seed)
    X = np.repeat(100.0 * rng.normal(size=(130, 50)), 8, axis=0).astype(np.float32)
    scores = X @ rng.normal(size=(50, 3)) + rng.normal(size=(len(X), 3)) * X.std()
    Y = (scores > np.quantile(scores, 0.85, axis=0)).astype(np.float32)
    return csr_from(X), pattern_from(Y)


def test_repeated_rows_are_certified():
    # with one step over all rows at a time, the second class takes 100 rounds
    solver = PPDSparseSolver(C=100.0, eps=1e-3, lam=0.0, positive_weight=3.0)
    records = solver.solve(local_of(solver, *repeated_rows(1)), ALL[:3]).records
    assert (records["gap"] <= 1e-3 * records["null"]).all()
    assert records["rounds"].max() < 40


def test_the_objective_never_rises(monkeypatch):
    values, move = [], newton._NewtonClass.move

    def move_and_record(self, w, new, value):
        w = move(self, w, new, value)
        values.append((value, self.samples.objective(w, self.o, self.taus)))
        return w

    monkeypatch.setattr(newton._NewtonClass, "move", move_and_record)
    solver = PPDSparseSolver(C=100.0, eps=1e-6, lam=0.0)
    solver.solve(local_of(solver, *repeated_rows(2)), ALL[:3])
    before, after = np.array(values).T
    assert (after <= before).all()
    assert (after < before).sum() > 10


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_single_precision_is_used_where_it_suffices(scale):
    X, Y = long_rows(2)
    X = X._replace(data=frozen(X.data * scale, np.float32))
    solver = PPDSparseSolver(eps=1e-4)
    local = local_of(solver, X, Y)
    precision = newton._first_precision(local.problem, solver._objective(), 0)
    assert precision is (newton.FAST if scale == 1.0 else newton.USUAL)
    records = solver.solve(local, ALL).records
    assert (records["gap"] <= 1e-4 * records["null"])[records["positives"] > 0].all()


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_only_kernels_of_the_method_are_loaded(scale, monkeypatch):
    X, Y = long_rows(2) if scale else problem(3)
    solver = PPDSparseSolver()
    local = local_of(solver, X, Y)
    used = []
    for name in ("_solve_by_newton", "_solve_by_descent"):
        method = getattr(PPDSparseSolver, name)
        monkeypatch.setattr(
            PPDSparseSolver, name, lambda *a, f=method: (used.append(f.__name__), f(*a))[1]
        )
    solver.warm_up(local)
    solver.warm_up()
    assert used == ["_solve_by_newton" if scale else "_solve_by_descent", "_solve_by_descent"]


@pytest.mark.parametrize("lam", [0.0, 0.3, 30.0])
def test_the_model_is_minimised_where_its_curvatures_differ_much(lam):
    rng = np.random.default_rng(5)
    A = rng.normal(size=(40, 31)) * np.logspace(0.0, 4.0, 31)
    A[:, 1] = A[:, 0] + 1e-3 * A[:, 1]
    M, slope = A.T @ A + np.eye(31), A.T @ rng.normal(size=40)
    w, step = rng.normal(size=31) * np.logspace(0.0, -4.0, 31), np.empty(31)
    kernel.minimise_model(M, slope, w, lam, 200, 1e-12, step)
    pull, u = slope + M @ step, w + step
    scale = np.sqrt(np.diag(M))
    at_zero = np.maximum(0.0, np.abs(pull[:-1]) - lam)
    wrong = np.where(u[:-1] == 0.0, at_zero, np.abs(pull[:-1] + lam * np.sign(u[:-1])))
    assert (wrong / scale[:-1]).max() < 1e-4
    assert abs(pull[-1]) / scale[-1] < 1e-4
    assert (np.count_nonzero(u[:-1] == 0.0) > 0) == (lam > 0.0)


def test_sparse_and_dense_rows_have_the_same_optimum(monkeypatch):
    X, Y = long_rows(7)
    values = X.to_scipy().toarray()
    values[:, ::3] = 0.0  # two thirds of the entries stay
    X = csr_from(values)
    solver = PPDSparseSolver(eps=1e-5)
    local = local_of(solver, X, Y)
    dense = solver.solve(local, ALL)
    assert local.newton.dense.shape == (X.n_rows, X.n_cols)
    monkeypatch.setattr(kernel, "dense_size", lambda X: 0)
    local = local_of(solver, X, Y)
    sparse = solver.solve(local, ALL)
    assert local.newton.dense.size == 0
    assert dense.records["primal"] == pytest.approx(sparse.records["primal"], rel=2e-5)
    assert dense.bias == pytest.approx(sparse.bias, abs=0.01)


def test_dense_rows_are_never_larger_than_the_entries():
    values = np.zeros((4, 10), np.float32)
    values[:, :5] = 1.0
    assert kernel.dense_size(csr_from(values)) == 40
    values[0, 0] = 0.0
    assert kernel.dense_size(csr_from(values)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_length_of_a_step_is_near_the_minimum_on_the_line(seed):
    rng = np.random.default_rng(seed)
    signs, costs = rng.choice([-1.0, 1.0], 300), rng.uniform(0.5, 2.0, 300)
    X = np.column_stack([rng.normal(size=(300, 6)), np.ones(300)])
    w, taus, lam = rng.normal(size=7), np.full(7, 0.5), 3.0
    w[0] = 0.0
    direction = signs * costs @ X / 20.0 - w

    def value(length: float) -> float:
        u = w + length * direction
        z = np.maximum(0.0, 1.0 - signs * (X @ u))
        return costs @ z**2 + 0.5 * taus @ u**2 + lam * np.abs(u[:-1]).sum()

    length = kernel.best_length(signs, costs, X @ w, X @ direction, w, direction, lam, taus)
    least = min(value(t) for t in np.linspace(0.0, 4.0, 4001))
    assert value(length) < value(0.0)
    assert value(length) - least <= 0.02 * (value(0.0) - least)
    assert kernel.best_length(signs, costs, X @ w, -X @ direction, w, -direction, lam, taus) == 0.0


def test_it_agrees_with_dual_coordinate_descent(monkeypatch):
    X, Y = long_rows(2)
    solver = PPDSparseSolver(eps=0.001, max_rounds=2000, max_sweeps=200)
    by_newton = solved(solver, X, Y)
    monkeypatch.setattr(newton, "MAX_FEATURES", 0)
    by_descent = solved(solver, X, Y)
    assert by_newton.records["positives"].tolist() == by_descent.records["positives"].tolist()
    assert by_newton.records["null"] == pytest.approx(by_descent.records["null"])
    difference = np.abs(by_newton.records["primal"] - by_descent.records["primal"])
    assert (difference <= 0.001 * by_newton.records["null"] + by_descent.records["gap"]).all()
    assert by_newton.bias[-1] == by_descent.bias[-1] == -1.0
    assert by_newton.W.row(4)[0].size == 0


def is_suitable(X, Y, **parameters):
    """Return whether Newton's method is chosen."""
    solver = PPDSparseSolver(**parameters)
    return newton.is_suitable(local_of(solver, X, Y).problem, solver._objective())


def test_short_rows_and_the_hinge_are_left_to_the_kernel():
    X, Y = long_rows(3)  # |x|^2 is about 900
    assert is_suitable(X, Y)
    assert not is_suitable(X, Y, loss="hinge")
    assert not is_suitable(X, Y, C=1e-4)
    assert not is_suitable(X, Y, tau=1e4)
    assert not is_suitable(*problem(3))


def test_many_features_need_longer_rows(monkeypatch):
    X, Y = long_rows(3, d=400)  # 400 features need 8 + 20
    curvature = float(row_norms_sq(X).mean())
    assert not is_suitable(X, Y, C=20.0 / curvature)
    assert is_suitable(X, Y, C=30.0 / curvature)
    monkeypatch.setattr(newton, "MAX_FEATURES", 399)
    assert not is_suitable(X, Y)


def test_small_classes_need_longer_rows():
    X, _ = long_rows(3, n=4000)
    curvature = float(row_norms_sq(X).mean())
    for n_positives, least in ((1, 200.0), (10, 20.0), (100, 9.0)):
        positives = np.zeros((4000, 3), np.float32)
        positives[:n_positives, :2] = 1.0  # a class without positives does not count
        Y = pattern_from(positives)
        assert not is_suitable(X, Y, C=0.95 * least / curvature)
        assert is_suitable(X, Y, C=1.05 * least / curvature)


def test_bits_do_not_depend_on_batches_or_chunks(monkeypatch):
    X, Y = long_rows(4)
    solver = PPDSparseSolver()
    local = local_of(solver, X, Y)
    whole = solver.solve(local, ALL)
    monkeypatch.setattr(newton, "CHUNK_MULTIPLICATIONS", 500)
    for label in ALL:
        alone = solver.solve(local.clone_for_thread(), ALL[label : label + 1])
        assert alone.W.data.tobytes() == whole.W.row(label)[1].tobytes()
        assert alone.bias[0] == whole.bias[label]


def test_a_stop_is_detected_between_chunks(monkeypatch):
    X, Y = long_rows(5)
    monkeypatch.setattr(newton, "CHUNK_MULTIPLICATIONS", 500)
    answers = iter([False] * 20 + [True])
    with pytest.raises(Stopped):
        PPDSparseSolver().solve(local_of(PPDSparseSolver(), X, Y), ALL, lambda: next(answers))


def test_warm_starts_and_pruning_work_here_too():
    X, Y = long_rows(6)
    solver, near = PPDSparseSolver(eps=1e-5), PPDSparseSolver(eps=1e-5, C=1.05)
    local = local_of(solver, X, Y)
    duals = solver.solve(local, ALL, keep_duals=True).duals
    warm, cold = near.solve(local, ALL, start=duals), near.solve(local, ALL)
    assert warm.records["rounds"].sum() < cold.records["rounds"].sum()
    assert (warm.records["gap"] <= 1e-5 * warm.records["null"])[:4].all()
    assert (np.diff(PPDSparseSolver(prune_keep=3).solve(local, ALL).W.indptr) <= 3).all()
