"""Kernels on sparse weights by class: the running mean of weights, and the best class of rows."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32, Int64, csr


def update_mean(mean: CSR, W: CSR, count: int) -> CSR:
    """Return the mean of `count` matrices (K, D): W, and count - 1 others with mean `mean`.

    Computed in float64, rounded to float32.
    """
    total = mean.nnz + W.nnz
    indptr, indices = np.zeros(W.n_rows + 1, np.int64), np.zeros(total, np.int32)
    data = np.zeros(total, np.float32)
    n = _update_mean(mean, W, count, indptr, indices, data)
    return csr(indptr, indices[:n], data[:n], W.n_cols)


@numba.njit(nogil=True, cache=True)
def _update_mean(
    mean: CSR, W: CSR, count: int, indptr: Int64, indices: Int32, data: Float32
) -> int:
    """Merge the rows of two matrices; return the number of entries."""
    n, end = 0, np.int32(2147483647)
    for row in range(len(W.indptr) - 1):
        a, a_end = mean.indptr[row], mean.indptr[row + 1]
        b, b_end = W.indptr[row], W.indptr[row + 1]
        while a < a_end or b < b_end:
            left = mean.indices[a] if a < a_end else end
            right = W.indices[b] if b < b_end else end
            value = 0.0
            if left <= right:
                value += np.float64(mean.data[a]) * (count - 1)
                a += 1
            if right <= left:
                value += np.float64(W.data[b])
                b += 1
            indices[n], data[n] = min(left, right), value / count
            n += 1
        indptr[row + 1] = n
    return n


@numba.njit(nogil=True, cache=True)
def best_classes(X: CSR, WT: CSR, begin: int, stop: int, best: Int64) -> None:
    """Write the class with the highest score of rows begin .. stop - 1; the lowest of equal ones.

    X: (n, D). WT: (D, K), weights by feature. best: (n,). Scores are summed in float64.
    """
    scores = np.zeros(WT.n_cols)
    for i in range(begin, stop):
        scores[:] = 0.0
        for a in range(X.indptr[i], X.indptr[i + 1]):
            x, f = np.float64(X.data[a]), X.indices[a]
            for p in range(WT.indptr[f], WT.indptr[f + 1]):
                scores[WT.indices[p]] += x * WT.data[p]
        best[i] = np.argmax(scores)
