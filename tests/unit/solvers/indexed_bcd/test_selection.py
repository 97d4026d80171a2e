"""Metric forest and the contract of all selection strategies."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.svm_problems import svm_problem
from xcray.arrays import CSR, csr_from
from xcray.data.metric_forest.forest import LEAF_ROWS, build_forest, extended_norms
from xcray.solvers.indexed_bcd.selection import ForestLeaves
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver


def rows_of(n: int) -> CSR:
    """Return n rows of two features."""
    return svm_problem(1, n=n, d=2).X


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("n", [1, 255, 257, 20_000])
def test_every_row_is_on_one_page(name: str, n: int) -> None:
    problem = svm_problem(1, n=n, d=2)
    solver = IndexedBCDSolver(selection=name)
    selection = solver.load(problem.X, problem.X, problem.YT).selection
    assert sorted(selection.pages.rows.tolist()) == list(range(n))
    assert 1 <= np.diff(selection.pages.indptr).min()
    assert np.diff(selection.pages.indptr).max() <= LEAF_ROWS
    order = selection.order(np.array([1.0, -0.5, 0.2]), np.random.default_rng(0))
    assert sorted(order) == list(range(selection.pages.n_pages))


def test_the_first_leaves_are_near_the_hyperplane() -> None:
    X, v = rows_of(20_000), np.array([1.0, -0.5, 0.2])
    forest = ForestLeaves(build_forest(X))
    dense = np.column_stack([X.to_scipy().toarray(), np.ones(20_000)])
    cosines = np.abs(dense @ v) / (extended_norms(X) * np.linalg.norm(v))
    order, pages = forest.order(v, np.random.default_rng(0)), forest.pages
    means = [cosines[pages.rows[pages.indptr[p] : pages.indptr[p + 1]]].mean() for p in order]
    fifth = len(means) // 5
    assert np.mean(means[:fifth]) < 0.4 * cosines.mean()
    assert np.mean(means[-fifth:]) > 1.2 * cosines.mean()


def test_the_bias_is_part_of_the_metric() -> None:
    X = np.linspace(-4.0, 4.0, 20_000, dtype=np.float32)[:, None]
    forest = ForestLeaves(build_forest(csr_from(X)))
    for boundary in (-2.0, 0.5):
        order = forest.order(np.array([1.0, -boundary]), np.random.default_rng(0))
        pages = forest.pages
        first = X[pages.rows[pages.indptr[order[0]] : pages.indptr[order[0] + 1]], 0]
        assert np.abs(first - boundary).max() < 0.7


def test_a_forest_of_equal_rows_has_small_leaves() -> None:
    X = csr_from(np.ones((5_000, 3), np.float32))
    indexed = build_forest(X)
    forest, pages = indexed.forest, indexed.pages
    assert sorted(pages.rows.tolist()) == list(range(5_000))
    assert np.diff(pages.indptr).max() <= LEAF_ROWS
    assert (forest.leaf >= 0).sum() == pages.n_pages


def test_leaves_have_the_size_of_the_parameter() -> None:
    small, large = (build_forest(rows_of(3_000), leaf_rows) for leaf_rows in (32, 512))
    assert np.diff(small.pages.indptr).max() <= 32
    assert 32 < np.diff(large.pages.indptr).max() <= 512


def test_first_rows_are_random_rows_of_few_pages() -> None:
    forest = ForestLeaves(build_forest(rows_of(40_000)))
    positives = np.arange(0, 40_000, 4)
    first = forest.first_rows(positives, 1_000, np.random.default_rng(0))
    assert 200 < np.isin(first.rows, positives).sum() < 300
    assert len(first.rows) == 1_000 < first.reads < 20_000
    assert (np.diff(first.rows) > 0).all()


@pytest.mark.parametrize("name", SELECTIONS)
def test_first_rows_have_positives_of_rare_classes(name: str) -> None:
    problem = svm_problem(1, n=40_000, d=2)
    solver = IndexedBCDSolver(selection=name)
    selection = solver.load(problem.X, problem.X, problem.YT).selection
    for positives, wanted in (([7], 1), (range(0, 40_000, 8_000), 4)):
        first = selection.first_rows(np.array(positives), 1_000, np.random.default_rng(0))
        assert np.isin(positives, first.rows).sum() >= wanted
