"""Sums over posting lists, and the heap of the best labels.

A score is the float64 sum of x_f * w_fl over the features f of the query in ascending order, then +
bias. There is only this order, so two searches agree to the bit. (The product of two float32 is
exact in float64; only sums are rounded.) A heap holds the k best labels, with the worst at its
root. A label beats another one by a higher score, or by a lower number if scores are equal.
"""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32
from xcray.kernels.inner import inner


@inner()
def add_all(X: CSR, row: int, postings: CSR, sums: Float64) -> None:
    """Add x_f * w_fl to sums[l], features ascending."""
    for p in range(X.indptr[row], X.indptr[row + 1]):
        f = X.indices[p]
        x = np.float64(X.data[p])
        lo, hi = postings.indptr[f], postings.indptr[f + 1]
        labels, weights = postings.indices[lo:hi], postings.data[lo:hi]
        for q in range(len(labels)):
            # unsigned: no check for negative indices
            sums[np.uint32(labels[q])] += x * np.float64(weights[q])


@numba.njit(nogil=True, cache=True)
def beats(score: float, label: int, other_score: float, other_label: int) -> bool:
    """Return whether a label ranks before another one."""
    return score > other_score or (score == other_score and label < other_label)


@inner(allocates=False)
def offer(labels: Int32, scores: Float64, size: int, label: int, score: float) -> int:
    """Insert a label into the heap if there is space or it beats the root; return the size."""
    if size == len(labels):
        if beats(score, label, scores[0], labels[0]):
            sift_down(labels, scores, size, label, score)
        return size
    at = size
    while at > 0:
        up = (at - 1) // 2
        if not beats(scores[up], labels[up], score, label):
            break
        scores[at], labels[at] = scores[up], labels[up]
        at = up
    scores[at], labels[at] = score, label
    return size + 1


@inner(allocates=False)
def sift_down(labels: Int32, scores: Float64, size: int, label: int, score: float) -> None:
    """Replace the root of a heap of `size` by a label, and sift it down."""
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and beats(
            scores[down], labels[down], scores[down + 1], labels[down + 1]
        ):
            down += 1
        if not beats(score, label, scores[down], labels[down]):
            break
        scores[at], labels[at] = scores[down], labels[down]
        at = down
    scores[at], labels[at] = score, label


@inner(allocates=False)
def sort_best_first(labels: Int32, scores: Float64) -> None:
    """Turn a full heap into a list, best first."""
    for end in range(len(labels) - 1, 0, -1):
        score, label = scores[end], labels[end]
        scores[end], labels[end] = scores[0], labels[0]
        sift_down(labels, scores, end, label, score)
