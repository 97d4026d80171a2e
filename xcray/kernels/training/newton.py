"""Newton's method for classes with few features: row passes, and the quadratic model with l1.

The bias is feature number D, with value 1 in every row and without l1; vectors and matrices over
features have size D + 1. Functions read the rows of a list, (n,) int64, so that a class can be
minimised over some of its rows, and callers can check for a stop between two parts of the list.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, frozen
from xcray.kernels.inner import inner
from xcray.kernels.sparse import to_dense
from xcray.kernels.training.hinge import soft

# of rows that are multiplied as dense rows, in single and in double precision
MIN_DENSITY_SINGLE, MIN_DENSITY = 0.15, 0.25
BLOCK_BYTES = 576  # of a feature in the rows of an update of H; a power of two uses few cache sets
LANES = 16  # the number of rows that are multiplied is rounded up to a multiple of it
TILE = 4  # rows of H that are updated together; its size is a multiple of it
LENGTHS, LENGTH_TOLERANCE = 40, 0.1  # of `best_length`
BISECTIONS, KINK = 40, 1e-9  # of the length of a step of the model; relative, taken for zero
SWEEP_SHARE = 6  # features per sweep that takes as long as a solution for them
SCALE_STEPS = 30  # golden-section steps for the scale of the dual


class Rows(NamedTuple):
    """Rows by entry, and as a dense matrix where that is not larger.

    X: (N, D); dense: (N, D) float32, or (0, 0).
    """

    X: CSR
    dense: Float32


def dense_size(X: CSR) -> int:
    """Return the number of values of `Rows.dense`."""
    size = X.n_rows * X.n_cols
    return size if size <= 2 * X.nnz else 0


def rows_of(X: CSR) -> Rows:
    """Return the rows of X in the form that passes over them read."""
    return Rows(X, to_dense(X) if dense_size(X) else frozen(np.empty((0, 0)), np.float32))


@inner(fastmath={"reassoc", "nsz", "contract"})
def dense_product(values: Float32, w: Float64) -> float:
    """Return the product of w, without the bias, with a dense row; SIMD."""
    total = 0.0
    for j in range(np.uint64(len(values))):
        total += values[j] * w[j]
    return total


@inner(fastmath={"reassoc", "nsz", "contract"})
def sparse_product(X: CSR, i: int, w: Float64) -> float:
    """Return the product of w, without the bias, with row i; SIMD."""
    total = 0.0
    for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        total += X.data[p] * w[np.uint32(X.indices[p])]
    return total


@numba.njit(nogil=True, cache=True)
def score_rows(rows: Rows, chosen: Int64, w: Float64, scores: Float64) -> None:
    """Compute scores[k] = w.x of row chosen[k], including the bias."""
    bias = w[len(w) - 1]
    if len(rows.dense) > 0:
        for k in range(len(chosen)):
            scores[k] = dense_product(rows.dense[chosen[k]], w) + bias
    else:
        for k in range(len(chosen)):
            scores[k] = sparse_product(rows.X, chosen[k], w) + bias


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})
def violations(
    signs: Float64, costs: Float64, scores: Float64, z: Float64, pulls: Float64
) -> tuple[float, float]:
    """Compute z[i] = max(0, 1 - y_i score_i), and pulls[i] = y_i alpha_i of alpha_i = 2 c_i z_i.

    Returns the sums of the losses c_i z_i^2 and of alpha; that of inv_i alpha_i^2 is twice the
    first.
    """
    loss, total = 0.0, 0.0
    for i in range(len(signs)):
        z[i] = max(0.0, 1.0 - signs[i] * scores[i])
        alpha = 2.0 * costs[i] * z[i]
        pulls[i] = signs[i] * alpha
        loss += costs[i] * z[i] * z[i]
        total += alpha
    return loss, total


@numba.njit(nogil=True, cache=True)
def penalty(w: Float64, lam: float, taus: Float64) -> float:
    """Return the penalty of weights w, (D + 1,)."""
    total = 0.0
    for j in range(len(w)):
        total += 0.5 * taus[j] * w[j] * w[j] + (lam * abs(w[j]) if j < len(w) - 1 else 0.0)
    return total


@numba.njit(nogil=True, cache=True)
def changed_curvatures(
    z: Float64, costs: Float64, curvatures: Float64
) -> tuple[Int64, Float64, bool]:
    """Update the curvatures of losses at violations z, (n,), and return what to add to a Hessian.

    Returns the samples to add, the factors of their x x', and whether the Hessian starts from zero:
    if fewer samples violate than have changed.
    """
    changed, violating = 0, 0
    for k in range(len(z)):
        new = 2.0 * costs[k] if z[k] > 0.0 else 0.0
        changed += new != curvatures[k]
        violating += z[k] > 0.0
    rebuilt, n = violating < changed, 0
    which, factors = np.empty(len(z), np.int64), np.empty(len(z))
    for k in range(len(z)):
        new = 2.0 * costs[k] if z[k] > 0.0 else 0.0
        factors[n] = new if rebuilt else new - curvatures[k]
        which[n] = k
        n += factors[n] != 0.0
        curvatures[k] = new
    return which[:n], factors[:n], rebuilt


@inner(fastmath={"contract"})
def add_dense_row(values: Float32, factor: float, v: Float64) -> None:
    """Add factor times a dense row to v, except to the bias; SIMD."""
    for j in range(np.uint64(len(values))):
        v[j] += factor * values[j]


@numba.njit(nogil=True, cache=True)
def add_rows(rows: Rows, chosen: Int64, factors: Float64, v: Float64) -> None:
    """Add the sum of factors[k] x to v, x: row chosen[k]."""
    X, d = rows.X, len(v) - 1
    for k in range(len(chosen)):
        i, factor = chosen[k], factors[k]
        if factor == 0.0:
            continue
        if len(rows.dense) > 0:
            add_dense_row(rows.dense[i], factor, v)
        else:
            for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
                v[np.uint32(X.indices[p])] += factor * X.data[p]
        v[d] += factor


@inner(fastmath={"reassoc", "nsz", "contract"})
def loss_derivatives(
    signs: Float64, costs: Float64, scores: Float64, changes: Float64, length: float
) -> tuple[float, float]:
    """Return the first two derivatives in `length` of the losses at scores + length changes."""
    slope, curvature = 0.0, 0.0
    for i in range(len(scores)):
        z = 1.0 - signs[i] * (scores[i] + length * changes[i])
        rate = 2.0 * costs[i] * changes[i]
        slope -= rate * signs[i] * max(0.0, z)
        curvature += rate * changes[i] if z > 0.0 else 0.0
    return slope, curvature


@inner()
def penalty_derivatives(
    w: Float64, direction: Float64, length: float, lam: float, taus: Float64
) -> tuple[float, float]:
    """Return the derivatives of the penalties at w + length direction: on the right, and second."""
    slope, curvature = 0.0, 0.0
    for j in range(len(w)):
        change, value = direction[j], w[j] + length * direction[j]
        slope += taus[j] * value * change
        curvature += taus[j] * change * change
        if j < len(w) - 1:
            slope += lam * (abs(change) if value == 0.0 else math.copysign(change, value * change))
    return slope, curvature


@numba.njit(nogil=True, cache=True)
def best_length(
    signs: Float64,
    costs: Float64,
    scores: Float64,
    changes: Float64,
    w: Float64,
    direction: Float64,
    lam: float,
    taus: Float64,
) -> float:
    """Return the length of a step along `direction` that about minimises the objective.

    scores: (N,) of w; changes: (N,) of the direction. The objective on the line is convex with a
    piecewise linear derivative. Newton's method finds where it changes its sign, within bounds, and
    ends when it is at most LENGTH_TOLERANCE of that at 0. The first length is 1, which keeps the
    zeros of the model. Returns 0.0 if the objective does not fall.
    """
    low, high, length, first = 0.0, np.inf, 0.0, 0.0
    for turn in range(LENGTHS):
        slope, curvature = loss_derivatives(signs, costs, scores, changes, length)
        more, bend = penalty_derivatives(w, direction, length, lam, taus)
        slope, curvature = slope + more, curvature + bend
        if turn == 0:
            first = slope
            if slope >= 0.0:
                return 0.0
        if abs(slope) <= LENGTH_TOLERANCE * abs(first):
            break
        low, high = (length, high) if slope < 0.0 else (low, length)
        length = length - slope / curvature if turn > 0 else 1.0
        if not low < length < high:
            length = 0.5 * (low + high) if high < np.inf else 2.0 * low
    return length


@inner()
def add_sparse_outer(X: CSR, i: int, factor: float, H: Float64) -> None:
    """Add factor x_i x_i' to the upper triangle of H; the features of a row must ascend."""
    d = X.n_cols
    begin, end = X.indptr[i], X.indptr[i + 1]
    for p in range(begin, end):
        row, f = H[X.indices[p]], factor * X.data[p]
        for q in range(p, end):
            row[X.indices[q]] += f * X.data[q]
        row[d] += f
    H[d, d] += factor


