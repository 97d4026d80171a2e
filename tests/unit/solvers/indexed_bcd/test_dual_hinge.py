"""Kernels of the dual hinge problem, compared with naive references in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, svm_problem
from xcray.arrays import csr, frozen
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.dual_hinge import INLIER, OUTLIER, UNKNOWN, DualState, HingeRows
from xcray.solvers.indexed_bcd.row_store import RowsInMemory
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver

NO_OUTLIERS = 1e30


@pytest.fixture(scope="module")
def small() -> SVMProblem:
    """Return a problem of 120 rows."""
    return svm_problem(0, n=120, d=5)


def start(problem: SVMProblem, C: float = 0.3) -> tuple[HingeRows, DualState]:
    """Return the rows and the initial state of the label."""
    local = IndexedBCDSolver(C=C).load(problem.X, csr([0], [], [], 1), problem.YT)
    state = local.scratch
    state.y[:] = problem.y
    for array, value in (
        (state.alpha, 0.0),
        (state.v, 0.0),
        (state.scored_at, -1.0),
        (state.status, UNKNOWN),
        (state.is_active, False),
    ):
        array.fill(value)
    assert isinstance(local.store, RowsInMemory)
    return local.store.rows, state


def one_page(n: int) -> kernel.Pages:
    """Return a page with all rows."""
    return kernel.Pages(frozen([0, n], np.int64), frozen(np.arange(n), np.int32))


def test_sweeps_are_those_of_the_reference(small: SVMProblem) -> None:
    rows, state = start(small)
    for _ in range(7):
        kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    v, dual = naive.solve_dual(small.dense, small.y, rows.costs, 7)
    assert state.v == pytest.approx(v, rel=1e-9, abs=1e-9)
    assert state.alpha.sum() - 0.5 * state.v @ state.v == pytest.approx(dual, rel=1e-9)


def test_the_loss_of_rows_is_that_of_the_reference(small: SVMProblem) -> None:
    rows, state = start(small)
    kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    loss = kernel.hinge_sum(rows, state, np.arange(120), 0.0) + 0.5 * state.v @ state.v
    assert loss == pytest.approx(naive.primal(small.dense, small.y, rows.costs, state.v))


def test_shrinking_moves_rows_at_a_bound_to_the_end(small: SVMProblem) -> None:
    rows, state = start(small)
    for _ in range(50):
        kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    order = np.arange(120)
    before = state.alpha.copy()
    remaining, _, _ = kernel.sweep(rows, state, order, 0.01, -0.01)
    assert sorted(order) == list(range(120))
    assert 0 < remaining < 120
    is_inside = (before > 0.0) & (before < rows.costs)
    assert not is_inside[order[remaining:]].any()
    assert state.alpha[order[remaining:]].tolist() == before[order[remaining:]].tolist()


def test_dropped_rows_leave_the_weights(small: SVMProblem) -> None:
    rows, state = start(small)
    kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    kernel.drop_rows(rows, state, np.arange(0, 120, 2))
    Z = small.y[:, None] * np.column_stack([small.dense, np.ones(120)])
    assert state.alpha[::2].tolist() == [0.0] * 60
    assert state.v == pytest.approx(Z.T @ state.alpha, abs=1e-9)


def test_a_query_returns_the_violating_rows_that_are_not_outliers(small: SVMProblem) -> None:
    rows, state = start(small)
    kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    reference = kernel.OutlierRule(state.v * 0.5, 0.2)
    state.is_active[:10] = True
    out = np.empty(240, np.int64)
    _, count, reads = kernel.query_pages(
        rows,
        state,
        reference,
        0.0,
        one_page(120),
        np.arange(1),
        (np.zeros(1, np.int32), 4),
        (0, 1),
        kernel.Query(120, 121),
        out,
    )
    at_reference = naive.margins(small.dense, small.y, reference.v)
    now = naive.margins(small.dense, small.y, state.v)
    expected = (now < 1.0) & (at_reference >= -0.2) & (np.arange(120) >= 10)
    assert out[:count].tolist() == np.flatnonzero(expected).tolist()
    assert reads == 120
    assert (state.status[10:] == np.where(at_reference < -0.2, OUTLIER, INLIER)[10:]).all()


def test_rows_that_bounds_exclude_are_not_read_and_have_no_loss(small: SVMProblem) -> None:
    rows, state = start(small)
    reference, pages = kernel.OutlierRule(state.v.copy(), NO_OUTLIERS), one_page(120)
    for _ in range(20):
        kernel.sweep(rows, state, np.arange(120), np.inf, -np.inf)
    _, reads = kernel.refresh_pages(rows, state, reference, 1.0, pages, (0, 1), 120)
    before, move = state.v.copy(), 0.05
    state.v[:] += move / np.sqrt(len(state.v))
    kernel.refresh_pages(rows, state, reference, 1.0 + move, pages, (0, 1), 120)
    not_read = state.scored_at == 1.0
    assert reads == 120
    assert 10 < not_read.sum() < 110
    assert (naive.margins(small.dense, small.y, state.v)[not_read] > 1.0).all()
    exact = naive.margins(small.dense, small.y, state.v)[~not_read]
    assert (small.y * state.scores)[~not_read] == pytest.approx(exact, abs=1e-9)
    stored = naive.margins(small.dense, small.y, before)[not_read]
    assert (small.y * state.scores)[not_read] == pytest.approx(stored, abs=1e-9)
