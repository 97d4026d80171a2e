"""Exact top-k in NumPy, for the few rows of a command that should not wait for compilation."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, Float32
from xcray.index.filters import LabelFilter
from xcray.kernels.search.bounded_scan import SearchOutput


def scan_weights(
    X: CSR, W: CSR, b: Float32, label_filter: LabelFilter | None, out: SearchOutput
) -> None:
    """Write the best allowed labels of each row to `out`, by one pass over all weights per row.

    X: (n, D), finite. W: (K, D) by label. b: (K,). out: (n, k), k at least 1 and at most the number
    of allowed labels. Scores are bit-identical to those of the kernels: `np.bincount` adds float64
    products in the order of a label's weights, features ascending, and zero products change no sum.
    """
    allowed = np.arange(W.n_rows) if label_filter is None else label_filter.labels
    label_of = np.repeat(np.arange(W.n_rows), np.diff(W.indptr))
    k, x = out.labels.shape[1], np.zeros(W.n_cols)
    out.exact[:], out.labels_scored[:], out.postings_read[:] = 1, len(allowed), W.nnz
    out.runner_up[:] = 0.0
    for i in range(X.n_rows):
        features, values = X.row(i)
        x[features] = values
        sums = np.bincount(label_of, weights=x[W.indices] * W.data, minlength=W.n_rows)
        x[features] = 0.0
        scores = (sums + b)[allowed]
        order = np.lexsort((allowed, -scores))[: k + 1]
        out.labels[i], out.scores[i] = allowed[order[:k]], scores[order[:k]]
        if len(order) > k:
            # the gap already, as `search_narrow_rows` returns it
            out.runner_up[i] = scores[order[k - 1]] - scores[order[k]]
