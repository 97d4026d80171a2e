"""Selection of rows: which pages of rows a query visits, and in which order.

A page is a set of rows. All strategies have one contract: a query returns rows that violate the
margin, are not active and are not outliers, and reads only rows whose stored score does not exclude
them. Strategies differ in the pages, in their order, and in when a query ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np

from xcray.arrays import CSR, Float64, Int64, distinct, frozen
from xcray.data.metric_forest.forest import LEAF_ROWS, SEED, IndexedRows
from xcray.kernels.training import metric_forest as kernel
from xcray.kernels.training.dual_hinge import Pages

ZONES: Final = 64
# queries for which an exhausted page is skipped
SKIPPED_QUERIES: Final = 4
# rows that a query adds at most, as a share of the active rows
GROWTH: Final = 0.5
SCAN_GROWTH: Final = 3.0  # of a query that reads all rows


class FirstRows(NamedTuple):
    """Rows of the first rough solution. rows: positions, ascending; reads: rows that are read."""

    rows: Int64
    reads: int


class RowSelection(Protocol):
    """Strategy of a solver; shared by all labels and threads, and read-only.

    pages: of rows. is_exhaustive: whether a query visits all pages and returns random violating
    rows; others end at the first pages that contain enough of them.
    skipped_queries: for how many queries an exhausted page is skipped. growth: a query adds at most
    this share of the active rows. zones: (N,) uint8; rows of one zone are stored together while
    they are active. A zone has random pages. fallback: strategy with the same pages, for labels
    whose first query finds little more than random reads; None to keep this one.
    """

    pages: Pages
    is_exhaustive: bool
    skipped_queries: int
    growth: float
    zones: np.ndarray
    fallback: RowSelection | None = None

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return page numbers in the order of a query with weights v (D + 1,)."""

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return `count` random rows, and some positives if there are few among them.

        positives: (n,) ascending positions of the rows of the label.
        """


class _ConsecutivePages:
    """Pages of consecutive rows, and first rows from anywhere."""

    fallback: RowSelection | None = None

    def __init__(self, X: CSR) -> None:
        ends = np.append(np.arange(0, X.n_rows, LEAF_ROWS), X.n_rows)
        rows = frozen(np.arange(X.n_rows), np.int32)
        self.pages = Pages(frozen(ends, np.int64), rows)
        self.zones = frozen(np.zeros(X.n_rows), np.uint8)

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return random rows, see `RowSelection`."""
        n = len(self.pages.rows)
        rows = rng.choice(n, min(count, n), replace=False)
        rare = _rare_positives(rows, positives, count, rng)
        rows = distinct(np.concatenate([rows, rare]))
        return FirstRows(rows, len(rows))


class ExactScan(_ConsecutivePages):
    """All pages in the order of the rows."""

    is_exhaustive, skipped_queries, growth = True, 0, SCAN_GROWTH

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in ascending order."""
        return np.arange(self.pages.n_pages)


class RandomPages(_ConsecutivePages):
    """Pages of consecutive rows in random order."""

    is_exhaustive, skipped_queries, growth = False, SKIPPED_QUERIES, GROWTH

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in random order."""
        return rng.permutation(self.pages.n_pages)


class ForestLeaves:
    """Leaves of a metric forest, nearest to the hyperplane first."""

    fallback: RowSelection | None = None
    is_exhaustive, skipped_queries, growth = False, SKIPPED_QUERIES, GROWTH

    def __init__(self, indexed: IndexedRows) -> None:
        self.indexed, self.pages = indexed, indexed.pages
        zone_of = np.random.default_rng(SEED).permutation(self.pages.n_pages) % ZONES
        self.zones = frozen(np.repeat(zone_of, np.diff(self.pages.indptr)), np.uint8)

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves, best bin first."""
        order = np.empty(self.pages.n_pages, np.int64)
        kernel.order_leaves(self.indexed.forest, v, order)
        return order

    def first_rows(self, positives: Int64, count: int, rng: np.random.Generator) -> FirstRows:
        """Return rows of random trees, and of the pages of a few positives if the label is rare.

        A tree is a random sample of all rows and lies in consecutive pages, so few reads find many
        rows.
        """
        indptr, trees = self.pages.indptr, self.indexed.trees
        chosen, reads = list[Int64](), 0
        for tree in rng.permutation(len(trees) - 1):
            if reads >= count:
                break
            chosen.append(np.arange(trees[tree], trees[tree + 1]))
            reads += len(chosen[-1])
        readable = np.concatenate(chosen)
        rows = rng.choice(readable, min(count, reads), replace=False)
        within = np.intersect1d(positives, readable, assume_unique=True)
        near = _rare_positives(rows, within, count, rng)
        rare = _rare_positives(readable, positives, count, rng)
        pages = distinct(np.searchsorted(indptr, rare, "right") - 1)
        reads += int((indptr[pages + 1] - indptr[pages]).sum())
        return FirstRows(distinct(np.concatenate([rows, near, rare])), reads)


def _rare_positives(rows: Int64, positives: Int64, count: int, rng: np.random.Generator) -> Int64:
    """Return random positives that are not in `rows`, if there are few in `rows`."""
    wanted = 1 + count // LEAF_ROWS
    missing = wanted - int(np.isin(rows, positives).sum())
    others = np.setdiff1d(positives, rows, assume_unique=True) if missing > 0 else positives[:0]
    return rng.choice(others, min(len(others), max(missing, 0)), replace=False)


class LeafScan(ForestLeaves):
    """All leaves in the order on disk."""

    is_exhaustive, skipped_queries, growth = True, 0, SCAN_GROWTH

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves in ascending order."""
        return np.arange(self.pages.n_pages)


class RandomLeaves(ForestLeaves):
    """Leaves in random order."""

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves in random order."""
        return rng.permutation(self.pages.n_pages)


class AdaptiveLeaves(ForestLeaves):
    """Leaves nearest to the hyperplane first, or at random for labels where this gains little.

    If most rows are near the boundary, or leaves do not separate those that are, the order finds
    hardly more than random reads, and its rows are no random sample.
    """

    def __init__(self, indexed: IndexedRows) -> None:
        super().__init__(indexed)
        self.fallback = RandomLeaves(indexed)


def make_selection(name: str, X: CSR) -> RowSelection:
    """Return the strategy "exact", or that of "pages" and "auto", for rows X (N, D) in memory."""
    return ExactScan(X) if name == "exact" else RandomPages(X)


def make_leaf_selection(name: str, indexed: IndexedRows) -> RowSelection:
    """Return a strategy whose pages are leaves: "exact", "pages", "forest", or "auto"."""
    strategies: dict[str, type[ForestLeaves]] = {
        "exact": LeafScan,
        "pages": RandomLeaves,
        "forest": ForestLeaves,
        "auto": AdaptiveLeaves,
    }
    return strategies[name](indexed)
