"""Metric forest: trees of pivots that find the rows near a hyperplane.

Rows x have an additional feature of value 1, and their distance is acos((u.z)^2) for u, z of length
1: the angle between their degree-2 products. A hyperplane v is nearest to the row with the smallest
(v.x)^2 / (|v| |x|)^2. Each node of a tree has pivots, which are rows, and one child per pivot with
the rows that are nearest to it. A leaf has at most `leaf_rows` rows.

Source: Yen, Chang, Lin, Lin, Lin, "Indexed block coordinate descent for large-scale linear
classification with limited memory", KDD 2013, section 4.1.
"""

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.training.dual_hinge import dot

PIVOTS = 16  # children of a node


class Forest(NamedTuple):
    """Trees of one data set.

    Node t has the children first_child[t] .. first_child[t] + n_children[t] - 1; a leaf has none.
    leaf: (nodes,) page number of a leaf, -1 for others. roots: (trees,) nodes. products: (nodes,
    PIVOTS) squared cosine of the pivot of a node with those of its siblings. pivots: (nodes, D) the
    row that represents a node in its parent, empty for a root; norms: (nodes,) of these rows.
    """

    first_child: Int32
    n_children: Int32
    leaf: Int32
    roots: Int32
    products: Float64
    pivots: CSR
    norms: Float64


@numba.njit(nogil=True, cache=True)
def assign_to_pivots(
    X: CSR, norms: Float64, members: Int64, pivots: Int64, nearest: Int32, dense: Float64
) -> None:
    """Write the position of the nearest pivot of each member.

    members: (n,) rows; pivots: (k,) rows; nearest: (n,) output, ties go to the lower position.
    dense: (k, D + 1) scratch memory, zero before and after the call.
    """
    for k in range(len(pivots)):
        r = pivots[k]
        for p in range(X.indptr[r], X.indptr[r + 1]):
            dense[k, X.indices[p]] = X.data[p] / norms[r]
        dense[k, X.n_cols] = 1.0 / norms[r]
    for m in range(len(members)):
        best = -1.0
        for k in range(len(pivots)):
            cosine = dot(X, members[m], dense[k])
            if cosine * cosine > best:
                best, nearest[m] = cosine * cosine, k
    for k in range(len(pivots)):
        r = pivots[k]
        for p in range(X.indptr[r], X.indptr[r + 1]):
            dense[k, X.indices[p]] = 0.0
        dense[k, X.n_cols] = 0.0


@numba.njit(nogil=True, cache=True)
def pivot_products(X: CSR, norms: Float64, pivots: Int64, products: Float64) -> None:
    """Write the squared cosine of each pair of pivots; products: (k, PIVOTS) output."""
    v = np.zeros(X.n_cols + 1)
    for a in range(len(pivots)):
        r = pivots[a]
        for p in range(X.indptr[r], X.indptr[r + 1]):
            v[X.indices[p]] = X.data[p]
        v[X.n_cols] = 1.0
        for b in range(len(pivots)):
            cosine = dot(X, pivots[b], v) / (norms[r] * norms[pivots[b]])
            products[a, b] = min(cosine * cosine, 1.0)
        for p in range(X.indptr[r], X.indptr[r + 1]):
            v[X.indices[p]] = 0.0


@inner()
def push(keys: Float64, nodes: Int32, n: int, key: float, node: int) -> int:
    """Add an entry to a binary heap of n entries, smallest (key, node) first; return n + 1."""
    at = n
    while at > 0:
        parent = (at - 1) // 2
        if keys[parent] < key or (keys[parent] == key and nodes[parent] < node):
            break
        keys[at], nodes[at] = keys[parent], nodes[parent]
        at = parent
    keys[at], nodes[at] = key, node
    return n + 1


@inner()
def pop(keys: Float64, nodes: Int32, n: int) -> int:
    """Remove the first entry of a heap of n entries; return n - 1."""
    n -= 1
    key, node, at = keys[n], nodes[n], 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and (
            keys[child + 1] < keys[child]
            or (keys[child + 1] == keys[child] and nodes[child + 1] < nodes[child])
        ):
            child += 1
        if key < keys[child] or (key == keys[child] and node < nodes[child]):
            break
        keys[at], nodes[at] = keys[child], nodes[child]
        at = child
    keys[at], nodes[at] = key, node
    return n


@numba.njit(nogil=True, cache=True)
def order_leaves(forest: Forest, v: Float64, order: Int64) -> int:
    """Write the page numbers of all leaves, nearest to the hyperplane v first; return their number.

    Best bin first: a child is ranked by the distance of v to the boundary between the child and the
    nearest child of the same node, and at least by the rank of its node. order: (leaves,) output.
    """
    keys, nodes = np.empty(len(forest.leaf)), np.empty(len(forest.leaf), np.int32)
    length = np.sqrt(np.dot(v, v))
    scale = 1.0 / length if length > 0.0 else 0.0
    n, n_leaves = 0, 0
    squares = np.empty(PIVOTS)
    for root in forest.roots:
        n = push(keys, nodes, n, 0.0, root)
    while n > 0:
        key, node = keys[0], nodes[0]
        n = pop(keys, nodes, n)
        if forest.leaf[node] >= 0:
            order[n_leaves] = forest.leaf[node]
            n_leaves += 1
            continue
        first, k = forest.first_child[node], forest.n_children[node]
        best = 0
        for c in range(k):
            cosine = dot(forest.pivots, first + c, v) * scale / forest.norms[first + c]
            squares[c] = cosine * cosine
            if squares[c] < squares[best]:
                best = c
        for c in range(k):
            apart = np.sqrt(max(2.0 - 2.0 * forest.products[first + c, best], 1e-12))
            distance = (squares[c] - squares[best]) / apart
            n = push(keys, nodes, n, max(key, distance), first + c)
    return n_leaves
