"""Sums of decision trees, as scikit-learn's histogram gradient boosting evaluates them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float64, Int32, Int64

LEAF = -1  # the feature of a leaf


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


@numba.njit(nogil=True, cache=True)
def sum_trees(features: Float64, trees: Trees, baseline: float) -> Float64:
    """Return baseline plus the leaf of each tree per row: (m,) float64. features: (m, f) float64.

    The leaves are added tree by tree, in the order of scikit-learn, so sums have the same bits.
    """
    out = np.full(len(features), baseline)
    for i in range(len(features)):
        total = baseline
        for root in trees.starts:
            node = root
            while trees.feature[node] != LEAF:
                x = features[i, trees.feature[node]]
                goes_left = (
                    trees.missing_left[node] != 0 if np.isnan(x) else x <= trees.threshold[node]
                )
                node = trees.left[node] if goes_left else trees.right[node]
            total += trees.value[node]
        out[i] = total
    return out


@numba.njit(nogil=True, cache=True)
def first_unsound_node(trees: Trees, n_features: int) -> int:
    """Return the first node that `sum_trees` cannot visit safely, or -1. Leaves have no children.

    Children follow their parent, so every walk ends.
    """
    n: Any = np.int64(len(trees.feature))
    for node in range(n):
        if trees.feature[node] == LEAF:
            continue
        left, right = trees.left[node], trees.right[node]
        if not (0 <= trees.feature[node] < n_features and node < left < n and node < right < n):
            return int(node)
    return -1


def tree_roots(n_nodes: Int64) -> Int32:
    """Return the first node of each tree: (t,) int32. n_nodes: (t,) int64."""
    return (np.cumsum(n_nodes) - n_nodes).astype(np.int32)
