"""Queries of every selection strategy, against an exact scan under the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, load, svm_dataset, svm_problem
from xcray.arrays import Pattern, csr_from, frozen
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.solvers.indexed_bcd.label import LabelTraining, QueryResult
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.selection import AdaptiveLeaves, RandomLeaves
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver

PARAMS = {"C": 0.1, "first_rows": 100, "query_rows": 50, "leaf_rows": 32}


class QueryFigures(NamedTuple):
    """Figures of one query: boundary rows, those found, rows read, and inactive rows."""

    boundary: int
    found: int
    reads: int
    inactive: int

    @property
    def precision(self) -> float:
        """Boundary rows per row read."""
        return self.found / max(self.reads, 1)


class CheckedTraining(LabelTraining):
    """A training that compares every query with the rows that a naive scan finds."""

    def __init__(self, problem: SVMProblem, local: HingeState, solver: IndexedBCDSolver) -> None:
        settings = solver.label_settings(local, 0)
        parts = (local.store, local.scratch, local.selection, local.positives(0))
        super().__init__(*parts, 0, settings)
        self._problem, self._rows_at = problem, local.selection.pages.rows
        self.figures = list[QueryFigures]()

    def query(self, n: int) -> QueryResult:
        """Return the result; check its rows, and record its figures."""
        problem, reference = self._problem, self._reference
        is_truncated = bool(self._state.status.any())  # the first queries know no outliers
        expected = naive.boundary_rows(
            problem.dense,
            problem.y,
            self._state.v,
            reference.v,
            reference.s if is_truncated else np.inf,
        )
        expected[self._rows_at[self._active.rows]] = False
        inactive = int((~self._state.is_active).sum())
        result = super().query(n)
        found = self._rows_at[result.rows]
        assert expected[found].all()
        assert len(np.unique(found)) == len(found) <= result.found <= result.reads
        counts = (int(expected.sum()), result.found, result.reads, inactive)
        self.figures.append(QueryFigures(*counts))
        return result


def trained(problem: SVMProblem, name: str, seed: int = 0, **more: float) -> list[QueryFigures]:
    """Return the figures of the queries of a training."""
    solver = IndexedBCDSolver(**PARAMS | more, selection=name, seed=seed)
    training = CheckedTraining(problem, load(solver, problem), solver)
    training.train()
    assert training.queries == len(training.figures)
    return training.figures


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=6_000)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_query_returns_boundary_rows_of_the_exact_scan(
    noisy: SVMProblem, name: str, seed: int
) -> None:
    queries = trained(noisy, name, seed)
    assert len(queries) >= 3
    recalls = [each.found / max(each.boundary, 1) for each in queries]
    assert min(recalls) == 1.0 if name == "exact" else np.median(recalls) < 1.0


@pytest.mark.parametrize("name", SELECTIONS)
def test_without_a_limit_the_first_query_finds_all(noisy: SVMProblem, name: str) -> None:
    first = trained(noisy, name, query_rows=6_000)[0]
    assert first.found == first.boundary > 100


def test_the_forest_has_a_higher_precision_than_random_pages() -> None:
    problem = svm_problem(5, n=20_000, d=3, flipped=0.0)
    precision = {name: trained(problem, name, C=100.0)[0].precision for name in SELECTIONS}
    assert precision["forest"] > 2.0 * precision["pages"]
    assert precision["pages"] < 2.0 * precision["exact"]


@pytest.mark.parametrize(("C", "is_random"), [(100.0, False), (0.001, True)])
def test_auto_reads_random_leaves_where_the_order_gains_little(
    tmp_path: Path, C: float, is_random: bool
) -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    y = np.where(X.sum(1) > 0.5, 1, -1)
    positives = np.flatnonzero(y > 0)
    YT = Pattern(frozen([0, len(positives)], np.int64), frozen(positives, np.int32), len(y))
    problem = SVMProblem(csr_from(X), y, YT)
    data = svm_dataset(problem, tmp_path / "data")
    build_forest_directory(data, 32)
    solver = IndexedBCDSolver(C=C, leaf_rows=32, first_rows=1_000, query_rows=200)
    local = solver.load_dataset(data, 400_000)
    assert isinstance(local.selection, AdaptiveLeaves)
    training = CheckedTraining(problem, local, solver)
    training.train()
    first = training.figures[0]
    # with a small C most rows are near the boundary, so no order can gain much
    assert (first.precision < 1.5 * first.boundary / max(first.inactive, 1)) == is_random
    assert isinstance(training._selection, RandomLeaves) == is_random
    always = IndexedBCDSolver(**solver.as_dict() | {"selection": "forest"})
    assert always.load_dataset(data, 400_000).selection.fallback is None
