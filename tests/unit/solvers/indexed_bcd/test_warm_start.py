"""Warm starts over C and s: the objective of a cold start, at less cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, svm_dataset, svm_problem
from xcray.arrays import CSR, csr, frozen
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.errors import ParameterError
from xcray.kernels.sparse import transpose
from xcray.solvers.indexed_bcd.solver import INNER_SOLVERS, SELECTIONS, IndexedBCDSolver
from xcray.solvers.solved_labels import SolvedLabels

NO_OUTLIERS = 1e30
FIRST = frozen([0], np.int32)
EPS = 1e-3
SOLVER = IndexedBCDSolver(C=0.1, eps=EPS, first_rows=500, query_rows=200, max_sweeps=3000)


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=6_000)


def solve(solver: IndexedBCDSolver, problem: SVMProblem, start: CSR | None = None) -> SolvedLabels:
    """Return the only label, with its dual variables."""
    state = solver.load(problem.X, transpose(problem.X), problem.YT)
    return solver.solve(state, FIRST, start=start, keep_duals=True)


def duals_of(solved: SolvedLabels) -> np.ndarray:
    """Return the dual variables of the only label (N,)."""
    assert solved.duals is not None
    out: np.ndarray = solved.duals.to_scipy().toarray()[0].astype(np.float64)
    return out


def solve_path(
    problem: SVMProblem, path: list[IndexedBCDSolver], is_warm: bool
) -> list[SolvedLabels]:
    """Return the results of solvers, each from the one before if the path is warm."""
    out, start = list[SolvedLabels](), None
    for solver in path:
        out.append(solve(solver, problem, start if is_warm else None))
        start = out[-1].duals
    return out


def assert_less_work(cold: list[SolvedLabels], warm: list[SolvedLabels]) -> None:
    """Check rows read and sweeps of two paths without their first problems."""
    reads, sweeps = (
        [sum(int(solved.records[name][0]) for solved in path[1:]) for path in (warm, cold)]
        for name in ("rows_read", "sweeps")
    )
    assert reads[0] < reads[1]
    assert sweeps[0] < 0.6 * sweeps[1]


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("inner", INNER_SOLVERS)
def test_duals_are_those_of_the_weights(noisy: SVMProblem, inner: str, selection: str) -> None:
    solved = solve(replace(SOLVER, inner=inner, selection=selection, eps=1e-6), noisy)
    alpha, record = duals_of(solved), solved.records[0]
    v = (alpha * noisy.y) @ np.column_stack([noisy.dense, np.ones(len(noisy.y))])
    ours = np.append(solved.W.to_scipy().toarray()[0], solved.bias[0])
    np.testing.assert_allclose(v, ours, atol=2e-3)
    assert (alpha > 0.0).sum() == record["support"]
    assert inner != "l1-dual" or alpha.max() == np.float32(0.1)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("inner", INNER_SOLVERS)
def test_over_c_the_convex_optimum_is_the_same(
    noisy: SVMProblem, inner: str, selection: str
) -> None:
    base = replace(SOLVER, s=NO_OUTLIERS, inner=inner, selection=selection)
    path = [replace(base, C=C) for C in (0.05, 0.1, 0.2, 0.1)]
    results = [solve_path(noisy, path, is_warm) for is_warm in (False, True)]
    for solver, cold, warm in zip(path, *results, strict=True):
        assert solver.certified(warm.records).all()
        tolerance = EPS * cold.records["null"]
        assert np.abs(warm.records["primal"] - cold.records["primal"]) <= tolerance
    assert_less_work(*results)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_from_large_to_small_s_the_objective_is_no_higher(
    noisy: SVMProblem, selection: str
) -> None:
    path = [replace(SOLVER, s=s, selection=selection) for s in (NO_OUTLIERS, 4.0, 2.0, 1.0, 0.5)]
    results = [solve_path(noisy, path, is_warm) for is_warm in (False, True)]
    for solver, cold, warm in zip(path, *results, strict=True):
        assert solver.certified(warm.records).all()
        record, v = warm.records[0], np.append(warm.W.to_scipy().toarray()[0], warm.bias[0])
        costs = np.full(len(noisy.y), 0.1)
        objective = naive.truncated_objective(noisy.dense, noisy.y, costs, v, solver.s)
        assert record["objective"] == pytest.approx(objective, rel=1e-6)
        assert record["objective"] <= cold.records["objective"][0] + EPS * record["null"]
    assert_less_work(*results)


def test_a_start_from_its_own_result_ends_soon(noisy: SVMProblem) -> None:
    cold = solve(SOLVER, noisy)
    again = solve(SOLVER, noisy, cold.duals)
    assert again.records["sweeps"] < 0.5 * cold.records["sweeps"]
    assert abs(again.records["objective"] - cold.records["objective"]) < EPS * cold.records["null"]


def test_rows_on_disk_give_the_same_bits(noisy: SVMProblem, tmp_path: Path) -> None:
    data = svm_dataset(noisy, tmp_path / "data")
    build_forest_directory(data, leaf_rows=32)
    solver, results = replace(SOLVER, selection="forest", leaf_rows=32), list[SolvedLabels]()
    start = solve(replace(solver, C=0.05), noisy).duals
    for limit in (None, 60_000):
        state = solver.load_dataset(data, limit)
        results.append(solver.solve(state, FIRST, start=start, keep_duals=True))
    memory, paged = results
    assert (memory.records["bytes_read"], paged.records["bytes_read"] > 0) == (0, True)
    assert memory.W.data.tobytes() == paged.W.data.tobytes()
    assert memory.bias[0] == paged.bias[0]
    np.testing.assert_array_equal(duals_of(memory), duals_of(paged))


def test_a_start_of_another_shape_is_refused(noisy: SVMProblem) -> None:
    with pytest.raises(ParameterError, match="one row of dual variables per label"):
        solve(SOLVER, noisy, csr([0, 0], [], [], 5))
