"""Selection of rows: which pages of rows a query visits, and in which order.

A page is a set of rows. All strategies have one contract: a query returns rows that violate the
margin, are not active and are not outliers, and reads only rows whose stored score does not exclude
them. Strategies differ in the pages, in their order, and in when a query ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np

from xcray.arrays import CSR, Float64, Int64, frozen
from xcray.kernels.training import metric_forest as kernel
from xcray.kernels.training.dual_hinge import Pages
from xcray.solvers.indexed_bcd.forest import LEAF_ROWS, IndexedRows

# queries for which an exhausted page is skipped
SKIPPED_QUERIES: Final = 4


class FirstRows(NamedTuple):
    """Rows of the first rough solution. rows: positions, ascending; reads: rows that are read."""

    rows: Int64
    reads: int


class RowSelection(Protocol):
    """Strategy of a solver; shared by all classes and threads, and read-only.

    pages: of rows. is_exhaustive: whether a query visits all pages and returns the rows that
    violate the margin most; others end at the first pages that contain enough of them.
    skipped_queries: for how many queries an exhausted page is skipped.
    """

    pages: Pages
    is_exhaustive: bool
    skipped_queries: int

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return page numbers in the order of a query with weights v (D + 1,)."""

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return about `count` rows, half of them positives if there are enough.

        positives: (n,) ascending positions of the rows of the class.
        """


class _ConsecutivePages:
    """Pages of consecutive rows, and first rows from anywhere."""

    def __init__(self, X: CSR) -> None:
        ends = np.append(np.arange(0, X.n_rows, LEAF_ROWS), X.n_rows)
        rows = frozen(np.arange(X.n_rows), np.int32)
        self.pages = Pages(frozen(ends, np.int64), rows)

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return random rows, see `RowSelection`."""
        return _sample(np.arange(len(self.pages.rows)), positives, count, rng)


class ExactScan(_ConsecutivePages):
    """All pages in the order of the rows; the rows with the largest violation."""

    is_exhaustive, skipped_queries = True, 0

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in ascending order."""
        return np.arange(self.pages.n_pages)


class RandomPages(_ConsecutivePages):
    """Pages of consecutive rows in random order."""

    is_exhaustive, skipped_queries = False, SKIPPED_QUERIES

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in random order."""
        return rng.permutation(self.pages.n_pages)


class ForestLeaves:
    """Leaves of a metric forest, nearest to the hyperplane first."""

    is_exhaustive, skipped_queries = False, SKIPPED_QUERIES

    def __init__(self, indexed: IndexedRows) -> None:
        self.indexed, self.pages = indexed, indexed.pages

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves, best bin first."""
        order = np.empty(self.pages.n_pages, np.int64)
        kernel.order_leaves(self.indexed.forest, v, order)
        return order

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return rows of random trees, and of the pages of a few random positives.

        A tree is a random sample of all rows and lies in consecutive pages, so few reads find many
        rows. The pages of positives matter to rare classes.
        """
        indptr, trees = self.pages.indptr, self.indexed.trees
        chosen = np.zeros(self.pages.n_pages, bool)
        found = 0
        for tree in rng.permutation(len(trees) - 1):
            if found >= count:
                break
            first, last = np.searchsorted(indptr, trees[tree : tree + 2])
            chosen[first:last] = True
            found += int(trees[tree + 1] - trees[tree])
        some = rng.choice(positives, min(len(positives), 1 + count // LEAF_ROWS), replace=False)
        chosen[np.searchsorted(indptr, some, "right") - 1] = True
        readable = np.flatnonzero(np.repeat(chosen, np.diff(indptr)))
        rows, _ = _sample(readable, positives, count, rng)
        return FirstRows(rows, len(readable))


def _sample(readable: Int64, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
    """Return random rows of `readable` (ascending), half of them positives if there are enough."""
    half = -(-count // 2)
    is_positive = np.isin(readable, positives, assume_unique=True)
    parts = [
        rng.choice(each, min(half, len(each)), replace=False)
        for each in (readable[is_positive], readable[~is_positive])
    ]
    rows = np.sort(np.concatenate(parts))
    return FirstRows(rows, len(rows))


class LeafScan(ForestLeaves):
    """All leaves in the order on disk; the rows with the largest violation."""

    is_exhaustive, skipped_queries = True, 0

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves in ascending order."""
        return np.arange(self.pages.n_pages)


class RandomLeaves(ForestLeaves):
    """Leaves in random order."""

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves in random order."""
        return rng.permutation(self.pages.n_pages)


def make_selection(name: str, X: CSR) -> RowSelection:
    """Return the strategy `name`, "exact" or "pages", for rows X (N, D) in memory."""
    return ExactScan(X) if name == "exact" else RandomPages(X)


def make_leaf_selection(name: str, indexed: IndexedRows) -> RowSelection:
    """Return the strategy `name`, "exact", "pages" or "forest", whose pages are leaves."""
    return {"exact": LeafScan, "pages": RandomLeaves, "forest": ForestLeaves}[name](indexed)
