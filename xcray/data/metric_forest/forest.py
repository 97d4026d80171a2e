"""Construction of a metric forest: one tree per random block of rows.

Every tree depends on its block and its number only, so a forest has the same bits whether its
blocks come from memory or from disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, csr, frozen, stack_rows
from xcray.kernels.sparse import row_norms_sq, take_rows
from xcray.kernels.training import metric_forest as kernel
from xcray.kernels.training.dual_hinge import Pages
from xcray.kernels.training.metric_forest import PIVOTS, Forest

LEAF_ROWS: Final = 256
TREE_ROWS: Final = 1 << 14
SEED: Final = 0  # constant, so that one forest serves every job


class IndexedRows(NamedTuple):
    """A forest and the order of its rows.

    pages: the leaves. positions: (N,) on the pages, by row of the data. norms: (N,) by position.
    trees: (trees + 1,) first position of each tree; each tree is a random sample of the rows.
    """

    forest: Forest
    pages: Pages
    positions: Int32
    norms: Float64
    trees: Int64


class Tree(NamedTuple):
    """One tree. first_child, n_children, leaf, products, pivots: of its nodes, see `Forest`.

    leaves: row numbers in the block of each leaf.
    """

    first_child: Int64
    n_children: Int64
    leaf: Int64
    products: Float64
    pivots: CSR
    leaves: list[Int64]


def extended_norms(X: CSR) -> Float64:
    """Return the norms of rows with an additional feature of value 1: (N,)."""
    return frozen(np.sqrt(row_norms_sq(X) + 1.0), np.float64)


def assign_trees(n_rows: int) -> Int32:
    """Return the tree of each row (N,): random blocks of equal size, at most TREE_ROWS."""
    trees = np.empty(n_rows, np.int32)
    shuffled = np.random.default_rng(SEED).permutation(n_rows)
    count = max(1, -(-n_rows // TREE_ROWS))
    for tree, rows in enumerate(np.array_split(shuffled, count)):
        trees[rows] = tree
    return trees


def build_forest(X: CSR, leaf_rows: int = LEAF_ROWS) -> IndexedRows:
    """Return a metric forest of the rows X (N, D) in memory. The same input gives the same bits."""
    tree_of = assign_trees(X.n_rows)
    order = np.argsort(tree_of, kind="stable")
    merged = ForestBuilder(X.n_cols)
    members = list[Int64]()
    for tree, rows in enumerate(np.split(order, np.cumsum(np.bincount(tree_of))[:-1])):
        built = build_tree(take_rows(X, rows), tree, leaf_rows)
        merged.add(built)
        members += [rows[leaf] for leaf in built.leaves]
    return merged.finish(np.concatenate(members), extended_norms(X))


def build_tree(X: CSR, tree: int, leaf_rows: int) -> Tree:
    """Return the tree with number `tree` of a block X (n, D), in ascending order of the rows."""
    return _TreeBuilder(X, np.random.default_rng([SEED, tree]), leaf_rows).build()


class ForestBuilder:
    """Merges trees, in the order of their numbers."""

    def __init__(self, n_cols: int) -> None:
        self._n_cols = n_cols
        self._trees: list[Tree] = []
        self._ends = [0]  # of the leaves

    def add(self, tree: Tree) -> None:
        """Add the next tree; its leaves are the next pages."""
        self._ends += (self._ends[-1] + np.cumsum([len(leaf) for leaf in tree.leaves])).tolist()
        self._trees.append(tree._replace(leaves=[np.empty(len(tree.leaves), np.int64)]))

    def finish(self, rows: Int64, norms: Float64) -> IndexedRows:
        """Return the forest. rows: (N,) row of the data by position; norms: (N,) by row."""
        trees = self._trees
        roots = np.cumsum([0, *(len(tree.leaf) for tree in trees)])
        pages = np.cumsum([0, *(len(tree.leaves[0]) for tree in trees)])
        pivots = stack_rows([tree.pivots for tree in trees], self._n_cols)
        first = [tree.first_child + root for tree, root in zip(trees, roots, strict=False)]
        leaf = [
            np.where(tree.leaf >= 0, tree.leaf + page, -1)
            for tree, page in zip(trees, pages, strict=False)
        ]
        forest = Forest(
            frozen(np.concatenate(first), np.int32),
            frozen(np.concatenate([tree.n_children for tree in trees]), np.int32),
            frozen(np.concatenate(leaf), np.int32),
            frozen(roots[:-1], np.int32),
            frozen(np.concatenate([tree.products for tree in trees]), np.float64),
            pivots,
            extended_norms(pivots),
        )
        indptr = frozen(self._ends, np.int64)
        positions = np.empty(len(rows), np.int32)
        positions[rows] = np.arange(len(rows))
        return IndexedRows(
            forest,
            Pages(indptr, frozen(rows, np.int32)),
            frozen(positions, np.int32),
            frozen(norms[rows], np.float64),
            frozen(indptr[pages], np.int64),
        )


class _TreeBuilder:
    """Nodes of one tree in the order of their creation, and its leaves."""

    def __init__(self, X: CSR, rng: np.random.Generator, leaf_rows: int) -> None:
        self._X, self._norms, self._rng, self._leaf_rows = X, extended_norms(X), rng, leaf_rows
        self._dense = np.zeros((PIVOTS, X.n_cols + 1))
        self._nodes: list[list[int]] = []  # first child, number of children, pivot, leaf
        self._products: list[Float64] = []
        self._leaves: list[Int64] = []

    def build(self) -> Tree:
        """Build the tree."""
        root = self._add_node(-1, np.zeros(PIVOTS))
        pending = [(root, np.arange(self._X.n_rows))]
        while pending:
            node, members = pending.pop()
            pending += self._split(node, members)
        first, children, pivot, leaf = np.array(self._nodes, np.int64).T
        root_row = csr([0, 0], [], [], self._X.n_cols)
        pivots = stack_rows([root_row, take_rows(self._X, pivot[1:])], self._X.n_cols)
        return Tree(first, children, leaf, np.stack(self._products), pivots, self._leaves)

    def _add_node(self, pivot: int, products: Float64) -> int:
        """Add a node; return its number."""
        self._nodes.append([0, 0, pivot, -1])
        self._products.append(products)
        return len(self._nodes) - 1

    def _split(self, node: int, members: Int64) -> Iterator[tuple[int, Int64]]:
        """Turn a node into a leaf, or yield its children with their rows."""
        if len(members) <= self._leaf_rows:
            self._nodes[node][3] = len(self._leaves)
            self._leaves.append(members)
            return
        n_pivots = min(PIVOTS, -(-2 * len(members) // self._leaf_rows))
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
