"""Exact top-k in NumPy, while kernels are not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, frozen
from xcray.index.filters import LabelFilter
from xcray.kernels.search.bounded_scan import SearchOutput
from xcray.kernels.sparse import transpose

# weights, over all rows, up to which `scan_weights` takes less than a second
MAX_SCAN_WEIGHTS: Final = 1 << 25
# of `scan_postings`, measured: per posting, row, and row and label
POSTING_SECONDS: Final = 1.2e-8
ROW_SECONDS: Final = 8e-5
LABEL_SECONDS: Final = 8e-8

# returns the biases (K,) float64 of the labels for a row, which groups of labels make depend on it
RowBiases: TypeAlias = Callable[[int], Float64]
# searches rows X (n, D) with weights W (K, D), biases and a filter; writes its result
Scan: TypeAlias = Callable[[CSR, CSR, RowBiases, LabelFilter | None, SearchOutput], None]


def scan_weights(
    X: CSR, W: CSR, biases: RowBiases, label_filter: LabelFilter | None, out: SearchOutput
) -> None:
    """Write the best allowed labels of each row to `out`, by one pass over all weights per row.

    X: (n, D), finite. W: (K, D) by label. out: (n, k), k at least 1 and at most the number of
    allowed labels. Scores are bit-identical to those of the kernels: `np.bincount` adds float64
    products in the order of a label's weights, features ascending, and zero products change no sum.
    """
    allowed = _allowed_labels(W, label_filter)
    label_of = _label_of_weights(W)
    out.exact[:], out.labels_scored[:], out.postings_read[:] = 1, len(allowed), W.nnz
    out.runner_up[:] = 0.0
    for i in range(X.n_rows):
        _write_best(_add_weights(X, i, W, label_of) + biases(i), allowed, out, i)


def row_scores(X: CSR, i: int, W: CSR, biases: RowBiases) -> Float64:
    """Return the scores (K,) of all labels for row i of X, with the bits of `scan_weights`."""
    return _add_weights(X, i, W, _label_of_weights(W)) + biases(i)


def scan_postings(
    X: CSR, W: CSR, biases: RowBiases, label_filter: LabelFilter | None, out: SearchOutput
) -> None:
    """Do the same for many rows, by the weights of each row's features.

    Scores are bit-identical: the products of a label are added in the order of the row's features.
    """
    allowed = _allowed_labels(W, label_filter)
    by_feature = transpose(W)
    starts, labels, weights = by_feature.indptr, by_feature.indices, by_feature.data
    out.exact[:], out.labels_scored[:], out.runner_up[:] = 1, len(allowed), 0.0
    for i in range(X.n_rows):
        features, values = X.row(i)
        parts = [
            slice(start, stop)
            for start, stop in zip(starts[features], starts[features + 1], strict=True)
        ]
        sums: Float64 = np.zeros(W.n_rows)
        if parts:
            own = np.concatenate([labels[part] for part in parts])
            x = np.repeat(values.astype(np.float64), starts[features + 1] - starts[features])
            products = x * np.concatenate([weights[part] for part in parts])
            sums = _sums_by_label(own, products, W.n_rows)
        out.postings_read[i] = starts[features + 1].sum() - starts[features].sum()
        _write_best(sums + biases(i), allowed, out, i)


def choose_scan(X: CSR, W: CSR) -> tuple[Scan, float]:
    """Return the search for rows X (n, D) of weights W (K, D), and its approximate seconds."""
    weights = X.n_rows * W.nnz
    if weights <= MAX_SCAN_WEIGHTS:
        return scan_weights, weights / MAX_SCAN_WEIGHTS
    lengths = np.bincount(W.indices, minlength=W.n_cols)
    postings = int(lengths[X.indices].sum())
    seconds = POSTING_SECONDS * postings + X.n_rows * (ROW_SECONDS + LABEL_SECONDS * W.n_rows)
    return scan_postings, seconds


def _label_of_weights(W: CSR) -> Int64:
    """Return the label of each weight."""
    return np.repeat(np.arange(W.n_rows), np.diff(W.indptr))


def _add_weights(X: CSR, i: int, W: CSR, label_of: Int64) -> Float64:
    """Return the sums (K,) over all weights for row i of X."""
    x = np.zeros(W.n_cols)
    features, values = X.row(i)
    x[features] = values
    return _sums_by_label(label_of, x[W.indices] * W.data, W.n_rows)


def _allowed_labels(W: CSR, label_filter: LabelFilter | None) -> Int64:
    """Return the labels that can be returned, ascending."""
    if label_filter is None:
        return frozen(np.arange(W.n_rows), np.int64)
    return frozen(label_filter.labels, np.int64)


def _sums_by_label(labels: Int32 | Int64, products: Float64, n_labels: int) -> Float64:
    """Return the (n_labels,) sums of products by label, added in their order."""
    return np.asarray(np.bincount(labels, products, n_labels), np.float64)


def _write_best(sums: Float64, allowed: Int64, out: SearchOutput, i: int) -> None:
    """Write the best of the allowed labels of row i and the gap to the next one.

    sums: (K,) scores of all labels.
    """
    scores, k = sums[allowed], out.labels.shape[1]
    order = np.lexsort((allowed, -scores))[: k + 1]
    out.labels[i], out.scores[i] = allowed[order[:k]], scores[order[:k]]
    if len(order) > k:
        # the gap already, as `search_narrow_rows` returns it
        out.runner_up[i] = scores[order[k - 1]] - scores[order[k]]
