"""Exact top-k over posting lists: the plain scan, reference and fallback of all faster searches.

A score is the float64 sum of x_f * w_fl over the features f of the query in ascending order, then +
bias. There is only this order, so two searches agree to the bit. (The product of two float32 is
exact in float64; only sums are rounded.) A heap holds the k best labels, with the worst at its
root. A label beats another one by a higher score, or by a lower number if scores are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, TopK
from xcray.kernels.inner import inner

# from K / DENSE_DIVISOR postings on, visiting all labels is cheaper than recording touched ones
DENSE_DIVISOR = 4


class PostingScratch(NamedTuple):
    """Working memory of one thread for K labels; all zero between queries.

    sums: (K,) float64; seen: (K,) uint8, 1 for labels in touched; touched: (K + 1,) int32.
    """

    sums: Float64
    seen: np.ndarray[tuple[int], np.dtype[np.uint8]]
    touched: Int32


class Biases(NamedTuple):
    """Biases of all labels.

    values: (K,) float32; order: (K,) int32, labels by descending bias, ties by number.
    """

    values: Float32
    order: Int32


@numba.njit(nogil=True, cache=True)
def top_k(
    X: CSR, start: int, stop: int, postings: CSR, biases: Biases, scratch: PostingScratch, out: TopK
) -> None:
    """Write the best labels and scores of rows [start, stop) to the same rows of `out`.

    out: (n, k), 1 <= k <= K.
    """
    n_labels = len(biases.values)
    for i in range(start, stop):
        labels, scores = out.labels[i], out.scores[i]
        if n_postings(X, i, postings) * DENSE_DIVISOR >= n_labels:
            add_all(X, i, postings, scratch.sums)
            offer_all(biases.values, scratch.sums, labels, scores)
        else:
            n_touched = add_touched(X, i, postings, scratch)
            size = offer_touched(biases.values, scratch, n_touched, labels, scores)
            offer_untouched(biases, scratch.seen, labels, scores, size)
            scratch.seen[scratch.touched[:n_touched]] = 0
        sort_best_first(labels, scores)


@numba.njit(nogil=True, cache=True)
def rank_of(
    X: CSR, row: int, label: int, postings: CSR, biases: Biases, scratch: PostingScratch
) -> int:
    """Return the number of labels that beat `label` for one row: 0 for the best."""
    add_all(X, row, postings, scratch.sums)
    score = scratch.sums[label] + np.float64(biases.values[label])
    better = 0
    for other in range(len(biases.values)):
        if beats(scratch.sums[other] + np.float64(biases.values[other]), other, score, label):
            better += 1
    scratch.sums[:] = 0.0
    return better


@numba.njit(nogil=True, cache=True)
def score_of(X: CSR, row: int, label: int, W: CSR, bias: float) -> float:
    """Return x . w + bias of one row and one label, from the weights by label (K, D).

    Bit-identical to the scan.
    """
    total = 0.0
    p, p_end = X.indptr[row], X.indptr[row + 1]
    q, q_end = W.indptr[label], W.indptr[label + 1]
    while p < p_end and q < q_end:
        if X.indices[p] == W.indices[q]:
            total += np.float64(X.data[p]) * np.float64(W.data[q])
            p += 1
            q += 1
        elif X.indices[p] < W.indices[q]:
            p += 1
        else:
            q += 1
    return total + bias


@inner()
def n_postings(X: CSR, row: int, postings: CSR) -> int:
    """Return the number of weights of the features of a row."""
    total = 0
    for p in range(X.indptr[row], X.indptr[row + 1]):
        f = X.indices[p]
        total += postings.indptr[f + 1] - postings.indptr[f]
    return total


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


@inner()
def add_touched(X: CSR, row: int, postings: CSR, scratch: PostingScratch) -> int:
    """Run `add_all`, and append labels met for the first time to touched; return their number."""
    sums, seen, touched = scratch.sums, scratch.seen, scratch.touched
    n = 0
    for p in range(X.indptr[row], X.indptr[row + 1]):
        f = X.indices[p]
        x = np.float64(X.data[p])
        lo, hi = postings.indptr[f], postings.indptr[f + 1]
        labels, weights = postings.indices[lo:hi], postings.data[lo:hi]
        for q in range(len(labels)):
            label = np.uint32(labels[q])
            touched[n] = label  # always written, counted if new: no branch to mispredict
            n += 1 - seen[label]
            seen[label] = 1
            sums[label] += x * np.float64(weights[q])
    return n


@inner()
def offer_all(bias: Float32, sums: Float64, labels: Int32, scores: Float64) -> None:
    """Offer every label to an empty heap and clear its sum; the heap is full afterwards."""
    k = len(labels)
    for label in range(k):
        offer(labels, scores, label, label, sums[label] + np.float64(bias[label]))
    # a local: most labels are below it and need this comparison only
    worst = scores[0]
    for label in range(k, len(bias)):
        score = sums[label] + np.float64(bias[label])
        # equal scores lose, because all labels in the heap are lower
        if score > worst:
            sift_down(labels, scores, k, label, score)
            worst = scores[0]
    sums[:] = 0.0


@inner()
def offer_touched(
    bias: Float32, scratch: PostingScratch, n_touched: int, labels: Int32, scores: Float64
) -> int:
    """Offer the touched labels to an empty heap and clear their sums; return the heap's size."""
    size, worst = 0, -np.inf
    for t in range(n_touched):
        label = scratch.touched[t]
        score = scratch.sums[label] + np.float64(bias[label])
        scratch.sums[label] = 0.0
        if score >= worst:
            size = offer(labels, scores, size, label, score)
            worst = scores[0] if size == len(labels) else worst
    return size


@inner()
def offer_untouched(
    biases: Biases,
    visited: np.ndarray[tuple[int], np.dtype[np.uint8]],
    labels: Int32,
    scores: Float64,
    size: int,
) -> int:
    """Offer labels whose score is their bias, best first, until one is not good enough.

    The rest are worse still.
    """
    for label in biases.order:
        if visited[label]:
            continue
        # 0.0 +: an empty sum, so that a bias of -0.0 gives the same bits
        score = 0.0 + np.float64(biases.values[label])
        if size == len(labels) and not beats(score, label, scores[0], labels[0]):
            break
        size = offer(labels, scores, size, label, score)
    return size


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
