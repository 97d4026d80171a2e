"""The slow, obvious twin of the search: every score of every label, then a full sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import CSR, TopK


def all_scores(X: CSR, W: CSR, b: Any) -> Any:
    """(n, K) float64: sums over features in ascending order, then + bias."""
    columns = W.to_scipy().astype(np.float64).tocsc()
    out = np.zeros((X.n_rows, W.n_rows), np.float64)
    for i in range(X.n_rows):
        for f, x in zip(*X.row(i), strict=True):
            lo, hi = columns.indptr[f], columns.indptr[f + 1]
            out[i, columns.indices[lo:hi]] += np.float64(x) * columns.data[lo:hi]
    return out + np.asarray(b, np.float64)


def top_k(X: CSR, W: CSR, b: Any, k: int) -> TopK:
    """The k best of each row: by falling score, then by rising label number."""
    scores = all_scores(X, W, b)
    labels = np.array([sorted(range(W.n_rows), key=lambda j: (-row[j], j))[:k] for row in scores.tolist()], np.int32)
    labels = labels.reshape(X.n_rows, min(k, W.n_rows))
    return TopK(labels, np.take_along_axis(scores, labels.astype(np.int64), axis=1))


def top_k_by_sort(X: CSR, W: CSR, b: Any, k: int) -> TopK:
    """As `top_k`, sorted by numpy (stable), for many rows."""
    scores = all_scores(X, W, b)
    labels = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(labels.astype(np.int32), np.take_along_axis(scores, labels, axis=1))
