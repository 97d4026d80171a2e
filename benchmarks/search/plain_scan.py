"""The plain scan: all posting lists of a query in float64, without bounds or pruning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, TopK, frozen
from xcray.kernels.search.postings import add_all, beats, offer, sift_down, sort_best_first
from xcray.kernels.sparse import transpose

# from K / DENSE_DIVISOR postings on, visiting all labels is cheaper than recording touched ones
DENSE_DIVISOR = 4


class Scratch(NamedTuple):
    """Working memory of one thread for K labels; all zero between queries.

    sums: (K,) float64; seen: (K,) uint8, 1 for labels in touched; touched: (K + 1,) int32.
    """

    sums: Any
    seen: Any
    touched: Any


class PlainScan:
    """Exact search by the full product, the reference for the speed of the search."""

    def __init__(self, postings: CSR, b: Any) -> None:
        """Create it from weights by feature (D, K) and biases (K,)."""
        n = postings.n_cols
        self._postings, self._bias = postings, frozen(b, np.float32)
        # stable: labels of equal bias stay in order
        self._order = np.argsort(-self._bias.astype(np.float64), kind="stable").astype(np.int32)
        self._scratch = Scratch(
            np.zeros(n, np.float64), np.zeros(n, np.uint8), np.zeros(n + 1, np.int32)
        )

    @classmethod
    def build(cls, W: CSR, b: Any) -> PlainScan:
        """Return the scan of weights by label."""
        return cls(transpose(W), b)

    def query(self, X: CSR, k: int) -> TopK:
        """Return the k best labels of each valid row; k is clipped to the number of labels."""
        shape = X.n_rows, min(k, len(self._bias))
        out = TopK(np.empty(shape, np.int32), np.empty(shape, np.float64))
        _top_k(X, self._postings, self._bias, self._order, self._scratch, out)
        return out


@numba.njit(nogil=True, cache=True)
def _n_postings(X: CSR, row: int, postings: CSR) -> int:
    """Return the number of weights of the features of a row."""
    total = 0
    for p in range(X.indptr[row], X.indptr[row + 1]):
        f = X.indices[p]
        total += postings.indptr[f + 1] - postings.indptr[f]
    return total


@numba.njit(nogil=True, cache=True)
def _add_touched(X: CSR, row: int, postings: CSR, scratch: Scratch) -> int:
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


@numba.njit(nogil=True, cache=True)
def _top_k(X: CSR, postings: CSR, bias: Any, order: Any, scratch: Scratch, out: TopK) -> None:
    """Write the best labels and scores of all rows. order: labels by descending bias."""
    for i in range(len(out.labels)):
        labels, scores = out.labels[i], out.scores[i]
        if _n_postings(X, i, postings) * DENSE_DIVISOR >= len(bias):
            add_all(X, i, postings, scratch.sums)
            _offer_all(bias, scratch.sums, labels, scores)
        else:
            n_touched = _add_touched(X, i, postings, scratch)
            size = _offer_touched(bias, scratch, n_touched, labels, scores)
            _offer_untouched(bias, order, scratch.seen, labels, scores, size)
            scratch.seen[scratch.touched[:n_touched]] = 0
        sort_best_first(labels, scores)


@numba.njit(nogil=True, cache=True)
def _offer_all(bias: Any, sums: Any, labels: Any, scores: Any) -> None:
    """Offer every label to an empty heap and clear its sum."""
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


@numba.njit(nogil=True, cache=True)
def _offer_touched(bias: Any, scratch: Scratch, n_touched: int, labels: Any, scores: Any) -> int:
    """Offer the touched labels to an empty heap and clear their sums; return the heap's size."""
    size, worst = 0, -np.inf
    for label in scratch.touched[:n_touched]:
        score = scratch.sums[label] + np.float64(bias[label])
        scratch.sums[label] = 0.0
        if score >= worst:
            size = offer(labels, scores, size, label, score)
            worst = scores[0] if size == len(labels) else worst
    return size


@numba.njit(nogil=True, cache=True)
def _offer_untouched(
    bias: Any, order: Any, visited: Any, labels: Any, scores: Any, size: int
) -> None:
    """Offer labels whose score is their bias, best first, until one is not good enough."""
    for label in order:
        if visited[label]:
            continue
        # 0.0 +: an empty sum, so that a bias of -0.0 gives the same bits
        score = 0.0 + np.float64(bias[label])
        if size == len(labels) and not beats(score, label, scores[0], labels[0]):
            break
        size = offer(labels, scores, size, label, score)
