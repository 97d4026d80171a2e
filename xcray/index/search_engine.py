"""The data of a search: its engine, and dense rows of weights where they are faster than lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import CSR, Float32, Int32, frozen
from xcray.index.label_groups import LabelGroups
from xcray.kernels.search.bounded_scan import SearchEngine
from xcray.kernels.search.dense import LANE_LABELS, DenseWeights, scatter_weights
from xcray.kernels.search.lists import PackedLists

# maximum number of labels that are always scored because of unusually large biases
MAX_LARGE_BIAS_LABELS = 16
MIN_BOUND_DROP = 0.002  # minimum decrease of the largest remaining bias per such label
# Cuts of narrow lists pay if the k-th score exceeds the largest bias by this share of the distance
# of the largest from the median bias; otherwise the bounds of too many labels reach it.
MIN_GAP_SHARE = 0.25
# with label groups, the labels of larger biases do not decide how far lists are cut: the bounds of
# all labels are compared with the threshold
HIGH_BIAS_QUANTILE = 0.99
# dense rows are also built if at least one in this many weights is nonzero: a cell takes a tenth of
# the time of a posting
DENSE_WEIGHT_DIVISOR = 3
MAX_DENSE_CELLS = 1 << 25  # limit of dense rows in memory, 4 bytes each
# limits of small models, whose dense rows are added in less time than opening a list takes
SMALL_MODEL_LABELS, SMALL_MODEL_CELLS = 256, 1 << 21


def make_engine(lists: PackedLists, W: CSR, b: Float32, order: Int32) -> SearchEngine:
    """Return the data of a search; the arguments are those of `SearchIndex`."""
    lengths = np.diff(W.indptr)
    has_weights = lengths > 0
    large_bias, other_bias = _large_bias_labels(b, order[has_weights[order]])
    return SearchEngine(
        lists,
        W,
        frozen(b, np.float32),
        frozen(np.where(has_weights, b, np.float32(-np.inf)), np.float32),
        frozen(order, np.int32),
        frozen(order[~has_weights[order]], np.int32),
        300.0 + 1.2 * float(np.dot(lengths, lengths)) / max(int(lengths.sum()), 1),
        frozen(large_bias, np.int32),
        other_bias,
        MIN_GAP_SHARE * (float(other_bias) - _median(b[has_weights])),
        float(np.abs(b).max(initial=0.0)),
        frozen(np.empty((0, 0)), np.int32),
        np.empty(0, np.float64),
        0.0,
    )


def make_grouped_engine(engine: SearchEngine, groups: LabelGroups) -> SearchEngine:
    """Return the data of a search with label groups; engine: of the same model without groups."""
    bounds, no_labels = groups.bias_bounds(engine.bias), frozen([], np.int32)
    high, middle = np.quantile(bounds, [HIGH_BIAS_QUANTILE, 0.5]) if len(bounds) else (0.0, 0.0)
    max_other: Any = np.float32(high)
    most = engine.max_abs_bias + groups.weight * float(np.abs(groups.b).max(initial=0.0))
    return engine._replace(
        initial_bounds=frozen(bounds, np.float32),
        empty_labels=no_labels,
        large_bias_labels=no_labels,
        max_other_bias=max_other,
        min_gap=MIN_GAP_SHARE * float(high - middle),
        max_abs_bias=len(groups.sizes) * most,
    )


def is_dense(n_labels: int, n_features: int, weights: int, n_groups: int = 0) -> bool:
    """Return whether dense rows of weights are faster than lists and not too large.

    n_groups: of the labels; weights: those of labels and groups.
    """
    cells = (n_labels + n_groups) * n_features
    is_small = n_labels <= SMALL_MODEL_LABELS and cells <= SMALL_MODEL_CELLS
    return 0 < cells <= MAX_DENSE_CELLS and (is_small or weights * DENSE_WEIGHT_DIVISOR >= cells)


def dense_rows(W: CSR, b: Float32, groups: LabelGroups | None) -> DenseWeights:
    """Return the weights by feature including zeros, with columns rounded up to LANES."""
    n_labels, n_groups = W.n_rows, 0 if groups is None else groups.n_groups
    n_columns = -(-(n_labels + n_groups) // LANE_LABELS) * LANE_LABELS
    weights = np.zeros((int(W.n_cols), n_columns), np.float32)
    scatter_weights(W, 0, weights)
    if groups is None:
        no_members = frozen(np.empty((n_labels, 0)), np.int32)
        return DenseWeights(frozen(weights, np.float32), b, b[:0], no_members, 0.0)
    scatter_weights(groups.W, n_labels, weights)
    own = (frozen(groups.b, np.float32), frozen(groups.members, np.int32), groups.share)
    return DenseWeights(frozen(weights, np.float32), b, *own)


def _large_bias_labels(b: Float32, order: Int32) -> tuple[Any, Any]:
    """Return the few labels with outlying biases, and the largest bias of the other labels.

    Always scoring these labels is cheaper than a bound that includes their biases. order: labels
    with weights, by descending bias.
    """
    if not len(order):
        return order[:0], np.float32(0.0)
    top = b[order[: MAX_LARGE_BIAS_LABELS + 1]].astype(np.float64)
    gain = top[0] - top - MIN_BOUND_DROP * np.arange(len(top))
    n = int(np.argmax(gain))
    return order[:n], np.float32(top[n])


def _median(values: Float32) -> float:
    """Return the median, 0 for no values."""
    return float(np.median(values.astype(np.float64))) if len(values) else 0.0
