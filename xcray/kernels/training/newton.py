"""Newton's method for classes with few features: row passes, and the quadratic model with l1.

The bias is feature number D, with value 1 in every row and without l1; vectors and matrices over
features have size D + 1. All functions process rows lo .. hi - 1, so that callers can check for a
stop between two calls.
"""

import math

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int64
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import soft

MIN_DENSITY = 0.25  # of rows that are multiplied as dense rows
FOUR = 4  # rows that are read for one update of H
SCALE_STEPS = 60  # golden-section steps for the scale of the dual


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})
def score_rows(X: CSR, w: Float64, lo: int, hi: int, scores: Float64) -> None:
    """Compute scores[i] = w.x_i, including the bias; SIMD over the entries of a row."""
    d = len(w) - 1
    for i in range(lo, hi):
        total = 0.0
        for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
            total += X.data[p] * w[np.uint32(X.indices[p])]
        scores[i] = total + w[d]


@numba.njit(nogil=True, cache=True)
def violations(signs: Float64, scores: Float64, z: Float64) -> None:
    """Compute z[i] = max(0, 1 - y_i score_i)."""
    for i in range(len(signs)):
        z[i] = max(0.0, 1.0 - signs[i] * scores[i])


@numba.njit(nogil=True, cache=True)
def add_rows(X: CSR, factors: Float64, lo: int, hi: int, v: Float64) -> None:
    """Add the sum of factors[i] x_i to v."""
    d = len(v) - 1
    for i in range(lo, hi):
        if factors[i] != 0.0:
            for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
                v[np.uint32(X.indices[p])] += factors[i] * X.data[p]
            v[d] += factors[i]


@inner()
def add_sparse_outer(X: CSR, i: int, factor: float, H: Float64) -> None:
    """Add factor x_i x_i' to the upper triangle of H; the features of a row must ascend."""
    d = len(H) - 1
    begin, end = X.indptr[i], X.indptr[i + 1]
    for p in range(begin, end):
        row, f = H[X.indices[p]], factor * X.data[p]
        for q in range(p, end):
            row[X.indices[q]] += f * X.data[q]
        row[d] += f
    H[d, d] += factor


@inner(fastmath={"contract"})
def add_dense_outer(block: Float64, factors: Float64, H: Float64) -> None:
    """Add the sum of factors[r] x_r x_r' of FOUR rows to the upper triangle of H; SIMD."""
    for j in range(len(H)):
        a, b = factors[0] * block[0, j], factors[1] * block[1, j]
        c, e = factors[2] * block[2, j], factors[3] * block[3, j]
        if a != 0.0 or b != 0.0 or c != 0.0 or e != 0.0:
            row = H[j]
            for k in range(np.uint64(j), np.uint64(len(H))):
                row[k] += a * block[0, k] + b * block[1, k] + c * block[2, k] + e * block[3, k]


@numba.njit(nogil=True, cache=True)
def add_outer(X: CSR, rows: Int64, factors: Float64, H: Float64) -> None:
    """Add the sum of factors[k] x x' of rows[k] to the upper triangle of H.

    Rows that have many of the features are written as dense rows, FOUR at a time.
    """
    d = len(H) - 1
    if len(X.data) < MIN_DENSITY * (len(X.indptr) - 1) * d:
        for k in range(len(rows)):
            add_sparse_outer(X, rows[k], factors[k], H)
        return
    block, parts = np.empty((FOUR, d + 1)), np.empty(FOUR)
    for lo in range(0, len(rows), FOUR):
        block[:], parts[:] = 0.0, 0.0
        for r in range(min(FOUR, len(rows) - lo)):
            i, parts[r], block[r, d] = rows[lo + r], factors[lo + r], 1.0
            for p in range(X.indptr[i], X.indptr[i + 1]):
                block[r, X.indices[p]] = X.data[p]
        add_dense_outer(block, parts, H)


@numba.njit(nogil=True, cache=True)
def symmetrise(H: Float64, M: Float64, taus: Float64) -> None:
    """Copy the upper triangle of H to all of M, and add taus (D + 1,) to the diagonal."""
    for j in range(len(H)):
        for k in range(j, len(H)):
            M[j, k] = H[j, k]
            M[k, j] = H[j, k]
        M[j, j] += taus[j]


@numba.njit(nogil=True, cache=True)
def minimise_model(
    M: Float64, slope: Float64, w: Float64, lam: float, sweeps: int, tolerance: float, step: Float64
) -> int:
    """Minimise slope.s + s'Ms/2 + lam |w + s|_1 over s by coordinate descent from `step` = 0.

    The bias has no l1. Ends when a sweep gains less than `tolerance` of the total gain. Returns the
    number of sweeps.
    """
    n = len(w)
    pull = slope.copy()  # slope + M step
    step[:] = 0.0
    gained = 0.0
    for done in range(sweeps):
        gain = 0.0
        for j in range(n):
            curvature = M[j, j]
            target = curvature * (w[j] + step[j]) - pull[j]
            change = (soft(target, lam) if j < n - 1 else target) / curvature - w[j] - step[j]
            if change != 0.0:
                step[j] += change
                gain += curvature * change * change
                row = M[j]
                for k in range(n):
                    pull[k] += change * row[k]
        gained += gain
        if gain <= tolerance * gained:
            return done + 1
    return sweeps


@inner()
def dual_value(
    v: Float64, first: float, second: float, scale: float, lam: float, taus: Float64
) -> float:
    """Return the dual at `scale` times alpha; see `best_dual`."""
    d = len(v) - 1
    w2 = (scale * v[d]) ** 2 / taus[d]
    for j in range(d):
        w2 += soft(scale * v[j], lam) ** 2 / taus[j]
    value: float = scale * first - 0.5 * scale * scale * second - 0.5 * w2
    return value


@numba.njit(nogil=True, cache=True)
def best_dual(v: Float64, first: float, second: float, lam: float, taus: Float64) -> float:
    """Return the dual at the best multiple of alpha, by golden section; it is concave.

    first: sum of alpha; second: sum of inv alpha^2; v: sum of alpha y x.
    """
    low, high, ratio = 0.0, 2.0, 0.5 * (math.sqrt(5.0) - 1.0)
    for _ in range(SCALE_STEPS):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if dual_value(v, first, second, a, lam, taus) < dual_value(v, first, second, b, lam, taus):
            low = a
        else:
            high = b
    best = dual_value(v, first, second, 0.5 * (low + high), lam, taus)
    return max(best, dual_value(v, first, second, 1.0, lam, taus))
