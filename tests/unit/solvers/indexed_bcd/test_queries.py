"""Queries of every selection strategy, against an exact scan under the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.indexed_bcd.queries import RecordedTraining, found_within, medians
from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, svm_dataset, svm_problem
from xcray.arrays import Pattern, csr_from, frozen
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.kernels.sparse import transpose
from xcray.solvers.indexed_bcd.label import QueryResult
from xcray.solvers.indexed_bcd.selection import AdaptiveLeaves, RandomLeaves, RowSelection
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver

PARAMS = {"C": 0.1, "first_rows": 100, "query_rows": 50, "leaf_rows": 32}


class CheckedTraining(RecordedTraining):
    """A training that compares every query with the rows that a naive scan finds."""

    def __init__(self, problem: SVMProblem, name: str, seed: int = 0, **more: float) -> None:
        solver = IndexedBCDSolver(**PARAMS | more, selection=name, seed=seed)
        state = solver.load(problem.X, transpose(problem.X), problem.YT)
        super().__init__(problem.X.to_scipy().astype(np.float64), state, solver)
        self._problem, self.selection = problem, state.selection

    def query(self, n: int) -> QueryResult:
        """Return the result; check its rows and the recorded figures."""
        problem, reference = self._problem, self._reference
        is_truncated = bool(self._state.status.any())  # the first queries know no outliers
        expected = naive.boundary_rows(
            problem.dense,
            problem.y,
            self._state.v,
            reference.v,
            reference.s if is_truncated else np.inf,
        )
        rows_at = self.selection.pages.rows
        expected[rows_at[self._active.rows]] = False
        result = super().query(n)
        found = rows_at[result.rows]
        assert expected[found].all()
        assert len(np.unique(found)) == len(found) <= result.found <= result.reads
        figures = self.figures[-1]
        assert (figures.boundary, figures.found) == (expected.sum(), result.found)
        assert figures.recall == result.found / max(expected.sum(), 1)
        assert figures.precision == result.found / max(result.reads, 1)
        return result


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=6_000)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_query_returns_boundary_rows_of_the_exact_scan(
    noisy: SVMProblem, name: str, seed: int
) -> None:
    training = CheckedTraining(noisy, name, seed)
    training.train()
    assert training.queries == len(training.figures) >= 3
    if name == "exact":
        assert all(figures.found == figures.boundary for figures in training.figures)
    else:
        assert medians(training.figures)["recall"] < 1.0


@pytest.mark.parametrize("name", SELECTIONS)
def test_without_a_limit_the_first_query_finds_all(noisy: SVMProblem, name: str) -> None:
    training = CheckedTraining(noisy, name, query_rows=6_000)
    training.train()
    assert training.figures[0].found == training.figures[0].boundary > 100


def test_the_forest_has_a_higher_precision_than_random_pages() -> None:
    problem = svm_problem(5, n=20_000, d=3, flipped=0.0)
    precision = {}
    for name in SELECTIONS:
        training = CheckedTraining(problem, name, C=100.0)
        training.train()
        precision[name] = training.figures[0].precision
    assert precision["forest"] > 2.0 * precision["pages"]
    assert precision["pages"] < 2.0 * precision["exact"]


def test_rows_within_a_share_of_an_order() -> None:
    selection: RowSelection = CheckedTraining(svm_problem(1, n=1_024), "pages").selection
    boundary = np.zeros(1_024, bool)
    boundary[[0, 300, 600, 1_000]] = True
    assert found_within(boundary, selection, np.array([2, 0, 1, 3]), 0.5) == 0.5
    assert found_within(boundary, selection, np.arange(4), 1.0) == 1.0
    assert found_within(boundary, selection, np.arange(4), 0.2) == 0.0


@pytest.mark.parametrize(("C", "is_random"), [(100.0, False), (0.001, True)])
def test_auto_reads_random_leaves_where_the_order_gains_little(
    tmp_path: Path, C: float, is_random: bool
) -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    y = np.where(X.sum(1) > 0.5, 1, -1)
    positives = np.flatnonzero(y > 0)
    YT = Pattern(frozen([0, len(positives)], np.int64), frozen(positives, np.int32), len(y))
    data = svm_dataset(SVMProblem(csr_from(X), y, YT), tmp_path / "data")
    build_forest_directory(data, 32)
    solver = IndexedBCDSolver(C=C, leaf_rows=32, first_rows=1_000, query_rows=200)
    local = solver.load_dataset(data, 400_000)
    assert isinstance(local.selection, AdaptiveLeaves)
    training = RecordedTraining(data.train.X.to_scipy().astype(np.float64), local, solver)
    training.train()
    first = training.figures[0]
    # with a small C most rows are near the boundary, so no order can gain much
    assert (first.precision < 1.5 * first.base) == is_random
    assert isinstance(training._selection, RandomLeaves) == is_random
    always = IndexedBCDSolver(**solver.as_dict() | {"selection": "forest"})
    assert always.load_dataset(data, 400_000).selection.fallback is None
