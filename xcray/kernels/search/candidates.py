"""Exact scores of given labels, and the nearest bit codes."""

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32
from xcray.kernels.inner import inner

M1, M2 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
M4, H01 = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
ONE, TWO, FOUR, TOP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


@numba.njit(nogil=True, cache=True)
def score_candidates(X: CSR, W: CSR, labels: Int32, out: Float64) -> None:
    """Write x_i . w_c for each label c of row i; labels, out: (n, m).

    A label of -1 has the score -inf. Entries are added in the order of the features of W.
    """
    x = np.zeros(W.n_cols)
    for i in range(len(labels)):
        for p in range(X.indptr[i], X.indptr[i + 1]):
            x[X.indices[p]] = X.data[p]
        for a in range(labels.shape[1]):
            c = labels[i, a]
            if c < 0:
                out[i, a] = -np.inf
                continue
            total = 0.0
            for p in range(W.indptr[c], W.indptr[c + 1]):
                total += x[W.indices[p]] * W.data[p]
            out[i, a] = total
        for p in range(X.indptr[i], X.indptr[i + 1]):
            x[X.indices[p]] = 0.0


@inner()
def count_ones(x: np.uint64) -> int:
    """Return the number of bits that are 1."""
    x -= (x >> ONE) & M1
    x = (x & M2) + ((x >> TWO) & M2)
    x = (x + (x >> FOUR)) & M4
    return int(np.int64((x * H01) >> TOP))


@numba.njit(nogil=True, cache=True)
def nearest_codes(queries: np.ndarray, codes: np.ndarray, labels: Int32) -> None:
    """Write the rows of `codes` (K, words) nearest to each of `queries` (n, words), uint64.

    The distance is the number of bits that differ, ties go to the lower row. labels: (n, m), -1
    behind the last of fewer than m rows; in ascending order, not by distance.
    """
    K, words, m = len(codes), codes.shape[1], labels.shape[1]
    distances = np.zeros(K, np.int32)
    for i in range(len(queries)):
        counts = np.zeros(64 * words + 1, np.int64)
        for c in range(K):
            d = 0
            for j in range(words):
                d += count_ones(queries[i, j] ^ codes[c, j])
            distances[c] = d
            counts[d] += 1
        limit, nearer = 0, 0  # all rows nearer than `limit` are taken, and the first at `limit`
        while limit < len(counts) - 1 and nearer + counts[limit] < m:
            nearer += counts[limit]
            limit += 1
        left, n = m - nearer, 0
        labels[i] = -1
        for c in range(K):
            if distances[c] < limit or (distances[c] == limit and left > 0):
                left -= distances[c] == limit
                labels[i, n] = c
                n += 1
                if n == m:
                    break
