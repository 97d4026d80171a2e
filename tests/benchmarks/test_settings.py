"""Settings compared on validation rows: no test row is read, and the rules are those they name."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.indexed_bcd.__main__ import Point, Task
from benchmarks.indexed_bcd.settings import Run, hold_out, run, runs_of_seed, states, summarise
from tests.support.svm_problems import svm_problem
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver

C = 0.1


@pytest.fixture(scope="module")
def task() -> Task:
    """Return a task whose test rows are None: to read them is an error."""
    problem = svm_problem(3, n=6_000)
    return Task(problem.X, problem.YT, None, None, C)


def test_validation_rows_are_the_training_rows_that_are_left_out(task: Task) -> None:
    held_out = hold_out(task, 4)
    assert (held_out.X.n_rows, held_out.X_test.shape[0]) == (4_800, 1_200)
    dense = task.X.to_scipy().toarray()
    parts = np.vstack([held_out.X.to_scipy().toarray(), held_out.X_test.toarray()])
    kept_y = np.full(4_800, -1)
    kept_y[held_out.YT.row(0)] = 1
    y = np.full(6_000, -1)
    y[task.YT.row(0)] = 1
    both = np.column_stack([parts, np.concatenate([kept_y, held_out.y_test])])
    expected = np.column_stack([dense, y])
    assert (both[np.lexsort(both.T)] == expected[np.lexsort(expected.T)]).all()
    assert (hold_out(task, 5).YT.row(0)[:50] != held_out.YT.row(0)[:50]).any()


def test_another_least_precision_ends_the_first_queries_elsewhere(task: Task) -> None:
    solver = IndexedBCDSolver(C=C, first_rows=500, query_rows=100, leaf_rows=32)
    held_out = hold_out(task, 0)
    local = states(held_out, solver)["forest"]
    early, late = (run(held_out, solver, local, precision) for precision in (10.0, 0.0))
    assert early.lift == late.lift > 0.0
    assert 0.0 < early.random_support == late.random_support < 1.0
    again = run(held_out, solver, local, 0.0)
    reads = [
        [(point.volumes, point.support) for point in each.points] for each in (early, late, again)
    ]
    assert reads[0] != reads[1] == reads[2]


def test_errors_are_relative_to_the_full_solution(task: Task) -> None:
    runs = runs_of_seed(hold_out(task, 0), 0)
    assert len(runs) == 8
    for each in runs.values():
        assert abs(each.points[-1].error) < 2.0


def test_figures_of_every_seed_are_at_the_points_from_which_errors_remain() -> None:
    errors = (3.0, 0.1, 1.0, 0.15, 0.04)
    points = [Point(error, float(i), i / 10, i) for i, error in enumerate(errors)]
    figures = summarise([Run(points, 2.0, 0.3), Run(points[:-2], 1.0, 0.2)])
    assert figures["lift"] == [2.0, 1.0]
    assert figures["+0.2 volumes"] == [0.3, None]
    assert figures["+0.05 seconds"] == [4.0, None]
    assert figures["end error"] == [0.04, 1.0]
