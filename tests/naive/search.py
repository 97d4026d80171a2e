"""Naive search: every score of every label, then a full sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import CSR, TopK


def all_scores(X: CSR, W: CSR, b: Any) -> Any:
    """Return (n, K) float64: sums over features in ascending order, then + bias."""
    columns = W.to_scipy().astype(np.float64).tocsc()
    out = np.zeros((X.n_rows, W.n_rows), np.float64)
    for i in range(X.n_rows):
        for f, x in zip(*X.row(i), strict=True):
            lo, hi = columns.indptr[f], columns.indptr[f + 1]
            out[i, columns.indices[lo:hi]] += np.float64(x) * columns.data[lo:hi]
    return out + np.asarray(b, np.float64)


def top_k(X: CSR, W: CSR, b: Any, k: int) -> TopK:
    """Return the k best of each row by descending score, then by ascending label number."""
    scores = all_scores(X, W, b)
    labels = np.array(
        [sorted(range(W.n_rows), key=lambda j: (-row[j], j))[:k] for row in scores.tolist()],
        np.int32,
    )
    labels = labels.reshape(X.n_rows, min(k, W.n_rows))
    return TopK(labels, np.take_along_axis(scores, labels.astype(np.int64), axis=1))


def best(scores: Any, k: int, allowed: Any = None) -> TopK:
    """Return the k best of each row of scores (n, K) among the allowed labels (None: all)."""
    labels = np.arange(scores.shape[1])
    if allowed is not None:
        labels = np.flatnonzero(np.isin(labels, allowed, kind="table"))
    k = min(k, len(labels))
    out = TopK(np.empty((len(scores), k), np.int32), np.empty((len(scores), k), np.float64))
    for i, row in enumerate(scores[:, labels]):
        # The k-th best score, its ties, and better ones.
        good = np.flatnonzero(row >= np.partition(row, len(row) - k)[len(row) - k])
        # Stable: equal scores keep the order of labels.
        order = good[np.argsort(-row[good], kind="stable")[:k]]
        out.labels[i], out.scores[i] = labels[order], row[order]
    return out


def best_other(scores: Any, answered: Any, allowed: Any = None) -> Any:
    """Return (n,) the best score among allowed labels that are not in `answered` (n, k).

    It is minus infinity if no label is left.
    """
    left = scores.copy()
    if allowed is not None:
        left[:, np.delete(np.arange(scores.shape[1]), allowed)] = -np.inf
    np.put_along_axis(left, answered.astype(np.int64), -np.inf, axis=1)
    return left.max(axis=1)
