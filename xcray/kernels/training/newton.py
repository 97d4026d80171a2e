"""Newton's method for classes over few features: passes over the rows, and the l1-regularised quadratic model.

The bias is feature number D, of value 1 in every row and free of l1; matrices and vectors over features have D + 1 places.
All functions work on rows lo .. hi - 1, so that whoever calls them can look up between two calls.
"""

import numba

from xcray.arrays import CSR, Float64
from xcray.kernels.training.hinge import soft

# The content of these files, held by test_house.py: numba's disk cache sees changes of this file alone.
BUILT_ON = {"training.hinge": "b797d533"}


@numba.njit(nogil=True, cache=True)
def scores_of(X: CSR, w: Float64, lo: int, hi: int, scores: Float64) -> None:
    """scores[i] = w.x_i, with the bias."""
    d = len(w) - 1
    for i in range(lo, hi):
        total = w[d]
        for p in range(X.indptr[i], X.indptr[i + 1]):
            total += X.data[p] * w[X.indices[p]]
        scores[i] = total


@numba.njit(nogil=True, cache=True)
def violations(signs: Float64, scores: Float64, z: Float64) -> None:
    """z[i] = max(0, 1 - y_i score_i)."""
    for i in range(len(signs)):
        z[i] = max(0.0, 1.0 - signs[i] * scores[i])


@numba.njit(nogil=True, cache=True)
def add_rows(X: CSR, factors: Float64, lo: int, hi: int, v: Float64) -> None:
    """v += sum of factors[i] x_i."""
    d = len(v) - 1
    for i in range(lo, hi):
        if factors[i] != 0.0:
            for p in range(X.indptr[i], X.indptr[i + 1]):
                v[X.indices[p]] += factors[i] * X.data[p]
            v[d] += factors[i]


@numba.njit(nogil=True, cache=True)
def add_outer(X: CSR, factors: Float64, lo: int, hi: int, H: Float64) -> None:
    """H += sum of factors[i] x_i x_i', the lower triangle; the rows' features ascend."""
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
def mirror(H: Float64, M: Float64, tau: float) -> None:
    """M = H whole, from its lower triangle, plus tau on the diagonal."""
    for j in range(len(H)):
        for k in range(j + 1):
            M[j, k] = H[j, k]
            M[k, j] = H[j, k]
        M[j, j] += tau


@numba.njit(nogil=True, cache=True)
def descend(
    M: Float64, slope: Float64, w: Float64, lam: float, sweeps: int, enough: float, step: Float64
) -> int:
    """Minimise slope.s + s'Ms/2 + lam |w + s|_1 over s, by coordinate descent from `step` = 0; returns the sweeps done.

    The bias pays no l1. Ends when a sweep gains less than `enough` of all that was gained.
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
        if gain <= enough * gained:
            return done + 1
    return sweeps


@numba.njit(nogil=True, cache=True)
def dual_value(
    v: Float64, first: float, second: float, scale: float, lam: float, tau: float
) -> float:
    """The dual at `scale` times alpha: first = sum of alpha, second = sum of inv alpha^2, v = sum of alpha y x."""
    d = len(v) - 1
    w2 = (scale * v[d]) ** 2
    for j in range(d):
        w2 += soft(scale * v[j], lam) ** 2
    value: float = scale * first - 0.5 * scale * scale * second - 0.5 * w2 / tau
    return value
