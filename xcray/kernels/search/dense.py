"""Exact top-k for dense weights: adds dense rows of weights, one per feature, instead of lists.

Sums are float64 over ascending features, then + bias, bit-identical to `postings`: a missing weight
is a zero, and adding zero does not change a sum that started with +0.0.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import float64, int64
from xcray.kernels.search.bounded_scan import SearchOutput, best_bounds
from xcray.kernels.search.lists import Bytes

# rows are padded to a multiple of this number of labels, so that loops have no remainder
LANE_LABELS = 16


class DenseWeights(NamedTuple):
    """Weights by feature including zeros, of labels and their groups.

    weights: (D, at least K + G), labels, then groups, then zeros; bias: (K,); group_bias: (G,);
    members: (K, S) int32, the groups of each label, from 0; share: factor of their scores. Without
    groups G = S = 0.
    """

    weights: Float32
    bias: Float32
    group_bias: Float32
    members: Int32
    share: float


@numba.njit(nogil=True, cache=True)
def scatter_weights(W: CSR, first: int, dense: Float32) -> None:
    """Write the weights by label, (K, D), to columns from `first` on of `dense`, which are zero."""
    for label in range(len(W.indptr) - 1):
        for p in range(W.indptr[label], W.indptr[label + 1]):
            dense[W.indices[p], first + label] = W.data[p]


# contract: the product of two float32 is exact in float64, so fusing does not change any bit
@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def add_rows(X: CSR, i: int, dense: Float32, totals: Float64) -> None:
    """Add x * weight of all features of row i, ascending, to the totals of all labels.

    Four features are processed together, in their order.
    """
    at, stop = X.indptr[i], X.indptr[i + 1]
    n = len(totals)
    while at + 4 <= stop:
        a, b, c, d = (
            dense[X.indices[at]],
            dense[X.indices[at + 1]],
            dense[X.indices[at + 2]],
            dense[X.indices[at + 3]],
        )
        p, q, r, s = (
            float64(X.data[at]),
            float64(X.data[at + 1]),
            float64(X.data[at + 2]),
            float64(X.data[at + 3]),
        )
        for label in range(n):
            total = totals[label] + p * float64(a[label])
            total += q * float64(b[label])
            total += r * float64(c[label])
            totals[label] = total + s * float64(d[label])
        at += 4
    while at < stop:
        row, x = dense[X.indices[at]], float64(X.data[at])
        for label in range(n):
            totals[label] += x * float64(row[label])
        at += 1


@inner(allocates=False)
def add_biases(rows: DenseWeights, totals: Float64) -> None:
    """Turn the sums of labels and groups into scores, as `bounded_scan.bias_of` adds them."""
    n_labels = len(rows.bias)
    groups = totals[n_labels : n_labels + len(rows.group_bias)]
    for g in range(len(groups)):
        groups[g] = rows.share * (groups[g] + float64(rows.group_bias[g]))
    for label in range(n_labels):
        bias = float64(rows.bias[label])
        for s in range(rows.members.shape[1]):
            bias += groups[np.uintp(rows.members[label, s])]
        totals[label] += bias


@numba.njit(nogil=True, cache=True)
def search_dense(
    X: CSR, first: int, stop: int, rows: DenseWeights, allowed: Bytes, out: SearchOutput
) -> None:
    """Search rows [first, stop) as `search_narrow_rows` does, by the scores of all labels.

    allowed: (K,) uint8, or empty for all.
    """
    n_labels, k = len(rows.bias), out.labels.shape[1]
    totals = np.empty(rows.weights.shape[1], np.float64)
    scores = totals[:n_labels]
    best, values = (
        np.empty(k + 1, np.int32),
        np.empty(k + 1, np.float64),
    )  # k + 1: with the runner-up
    for i in range(first, stop):
        totals[:] = 0.0
        add_rows(X, i, rows.weights, totals)
        add_biases(rows, totals)
        if len(allowed):
            for label in range(n_labels):
                scores[label] = scores[label] if allowed[label] else -np.inf
        size = best_bounds(scores, best, values)
        out.labels[i], out.scores[i] = best[:k], values[:k]
        out.exact[i], out.labels_scored[i] = 1, n_labels
        out.postings_read[i] = int64(X.indptr[i + 1] - X.indptr[i]) * n_labels
        # the gap already, as `search_narrow_rows` returns it
        out.runner_up[i] = values[k - 1] - values[k] if size > k else 0.0
