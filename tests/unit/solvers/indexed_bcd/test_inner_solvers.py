"""Inner solvers with the squared loss: LIBLINEAR's objective, certificate, truncation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, svm_dataset, svm_problem
from xcray.arrays import frozen
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.kernels.sparse import transpose
from xcray.solvers.indexed_bcd.paged_rows import PagedRows
from xcray.solvers.indexed_bcd.solver import INNER_SOLVERS, SELECTIONS, IndexedBCDSolver

FIRST = frozen([0], np.int32)
SMALL = {"C": 0.1, "first_rows": 60, "query_rows": 40, "max_sweeps": 3000}
SQUARED = [name for name in INNER_SOLVERS if name != "l1-dual"]


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=3_000)


def train(solver: IndexedBCDSolver, problem: SVMProblem) -> tuple[np.ndarray, np.void]:
    """Return weights and bias (D + 1,), and the record."""
    solved = solver.solve(solver.load(problem.X, transpose(problem.X), problem.YT), FIRST)
    weights = np.append(solved.W.to_scipy().toarray()[0], solved.bias[0])
    return weights, solved.records[0]


@pytest.mark.parametrize("inner", SQUARED)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_without_outliers_it_has_the_objective_of_liblinear(
    noisy: SVMProblem, selection: str, inner: str
) -> None:
    solver = IndexedBCDSolver(**SMALL, s=1e30, eps=1e-6, selection=selection, inner=inner)
    v, record = train(solver, noisy)
    model = LinearSVC(
        loss="squared_hinge",
        dual=inner == "l2-dual",
        C=0.1,
        tol=1e-10,
        max_iter=1_000_000,
        random_state=0,
    ).fit(noisy.dense, noisy.y)
    theirs = np.append(model.coef_, model.intercept_)
    assert v == pytest.approx(theirs, rel=1e-2, abs=1e-3)
    costs = np.full(len(noisy.y), 0.1)
    optimum = naive.squared_primal(noisy.dense, noisy.y, costs, theirs)
    assert naive.squared_primal(noisy.dense, noisy.y, costs, v) == pytest.approx(optimum, rel=1e-5)
    assert record["primal"] == pytest.approx(
        naive.squared_primal(noisy.dense, noisy.y, costs, v), rel=1e-6
    )
    assert record["dual"] <= optimum * (1 + 1e-9)
    assert record["gap"] <= 1e-6 * record["null"]
    assert record["outliers"] == 0


@pytest.mark.parametrize("inner", SQUARED)
def test_losses_are_truncated_at_one_plus_s(noisy: SVMProblem, inner: str) -> None:
    v, record = train(IndexedBCDSolver(**SMALL, eps=1e-5, inner=inner, s=1.0), noisy)
    margins = naive.margins(noisy.dense, noisy.y, v)
    losses = np.minimum(np.maximum(1.0 - margins, 0.0) ** 2, 2.0)
    assert record["objective"] == pytest.approx(0.5 * v @ v + 0.1 * losses.sum(), rel=1e-6)
    assert abs(record["outliers"] - (margins < 1.0 - np.sqrt(2.0)).sum()) <= 1
    assert 30 < record["outliers"] < 400
    assert record["changing"] == 0


def test_dual_and_primal_solve_one_problem(noisy: SVMProblem) -> None:
    (_, dual), (_, primal) = (
        train(IndexedBCDSolver(**SMALL, eps=1e-4, inner=inner), noisy) for inner in SQUARED
    )
    assert primal["objective"] == pytest.approx(dual["objective"], rel=5e-3)
    assert dual["support"] == pytest.approx(primal["support"], rel=0.05)


@pytest.mark.parametrize("inner", INNER_SOLVERS)
def test_shrinking_does_not_change_the_solution(noisy: SVMProblem, inner: str) -> None:
    solver = IndexedBCDSolver(**SMALL, s=1e30, eps=1e-5, inner=inner)
    (_, on), (_, off) = (
        train(replace(solver, shrinking=shrinking), noisy) for shrinking in ("on", "off")
    )
    assert on["primal"] == pytest.approx(off["primal"], rel=1e-4)


@pytest.mark.parametrize("inner", SQUARED)
def test_rows_on_disk_give_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, inner: str
) -> None:
    problem = svm_problem(5, n=5_000, d=16, flipped=0.0)
    dataset = svm_dataset(problem, tmp_path_factory.mktemp("data") / "svm")
    build_forest_directory(dataset, 32)
    solver = IndexedBCDSolver(
        C=0.1,
        eps=0.01,
        first_rows=200,
        query_rows=100,
        leaf_rows=32,
        selection="forest",
        inner=inner,
    )
    whole = solver.solve(solver.load_dataset(dataset), FIRST)
    local = solver.load_dataset(dataset, dataset.train.X.nnz)  # bytes: an eighth of the rows
    assert isinstance(local.store, PagedRows)
    ours = solver.solve(local, FIRST)
    assert ours.W.data.tobytes() == whole.W.data.tobytes()
    assert ours.bias.tobytes() == whole.bias.tobytes()
