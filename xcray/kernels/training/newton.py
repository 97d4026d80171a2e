"""Newton's method for classes with few features: row passes, and the quadratic model with l1.

The bias is feature number D, with value 1 in every row and without l1; vectors and matrices over
features have size D + 1. All functions process rows lo .. hi - 1, so that callers can check for a
stop between two calls.
"""

import numba

from xcray.arrays import CSR, Float64
from xcray.kernels.training.hinge import soft


@numba.njit(nogil=True, cache=True)
def score_rows(X: CSR, w: Float64, lo: int, hi: int, scores: Float64) -> None:
    """Compute scores[i] = w.x_i, including the bias."""
    d = len(w) - 1
    for i in range(lo, hi):
        total = w[d]
        for p in range(X.indptr[i], X.indptr[i + 1]):
            total += X.data[p] * w[X.indices[p]]
        scores[i] = total


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
            for p in range(X.indptr[i], X.indptr[i + 1]):
                v[X.indices[p]] += factors[i] * X.data[p]
            v[d] += factors[i]


@numba.njit(nogil=True, cache=True)
def add_outer(X: CSR, factors: Float64, lo: int, hi: int, H: Float64) -> None:
    """Add the sum of factors[i] x_i x_i' to the lower triangle of H; features must ascend."""
    d = len(H) - 1
    for i in range(lo, hi):
        if factors[i] != 0.0:
            begin, end = X.indptr[i], X.indptr[i + 1]
            for p in range(begin, end):
                row, f = H[X.indices[p]], factors[i] * X.data[p]
                for q in range(begin, p + 1):
                    row[X.indices[q]] += f * X.data[q]
                H[d, X.indices[p]] += f
            H[d, d] += factors[i]


@numba.njit(nogil=True, cache=True)
def symmetrise(H: Float64, M: Float64, taus: Float64) -> None:
    """Copy the lower triangle of H to all of M, and add taus (D + 1,) to the diagonal."""
    for j in range(len(H)):
        for k in range(j + 1):
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


@numba.njit(nogil=True, cache=True)
def dual_value(
    v: Float64, first: float, second: float, scale: float, lam: float, taus: Float64
) -> float:
    """Return the dual at `scale` times alpha.

    first: sum of alpha; second: sum of inv alpha^2; v: sum of alpha y x.
    """
    d = len(v) - 1
    w2 = (scale * v[d]) ** 2 / taus[d]
    for j in range(d):
        w2 += soft(scale * v[j], lam) ** 2 / taus[j]
    value: float = scale * first - 0.5 * scale * scale * second - 0.5 * w2
    return value
