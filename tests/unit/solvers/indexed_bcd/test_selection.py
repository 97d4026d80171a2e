"""Metric forest and the contract of all selection strategies."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.svm_problems import svm_problem
from xcray.arrays import csr_from
from xcray.kernels.training.dual_hinge import HingeRows
from xcray.solvers.indexed_bcd.selection import (
    PAGE_ROWS,
    ForestLeaves,
    build_forest,
    make_selection,
)
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver


def rows_of(n: int) -> HingeRows:
    """Return n rows of two features."""
    problem = svm_problem(1, n=n, d=2)
    return IndexedBCDSolver().load(problem.X, problem.X, problem.YT).rows


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("n", [1, 255, 257, 20_000])
def test_every_row_is_on_one_page(name: str, n: int) -> None:
    rows = rows_of(n)
    selection = make_selection(name, rows.X, rows.norms, 0)
    assert sorted(selection.pages.rows.tolist()) == list(range(n))
    assert 1 <= np.diff(selection.pages.indptr).min()
    assert np.diff(selection.pages.indptr).max() <= PAGE_ROWS
    order = selection.order(np.array([1.0, -0.5, 0.2]), np.random.default_rng(0))
    assert sorted(order) == list(range(selection.pages.n_pages))


def test_the_first_leaves_are_near_the_hyperplane() -> None:
    rows, v = rows_of(20_000), np.array([1.0, -0.5, 0.2])
    forest = ForestLeaves(rows.X, rows.norms, 0)
    dense = np.column_stack([rows.X.to_scipy().toarray(), np.ones(20_000)])
    cosines = np.abs(dense @ v) / (rows.norms * np.linalg.norm(v))
    order, pages = forest.order(v, np.random.default_rng(0)), forest.pages
    means = [cosines[pages.rows[pages.indptr[p] : pages.indptr[p + 1]]].mean() for p in order]
    fifth = len(means) // 5
    assert np.mean(means[:fifth]) < 0.4 * cosines.mean()
    assert np.mean(means[-fifth:]) > 1.2 * cosines.mean()


def test_the_bias_is_part_of_the_metric() -> None:
    X = np.linspace(-4.0, 4.0, 20_000, dtype=np.float32)[:, None]
    norms = np.sqrt(X[:, 0].astype(np.float64) ** 2 + 1.0)
    forest = ForestLeaves(csr_from(X), norms, 0)
    for boundary in (-2.0, 0.5):
        order = forest.order(np.array([1.0, -boundary]), np.random.default_rng(0))
        pages = forest.pages
        first = X[pages.rows[pages.indptr[order[0]] : pages.indptr[order[0] + 1]], 0]
        assert np.abs(first - boundary).max() < 0.7


def test_a_forest_of_equal_rows_has_small_leaves() -> None:
    X = csr_from(np.ones((5_000, 3), np.float32))
    forest, pages = build_forest(X, np.full(5_000, 2.0), 0)
    assert sorted(pages.rows.tolist()) == list(range(5_000))
    assert np.diff(pages.indptr).max() <= PAGE_ROWS
    assert (forest.leaf >= 0).sum() == pages.n_pages


def test_the_same_seed_gives_the_same_forest() -> None:
    rows = rows_of(3_000)
    (one, pages), (two, same_pages), (_, other) = (
        build_forest(rows.X, rows.norms, seed) for seed in (0, 0, 1)
    )
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True))
    assert pages.rows.tobytes() == same_pages.rows.tobytes() != other.rows.tobytes()