@inner()
def take_block(rows: Rows, chosen: Int64, x: Float32 | Float64) -> None:
    """Write rows to the first columns of x, see `empty_block`, with a 1 for the bias."""
    X, d = rows.X, rows.X.n_cols
    if len(rows.dense) == 0:
        x[:d] = 0.0
    for r in range(len(chosen)):
        i = chosen[r]
        if len(rows.dense) > 0:
            for j in range(np.uint64(d)):
                x[j, r] = rows.dense[i, j]
        else:
            for p in range(X.indptr[i], X.indptr[i + 1]):
                x[X.indices[p], r] = X.data[p]
        x[d, r] = 1.0


@inner(fastmath={"reassoc", "nsz", "contract"})
def add_block(x: Float32 | Float64, factors: Float64, H: Float64) -> None:
    """Add the sum of factors[r] x_r x_r' over the first columns of x to the upper triangle of H.

    x: see `empty_block`. SIMD, by tiles of TILE rows of H and two columns, whose sums, of the type
    of x, stay in registers. Some entries below the diagonal change, too.
    """
    scaled, zero = np.empty((TILE, len(factors)), x.dtype), x.dtype.type(0.0)
    a, b, c, d = scaled[0], scaled[1], scaled[2], scaled[3]
    for j in range(0, len(H), TILE):
        for t in range(TILE):
            for r in range(len(factors)):
                scaled[t, r] = factors[r] * x[j + t, r]
        for k in range(j, len(H), 2):
            p, q = x[k], x[k + 1]
            ap, bp, cp, dp, aq, bq, cq, dq = zero, zero, zero, zero, zero, zero, zero, zero
            for r in range(np.uint64(len(factors))):
                ap += a[r] * p[r]
                bp += b[r] * p[r]
                cp += c[r] * p[r]
                dp += d[r] * p[r]
                aq += a[r] * q[r]
                bq += b[r] * q[r]
                cq += c[r] * q[r]
                dq += d[r] * q[r]
            H[j, k] += ap
            H[j + 1, k] += bp
            H[j + 2, k] += cp
            H[j + 3, k] += dp
            H[j, k + 1] += aq
            H[j + 1, k + 1] += bq
            H[j + 2, k + 1] += cq
            H[j + 3, k + 1] += dq


