"""Products of sparse rows with dense matrices in double precision, over ranges of rows.

The matrices have one column per label.
"""

import numba
import numpy as np

from xcray.arrays import CSR, Float64


@numba.njit(nogil=True, cache=True)
def scores(X: CSR, W: Float64, lo: int, hi: int, S: Float64) -> None:
    """Compute S = X W for rows lo .. hi-1.

    W: (D, m), C-contiguous; S: (hi-lo, m), which is overwritten.
    """
    m = W.shape[1]
    for i in range(lo, hi):
        S[i - lo, :] = 0.0
        for p in range(X.indptr[i], X.indptr[i + 1]):
            j, x = X.indices[p], X.data[p]
            for k in range(m):
                S[i - lo, k] += x * W[j, k]


@numba.njit(nogil=True, cache=True)
def add_adjoint(X: CSR, R: Float64, lo: int, G: Float64) -> None:
    """Add X'R over rows lo .. lo + len(R) - 1 to G. R: (n, m); G: (D, m)."""
    m = R.shape[1]
    for i in range(len(R)):
        for p in range(X.indptr[lo + i], X.indptr[lo + i + 1]):
            j, x = X.indices[p], X.data[p]
            for k in range(m):
                G[j, k] += x * R[i, k]


@numba.njit(nogil=True, cache=True)
def add_adjoint_squared(X: CSR, R: Float64, lo: int, G: Float64) -> None:
    """Run `add_adjoint` with every entry of X squared."""
    m = R.shape[1]
    for i in range(len(R)):
        for p in range(X.indptr[lo + i], X.indptr[lo + i + 1]):
            j = X.indices[p]
            x = np.float64(X.data[p]) * X.data[p]
            for k in range(m):
                G[j, k] += x * R[i, k]
