"""Structure of a stored metric forest, checked before a kernel reads it.

Checksums find damage. They do not find a file that was written by another program and sealed
again, whose numbers would make kernels read outside of arrays, run in circles, or skip rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xcray.arrays import CSR, Int32, Int64
from xcray.data.metric_forest.forest import IndexedRows, extended_norms
from xcray.errors import Corrupt
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.kernels.training.metric_forest import PIVOTS, Forest, pivot_products


def check_forest(indexed: IndexedRows, shape: tuple[int, int]) -> None:
    """Raise Corrupt unless a forest is one of the rows of a matrix with this shape (N, D).

    It finds numbers of nodes, pages and rows that are out of range or used twice, circles, and
    pivots whose norms or products are not theirs. One pass over the nodes, their pivots and the
    order of the rows.
    """
    _check_pages(indexed, shape[0])
    _check_nodes(indexed.forest, indexed.pages.n_pages)
    _check_trees(indexed)
    _check_pivots(indexed.forest, shape[1])


def check_page_sizes(lengths: Int32, offsets: Int64, indptr: Int64, entry_bytes: int) -> None:
    """Raise Corrupt unless the pages in the file have the entries of their rows.

    lengths: (N,) entries of rows by position; offsets: (pages + 1,) in the file; indptr: first
    position of each page.
    """
    _require(len(offsets) == len(indptr), "it has other pages than page positions")
    _require(len(lengths) == indptr[-1], "it has lengths of other rows")
    _require(int(lengths.min(initial=0)) >= 0, "a row has a negative length")
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    sizes = np.diff(ends[indptr]) * entry_bytes
    _require(bool(np.array_equal(np.diff(offsets), sizes)), "a page has another size than its rows")


def check_page_rows(X: CSR, norms: np.ndarray) -> None:
    """Raise Corrupt unless the rows X of a page are valid and have these norms (n,)."""
    code, row = first_fault(X)
    _require(not code, f"row {row}: {FAULTS[code]}")
    _require(bool(np.array_equal(extended_norms(X), norms)), "a row has another norm than stored")


def _check_pages(indexed: IndexedRows, n_rows: int) -> None:
    """Check that the pages hold each row once."""
    pages, positions = indexed.pages, indexed.positions
    _require_kind(pages.indptr, np.int64, "indptr")
    _require_kind(pages.rows, np.int32, "rows")
    _require_kind(positions, np.int32, "positions", n_rows)
    _require_kind(indexed.norms, np.float64, "norms", n_rows)
    _require(len(pages.rows) == n_rows, f"it has {len(pages.rows)} rows, the data {n_rows}")
    _require(_is_partition(pages.indptr, n_rows), "its pages are not the ranges of its rows")
    _require(_in_range(pages.rows, n_rows), "it has a row number out of range")
    order = np.arange(n_rows, dtype=np.int32)
    _require(bool(np.array_equal(positions[pages.rows], order)), "it has a row twice")
    _require(bool((indexed.norms >= 1.0).all()), "a norm is not a number of at least 1")
    _require(bool(np.isfinite(indexed.norms).all()), "a norm is not finite")


def _check_nodes(forest: Forest, n_pages: int) -> None:
    """Check that each node except the roots has one parent, and each page one leaf."""
    n = len(forest.leaf)
    _require_kind(forest.first_child, np.int32, "first_child", n)
    _require_kind(forest.n_children, np.int32, "n_children", n)
    _require_kind(forest.leaf, np.int32, "leaf", n)
    _require_kind(forest.roots, np.int32, "roots")
    first, count = forest.first_child.astype(np.int64), forest.n_children.astype(np.int64)
    inner = count > 0
    _require(bool((count >= 0).all() and (count <= PIVOTS).all()), "a node has too many children")
    _require(bool((first[inner] > np.flatnonzero(inner)).all()), "a child is not below its parent")
    _require(bool((first + count)[inner].max(initial=0) <= n), "a child is out of range")
    _require(bool((forest.leaf[inner] == -1).all()), "a node with children has a page")
    leaves = np.sort(forest.leaf[~inner])
    _require(bool(np.array_equal(leaves, np.arange(n_pages))), "a page has no leaf, or several")
    parents = np.zeros(n + 1, np.int64)
    np.add.at(parents, first[inner], 1)
    np.add.at(parents, (first + count)[inner], -1)
    expected = np.ones(n, np.int64)
    _require(_in_range(forest.roots, n), "a root is out of range")
    expected[forest.roots] = 0
    _require(
        bool(np.array_equal(np.cumsum(parents)[:n], expected)), "a node has no parent, or several"
    )


def _check_trees(indexed: IndexedRows) -> None:
    """Check that nodes, pages and rows are divided into the same trees."""
    forest, pages, trees = indexed.forest, indexed.pages, indexed.trees
    _require_kind(trees, np.int64, "trees", len(forest.roots) + 1)
    nodes = np.append(forest.roots, len(forest.leaf))
    _require(_is_partition(nodes, len(forest.leaf)), "its trees are not ranges of its nodes")
    _require(_is_partition(trees, len(pages.rows)), "its trees are not ranges of its rows")
    inner = np.flatnonzero(forest.n_children > 0)
    last = forest.first_child[inner].astype(np.int64) + forest.n_children[inner] - 1
    same = np.array_equal(_part_of(inner, nodes), _part_of(last, nodes))
    _require(bool(same), "a node has a child in another tree")
    leaves = np.flatnonzero(forest.leaf >= 0)
    first_rows = pages.indptr[:-1][forest.leaf[leaves]]
    same = np.array_equal(_part_of(leaves, nodes), _part_of(first_rows, trees))
    _require(bool(same), "a leaf has a page of another tree")


def _check_pivots(forest: Forest, n_cols: int) -> None:
    """Check the rows that represent nodes, their norms, and their products with their siblings."""
    pivots, n = forest.pivots, len(forest.leaf)
    _require_kind(forest.products, np.float64, "products", n)
    _require(forest.products.shape == (n, PIVOTS), "its products have another shape")
    _require(pivots.n_cols == n_cols, f"its pivots have {pivots.n_cols} features, not {n_cols}")
    _require(pivots.n_rows == n, "it has other pivots than nodes")
    check_page_rows(pivots, forest.norms)
    expected = np.zeros((n, PIVOTS))
    for siblings in _siblings(forest):
        pivot_products(pivots, forest.norms, siblings, expected[siblings[0] : siblings[-1] + 1])
    _require(
        bool(np.array_equal(forest.products, expected)), "products are not those of its pivots"
    )


def _siblings(forest: Forest) -> Iterator[Int64]:
    """Yield the children of each node, as node numbers."""
    for node in np.flatnonzero(forest.n_children > 0):
        first = int(forest.first_child[node])
        yield np.arange(first, first + int(forest.n_children[node]), dtype=np.int64)


def _part_of(items: np.ndarray, starts: np.ndarray) -> Int64:
    """Return the range of each item among ranges with these starts and one end."""
    return np.searchsorted(starts, items, "right") - 1


def _is_partition(starts: np.ndarray, n: int) -> bool:
    """Return whether ranges with these starts and one end are not empty and cover 0 .. n-1."""
    if not len(starts) or starts[0] != 0 or starts[-1] != n:
        return False
    return bool((np.diff(starts.astype(np.int64)) > 0).all()) or n == 0


def _in_range(numbers: np.ndarray, n: int) -> bool:
    """Return whether all numbers are in 0 .. n-1."""
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < n)


def _require_kind(array: np.ndarray, kind: type, name: str, length: int | None = None) -> None:
    """Raise Corrupt unless an array has this dtype and length."""
    _require(array.dtype == kind, f"{name} has the type {array.dtype}")
    _require(length is None or len(array) == length, f"{name} has {len(array)} entries")


def _require(condition: bool, problem: str) -> None:
    """Raise Corrupt with the problem unless the condition holds."""
    if not condition:
        raise Corrupt(problem)
