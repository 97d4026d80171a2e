"""Sums of decision trees, as scikit-learn's histogram gradient boosting evaluates them.

Rows do not walk through the trees. The thresholds of a feature divide its values into intervals; an
interval decides all nodes that compare the feature, and a table has the leaves of each tree that
remain. The leftmost leaf that remains after all features is the one that a walk finds. This takes
one search per feature and one operation per feature and tree, without unpredictable branches.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import bits_of, float32

LEAF: Final = -1  # the feature of a leaf
MAX_LEAVES: Final = 16  # of a tree
ALL_LEAVES: Final = (1 << MAX_LEAVES) - 1
FRACTION_BITS, EXPONENT_OF_1 = 23, 127  # of a float32


class Trees(NamedTuple):
    """Nodes of all trees, one after the other; a child comes after its parent.

    starts: (t,) int32, the root of each tree; feature: int32, LEAF for a leaf; threshold: float64,
    a value up to it goes left; left, right: int32, node numbers; missing_left: uint8, whether NaN
    goes left; value: float64, of a leaf.
    """

    starts: Int32
    feature: Int32
    threshold: Float64
    left: Int32
    right: Int32
    missing_left: Any
    value: Float64


class TreeTable(NamedTuple):
    """The leaves of t trees that remain for the values of F features.

    thresholds: float64, those of feature f ascend in thresholds[starts[f] : starts[f + 1]].
    remaining: (len(thresholds) + 2 F, t) uint16, bit l for leaf l from the left; the rows of
    feature f begin at starts[f] + 2 f: one per interval, the last one for NaN. values: (t,
    MAX_LEAVES) float64, of the leaves.
    """

    starts: Int64
    thresholds: Float64
    remaining: Any
    values: Float64


def tabulate_trees(trees: Trees, n_features: int) -> TreeTable:
    """Return the table of trees. Raises ValueError unless they are trees of at most MAX_LEAVES."""
    places, n_leaves = _place_nodes(trees, n_features)
    cuts = [np.unique(trees.threshold[trees.feature == f]) for f in range(n_features)]
    starts = np.cumsum([0, *map(len, cuts)])
    remaining = np.full((starts[-1] + 2 * n_features, len(trees.starts)), ALL_LEAVES, np.uint16)
    values = np.zeros((len(trees.starts), MAX_LEAVES))
    for node, (tree, leaf) in places.items():
        f = trees.feature[node]
        if f == LEAF:
            values[tree, leaf] = trees.value[node]
            continue
        others = ALL_LEAVES & ~(((1 << n_leaves[trees.left[node]]) - 1) << leaf)
        first, end = starts[f] + 2 * f, starts[f + 1] + 2 * f + 1
        above = first + 1 + np.searchsorted(cuts[f], trees.threshold[node])
        remaining[above:end, tree] &= others
        if not trees.missing_left[node]:
            remaining[end, tree] &= others
    return TreeTable(
        frozen(starts, np.int64),
        frozen(np.concatenate(cuts), np.float64),
        frozen(remaining, np.uint16),
        frozen(values, np.float64),
    )


def _place_nodes(trees: Trees, n_features: int) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Return tree and leftmost leaf of each node, parents first, and the leaves below each node.

    Raises ValueError as `tabulate_trees`.
    """
    feature, children = trees.feature.tolist(), np.stack((trees.left, trees.right), 1).tolist()
    n_leaves = [1] * len(feature)
    for node in reversed(range(len(feature))):
        if feature[node] == LEAF:
            continue
        left, right = children[node]
        if not (
            0 <= feature[node] < n_features
            and node < left < len(feature)
            and node < right < len(feature)
        ):
            raise ValueError(f"node {node} has another feature, or a child that is not after it")
        n_leaves[node] = min(n_leaves[left] + n_leaves[right], MAX_LEAVES + 1)
    places: dict[int, tuple[int, int]] = {}
    for tree, root in enumerate(trees.starts.tolist()):
        waiting = [(root, 0)]
        while waiting:
            node, leaf = waiting.pop()
            if not 0 <= node < len(feature) or n_leaves[node] > MAX_LEAVES or node in places:
                raise ValueError(
                    f"tree {tree} shares node {node} or has more than {MAX_LEAVES} leaves"
                )
            places[node] = tree, leaf
            if feature[node] != LEAF:
                left, right = children[node]
                waiting += [(left, leaf), (right, leaf + n_leaves[left])]
    return places, n_leaves


@inner(allocates=False)
def _interval(thresholds: Float64, first: int, n: int, x: float) -> int:
    """Return how many of n ascending thresholds from `first` on are less than x."""
    low = first
    while n > 0:
        half = (n + 1) >> 1
        low += half if thresholds[low + half - 1] < x else 0
        n -= half
    return low - first


@numba.njit(nogil=True, cache=True)
def sum_trees(features: Float64, table: TreeTable, baseline: float) -> Float64:
    """Return baseline plus the leaf of each tree per row: (m,) float64. features: (m, f) float64.

    The leaves are added tree by tree, in the order of scikit-learn, so sums have the same bits.
    """
    n_trees = len(table.values)
    out, leaves = np.empty(len(features)), np.empty(n_trees, np.uint16)
    for i in range(len(features)):
        leaves[:] = ALL_LEAVES
        for f in range(len(table.starts) - 1):
            x, first = features[i, f], table.starts[f]
            n = table.starts[f + 1] - first
            row = first + 2 * f
            row += n + 1 if np.isnan(x) else _interval(table.thresholds, first, n, x)
            for t in range(n_trees):
                leaves[t] &= table.remaining[row, t]
        total = baseline
        for t in range(n_trees):
            lowest: Any = np.int64(leaves[t])
            lowest = lowest & -lowest
            # the exponent of a power of two is the number of its bit
            leaf = np.int64(bits_of(float32(lowest)) >> FRACTION_BITS) - EXPONENT_OF_1
            total += table.values[t, leaf]
        out[i] = total
    return out


def tree_roots(n_nodes: Int64) -> Int32:
    """Return the first node of each tree: (t,) int32. n_nodes: (t,) int64."""
    return (np.cumsum(n_nodes) - n_nodes).astype(np.int32)