@numba.njit(nogil=True, cache=True)
def add_outer(
    rows: Rows, chosen: Int64, factors: Float64, x: Float32 | Float64, H: Float64
) -> None:
    """Add the sum of factors[k] x x' of rows chosen[k] to the upper triangle of H.

    H: see `empty_hessian`. Rows that have many of the features are read as dense rows, a block at a
    time, in the memory of x, see `empty_block`.
    """
    X, density = rows.X, MIN_DENSITY_SINGLE if x.itemsize == 4 else MIN_DENSITY
    if len(X.data) < density * (len(X.indptr) - 1) * X.n_cols:
        for k in range(len(chosen)):
            add_sparse_outer(X, chosen[k], factors[k], H)
        return
    size = x.shape[1]
    parts = np.empty(size)
    for lo in range(0, len(chosen), size):
        n = min(size, len(chosen) - lo)
        take_block(rows, chosen[lo : lo + n], x)
        parts[:n], parts[n:] = factors[lo : lo + n], 0.0
        add_block(x, parts[: -(-n // LANES) * LANES], H)


def empty_hessian(n_features: int) -> Float64:
    """Return zeros for the upper triangle of a matrix of D + 1 features, with padding."""
    return np.zeros((padded_size(n_features), padded_size(n_features)))


def empty_block(n_features: int, dtype: Any) -> Float32 | Float64:
    """Return zeros for a block of rows, a feature per row; products of rows are of `dtype`."""
    return np.zeros((padded_size(n_features), BLOCK_BYTES // np.dtype(dtype).itemsize), dtype)


def padded_size(n_features: int) -> int:
    """Return the number of rows and of columns of `empty_hessian`."""
    return -(-(n_features + 1) // TILE) * TILE


@numba.njit(nogil=True, cache=True)
def symmetrise(H: Float64, M: Float64, taus: Float64) -> None:
    """Copy the upper triangle of H to all of M, and add taus (D + 1,) to the diagonal."""
    for j in range(len(M)):
        for k in range(j, len(M)):
            M[j, k] = H[j, k]
            M[k, j] = H[j, k]
        M[j, j] += taus[j]


@inner(fastmath={"reassoc", "nsz", "contract"})
def dot(a: Float64, b: Float64, n: int) -> float:
    """Return the product of the first n entries; SIMD."""
    total = 0.0
    for k in range(np.uint64(n)):
        total += a[k] * b[k]
    return total


@inner()
def solve_positive_definite(A: Float64, x: Float64) -> bool:
    """Replace x by the solution of A y = x, and the lower triangle of A by its Cholesky factor.

    False if a pivot is not positive; x is meaningless then.
    """
    n = len(x)
    for i in range(n):
        for j in range(i):
            A[i, j] = (A[i, j] - dot(A[i], A[j], j)) / A[j, j]
        pivot = A[i, i] - dot(A[i], A[i], i)
        if not pivot > 0.0:
            return False
        A[i, i] = math.sqrt(pivot)
        x[i] = (x[i] - dot(A[i], x, i)) / A[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= A[i, i]
        for k in range(i):
            x[k] -= A[i, k] * x[i]
    return True


@inner()
def length_on_line(u: Float64, d: Float64, lam: float, slope: float, curvature: float) -> float:
    """Return the t in [0, 1] that minimises t slope + t^2/2 curvature + lam |u + t d|_1.

    The last entry has no l1. 1, which minimises it for the signs of u, if these stay; else by
    bisection of the derivative.
    """
    same = True
    for j in range(len(u) - 1):
        same &= d[j] == 0.0 or u[j] * (u[j] + d[j]) > 0.0
    if same:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        t = 0.5 * (low + high)
        derivative = slope + t * curvature
        for j in range(len(u) - 1):
            derivative += lam * math.copysign(d[j], (u[j] + t * d[j]) * d[j])
        if derivative <= 0.0:
            low = t
        else:
            high = t
    return low


@inner()
def move_on_support(M: Float64, w: Float64, lam: float, step: Float64, pull: Float64) -> float:
    """Move `step` towards the minimum of the model for the weights that are not zero.

    The minimum for their signs, or for all weights without l1 if all are zero; as far as the model
    falls on the way. A weight that becomes zero there is exactly zero. pull = slope + M step.
    Returns by how much the model falls.
    """
    u = w + step
    support = np.flatnonzero(u[:-1])
    if len(support) == 0:
        support = np.arange(len(u) - 1)
    support = np.append(support, len(u) - 1)
    A, x = np.empty((len(support), len(support))), np.empty(len(support))
    for a, j in enumerate(support):
        x[a] = -pull[j] - (lam * np.sign(u[j]) if j < len(u) - 1 else 0.0)
        for b in range(a + 1):
            A[a, b] = M[j, support[b]]
    if not solve_positive_definite(A, x):
        return 0.0
    d, slope, curvature = np.zeros(len(u)), 0.0, 0.0
    for a, j in enumerate(support):
        d[j] = x[a]
    change = np.empty(len(u))
    for k in range(len(u)):
        change[k] = dot(M[k], d, len(u))
        slope += pull[k] * d[k]
        curvature += change[k] * d[k]
    t = length_on_line(u, d, lam, slope, curvature)
    gain: float = -t * slope - 0.5 * t * t * curvature
    for k in range(len(u) - 1):
        gain -= lam * (abs(u[k] + t * d[k]) - abs(u[k]))
    if not gain > 0.0:
        return 0.0
    for k in range(len(u)):
        step[k] += t * d[k]
        pull[k] += t * change[k]
        if k < len(u) - 1 and u[k] != 0.0 and abs(u[k] + t * d[k]) <= KINK * abs(u[k]):
            step[k] = -w[k]
    return gain


@inner()
def model_sweep(M: Float64, w: Float64, lam: float, step: Float64, pull: Float64) -> float:
    """Take a step of coordinate descent on each weight; return by how much the model falls."""
    n, gain = len(w), 0.0
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
    return gain


@numba.njit(nogil=True, cache=True)
def minimise_model(
    M: Float64, slope: Float64, w: Float64, lam: float, turns: int, tolerance: float, step: Float64
) -> int:
    """Minimise slope.s + s'Ms/2 + lam |w + s|_1 over s, written to `step`.

    The bias has no l1. Turns of the solution for the current signs, and of sweeps of coordinate
    descent, which change them and take as long together. Ends when the first sweep of a turn gains
    at most `tolerance` of the total gain. Returns the number of sweeps.
    """
    pull, gained, sweeps = slope.copy(), 0.0, 0  # pull: slope + M step
    step[:] = 0.0
    for _ in range(turns):
        gained += move_on_support(M, w, lam, step, pull)
        for repeat in range(1 + len(w) // SWEEP_SHARE):
            gain = model_sweep(M, w, lam, step, pull)
            gained += gain
            sweeps += 1
            if gain <= tolerance * gained:
                if repeat == 0:
                    return sweeps
                break
    return sweeps


@numba.njit(nogil=True, cache=True)
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
