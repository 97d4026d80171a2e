"""RowSelection of rows: which pages of rows a query visits, and in which order.

A page is a set of rows. All strategies have one contract: a query returns rows that violate the
margin, are not active and are not outliers, and reads only rows whose stored score does not exclude
them. Strategies differ in the pages, in their order, and in when a query ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from xcray.arrays import CSR, Float64, Int64, frozen
from xcray.kernels.training import metric_forest as kernel
from xcray.kernels.training.dual_hinge import Pages
from xcray.kernels.training.metric_forest import NO_PIVOT, PIVOTS, Forest

PAGE_ROWS: Final = 256
TREE_ROWS: Final = 1 << 14
# queries for which an exhausted page is skipped
SKIPPED_QUERIES: Final = 4


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


class ExactScan:
    """All pages in the order of the rows; the rows with the largest violation."""

    is_exhaustive, skipped_queries = True, 0

    def __init__(self, X: CSR) -> None:
        self.pages = _consecutive(X.n_rows)

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in ascending order."""
        return np.arange(self.pages.n_pages)


class RandomPages:
    """Pages of consecutive rows in random order."""

    is_exhaustive, skipped_queries = False, SKIPPED_QUERIES

    def __init__(self, X: CSR) -> None:
        self.pages = _consecutive(X.n_rows)

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all pages in random order."""
        return rng.permutation(self.pages.n_pages)


class ForestLeaves:
    """Leaves of a metric forest, nearest to the hyperplane first.

    norms: (N,) of the rows with the additional feature. seed: of the trees.
    """

    is_exhaustive, skipped_queries = False, SKIPPED_QUERIES

    def __init__(self, X: CSR, norms: Float64, seed: int) -> None:
        self._X, self._norms = X, norms
        self.forest, self.pages = build_forest(X, norms, seed)

    def order(self, v: Float64, rng: np.random.Generator) -> Int64:
        """Return all leaves, best bin first."""
        order = np.empty(self.pages.n_pages, np.int64)
        kernel.order_leaves(self._X, self._norms, self.forest, v, order)
        return order


def make_selection(name: str, X: CSR, norms: Float64, seed: int) -> RowSelection:
    """Return the strategy `name`: "exact", "pages" or "forest"."""
    if name == "forest":
        return ForestLeaves(X, norms, seed)
    return RandomPages(X) if name == "pages" else ExactScan(X)


def build_forest(X: CSR, norms: Float64, seed: int) -> tuple[Forest, Pages]:
    """Return a metric forest of the rows X (N, D), and its leaves as pages.

    Each tree has a random block of at most TREE_ROWS rows. The same input gives the same bits.
    """
    builder = _ForestBuilder(X, norms, np.random.default_rng(seed))
    return builder.build()


class _ForestBuilder:
    """Nodes, in the order of their creation, and leaves of a forest."""

    def __init__(self, X: CSR, norms: Float64, rng: np.random.Generator) -> None:
        self._X, self._norms, self._rng = X, norms, rng
        self._dense = np.zeros((PIVOTS, X.n_cols + 1))
        self._nodes: list[list[int]] = []  # first child, number of children, pivot, leaf
        self._products: list[Float64] = []
        self._leaves: list[Int64] = []

    def build(self) -> tuple[Forest, Pages]:
        """Build all trees."""
        shuffled = self._rng.permutation(self._X.n_rows)
        count = max(1, -(-len(shuffled) // TREE_ROWS))
        roots = [self._add_node(NO_PIVOT, np.zeros(PIVOTS)) for _ in range(count)]
        pending = list(zip(roots, np.array_split(shuffled, count), strict=True))
        while pending:
            node, members = pending.pop()
            pending += self._split(node, members)
        columns = np.array(self._nodes, np.int64).T
        first, children, pivot, leaf = columns
        forest = Forest(
            frozen(first, np.int32),
            frozen(children, np.int32),
            frozen(pivot, np.int64),
            frozen(leaf, np.int32),
            frozen(roots, np.int32),
            frozen(np.stack(self._products), np.float64),
        )
        ends = np.cumsum([0, *map(len, self._leaves)])
        return forest, Pages(frozen(ends, np.int64), frozen(np.concatenate(self._leaves), np.int32))

    def _add_node(self, pivot: int, products: Float64) -> int:
        """Add a node; return its number."""
        self._nodes.append([0, 0, pivot, -1])
        self._products.append(products)
        return len(self._nodes) - 1

    def _split(self, node: int, members: Int64) -> Iterator[tuple[int, Int64]]:
        """Turn a node into a leaf, or yield its children with their rows."""
        if len(members) <= PAGE_ROWS:
            self._nodes[node][3] = len(self._leaves)
            self._leaves.append(members)
            return
        n_pivots = min(PIVOTS, -(-2 * len(members) // PAGE_ROWS))
        pivots = self._rng.choice(members, n_pivots, replace=False)
        nearest = np.empty(len(members), np.int32)
        kernel.assign_to_pivots(self._X, self._norms, members, pivots, nearest, self._dense)
        counts = np.bincount(nearest, minlength=n_pivots)
        if counts.max() == len(members):  # copies of one row
            parts = np.array_split(members, n_pivots)
            pivots = np.array([part[0] for part in parts])
        else:
            parts = [members[nearest == k] for k in np.flatnonzero(counts)]
            pivots = pivots[counts > 0]
        products = np.zeros((PIVOTS, PIVOTS))
        kernel.pivot_products(self._X, self._norms, pivots, products)
        self._nodes[node][:2] = [len(self._nodes), len(parts)]
        for pivot, part, row in zip(pivots, parts, products, strict=False):
            yield self._add_node(int(pivot), row), part


def _consecutive(n_rows: int) -> Pages:
    """Return pages of PAGE_ROWS consecutive rows."""
    ends = np.append(np.arange(0, n_rows, PAGE_ROWS), n_rows)
    return Pages(frozen(ends, np.int64), frozen(np.arange(n_rows), np.int32))
