"""Multinomial logistic regression in one cell of the grid: scores, sums, residuals, steps.

A block of weights is W (D, k): one row per feature, one column per label of the block, so that a
feature of a row finds all its labels in contiguous memory. Rows are given by their numbers, in any
order. With b_i = -log of the partition function of row i at its last exact update,

    p_ik = exp(min(w_k.x_i + b_i, 0))

because between two exact updates the exponent can exceed 0, which would not be a probability.
Partial sums of the partition function are pairs (top, total): the largest score and the sum of
exp(score - top).

Source: Raman et al., "DS-MLR", eq. (10)-(13) and algorithms 1 and 2. The pairs and the bound of the
exponent are additions.
"""

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts, the first exact in few bits
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
MIN_EXPONENT = np.float32(-87.0)  # its exp is about the smallest normal float32
MAX_EXPONENT = np.float32(80.0)  # its exp is far below the largest float32
EMPTY_TOP = np.float32(-3e38)  # largest score of an empty sum
TINY_SQUARE = np.float32(1e-35)  # avoids a division by 0 for features without gradients


class ShardRows(NamedTuple):
    """Rows of a shard and their state.

    X: (n, D); T: (n, K) targets, which add up to 1 in each row; weights: (n,) float32, the c_i; b:
    (n,) float32; top: (n,) float32 and total: (n,) float64, partial sums of the current sweep. The
    last three are changed in place.
    """

    X: CSR
    T: CSR
    weights: Float32
    b: Float32
    top: Float32
    total: Float64


class StepRule(NamedTuple):
    """Step sizes: `rate`, over the root of a feature's sum of squared gradients if `adaptive`.

    norm: (D,) float32 lam / n_j, the gradient of the norm distributed over the n_j rows with
    feature j; share: that of the block in all labels.
    """

    rate: np.float32
    norm: Float32
    share: np.float32
    adaptive: bool


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def exponentials(values: Float32, shift: np.float32, bits: Int32, powers: Float32) -> np.float32:
    """Replace values by exp(min(values + shift, 0)), at least e^-87; return their sum.

    bits, powers: (k,) scratch, two views of the same memory. The relative error is at most 2e-7:
    Cody and Waite's reduction to |f| <= ln(2) / 2 and a polynomial, all in SIMD.
    """
    k = len(values)
    for c in range(k):
        x = min(max(values[c] + shift, MIN_EXPONENT), np.float32(0.0))
        n = np.floor(x * LOG2_E + np.float32(0.5))
        f = (x - n * LN2_HIGH) - n * LN2_LOW
        p = np.float32(1.9875691500e-4)
        p = p * f + np.float32(1.3981999507e-3)
        p = p * f + np.float32(8.3334519073e-3)
        p = p * f + np.float32(4.1665795894e-2)
        p = p * f + np.float32(1.6666665459e-1)
        p = p * f + np.float32(5.0000001201e-1)
        values[c] = p * f * f + f + np.float32(1.0)
        bits[c] = (np.int32(n) + np.int32(127)) << 23
    total = np.float32(0.0)
    for c in range(k):
        values[c] *= powers[c]
        total += values[c]
    return total


@inner(fastmath={"contract", "nsz", "reassoc"})
def _largest(values: Float32) -> np.float32:
    """Return the largest of one or more values."""
    top = values[0]
    for c in range(1, len(values)):
        top = max(top, values[c])
    return np.float32(top)


@inner(fastmath={"contract", "nsz"})
def _score(X: CSR, row: int, W: Float32, out: Float32) -> None:
    """Compute out = W' x of one row; (k,)."""
    out[:] = np.float32(0.0)
    for p in range(X.indptr[row], X.indptr[row + 1]):
        x, w = X.data[p], W[X.indices[p]]
        for c in range(len(out)):
            out[c] += x * w[c]


@inner()
def _add_pair(
    top: Float32, total: Float64, row: int, new_top: np.float32, new_total: np.float32
) -> None:
    """Add a partial sum to that of a row."""
    if new_top > top[row]:
        total[row] = total[row] * np.exp(np.float64(top[row]) - np.float64(new_top)) + new_total
        top[row] = new_top
    else:
        total[row] += new_total * np.exp(np.float64(new_top) - np.float64(top[row]))


@inner()
def _subtract_targets(T: CSR, row: int, lo: int, residual: Float32) -> None:
    """Subtract the targets of one row from `residual`, for the labels of a block.

    lo: first label of the block; T: (n, K) targets, labels ascending.
    """
    hi = lo + len(residual)
    for q in range(T.indptr[row], T.indptr[row + 1]):
        if lo <= T.indices[q] < hi:
            residual[T.indices[q] - lo] -= T.data[q]


@numba.njit(nogil=True, cache=True)
def scores(X: CSR, rows: Int64, W: Float32, S: Float32) -> None:
    """Compute S[i] = W' x of rows[i]; S: (len(rows), k)."""
    for i in range(len(rows)):
        _score(X, rows[i], W, S[i])


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def add_outer(X: CSR, rows: Int64, R: Float32, G: Float32) -> None:
    """Add the sum of x (of rows[i]) times R[i] to G; G: (D, k)."""
    for i in range(len(rows)):
        r = R[i]
        for p in range(X.indptr[rows[i]], X.indptr[rows[i] + 1]):
            x, g = X.data[p], G[X.indices[p]]
            for c in range(len(r)):
                g[c] += x * r[c]


@numba.njit(nogil=True, cache=True)
def add_squares(X: CSR, weights: Float32, C: Float32) -> None:
    """Add the sum of weight x x' to C; C: (D, D)."""
    for i in range(len(weights)):
        for p in range(X.indptr[i], X.indptr[i + 1]):
            row, f = C[X.indices[p]], weights[i] * X.data[p]
            for q in range(X.indptr[i], X.indptr[i + 1]):
                row[X.indices[q]] += f * X.data[q]


@numba.njit(nogil=True, cache=True)
def add_diagonal(X: CSR, weights: Float32, v: Float32) -> None:
    """Add the sum of weight x^2 to v, per feature; v: (D,)."""
    for i in range(len(weights)):
        for p in range(X.indptr[i], X.indptr[i + 1]):
            v[X.indices[p]] += weights[i] * X.data[p] * X.data[p]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def squared(W: Float32) -> float:
    """Return |W|^2 of W (D, k), in double precision."""
    out = 0.0
    for j in range(W.shape[0]):
        for c in range(W.shape[1]):
            out += np.float64(W[j, c]) * np.float64(W[j, c])
    return out


@numba.njit(nogil=True, cache=True)
def add_sums(S: Float32, rows: Int64, shard: ShardRows) -> None:
    """Add scores S (len(rows), k) to the partial sums of their rows; S is unchanged."""
    e = np.empty(S.shape[1], np.float32)
    powers = np.empty(S.shape[1], np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        e[:] = S[i]
        largest = _largest(e)
        _add_pair(shard.top, shard.total, rows[i], largest, exponentials(e, -largest, bits, powers))


@numba.njit(nogil=True, cache=True)
def linear_term(S: Float32, rows: Int64, shard: ShardRows, lo: int) -> float:
    """Return the sum over rows of weight times y.score, for the labels of a block.

    lo: first label of the block; S: (len(rows), k).
    """
    out, hi, T = 0.0, lo + S.shape[1], shard.T
    for i in range(len(rows)):
        row = rows[i]
        for q in range(T.indptr[row], T.indptr[row + 1]):
            if lo <= T.indices[q] < hi:
                out += np.float64(shard.weights[row]) * T.data[q] * S[i, T.indices[q] - lo]
    return out


@numba.njit(nogil=True, cache=True)
def residuals(S: Float32, rows: Int64, shard: ShardRows, lo: int) -> None:
    """Replace scores S[i] by weight (p - y) of rows[i]; their sum times x is the gradient."""
    powers = np.empty(S.shape[1], np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        r, row = S[i], rows[i]
        exponentials(r, shard.b[row], bits, powers)
        _subtract_targets(shard.T, row, lo, r)
        for c in range(len(r)):
            r[c] *= shard.weights[row]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def _step(X: CSR, row: int, r: Float32, W: Float32, h: Float32, rule: StepRule) -> None:
    """Take the step of one row: eq. (13) with a step size per feature.

    The row's part of the norm is taken implicitly. h: (D,), see `StepRule`.
    """
    k, squared = len(r), np.float32(0.0)
    for c in range(k):
        squared += r[c] * r[c]
    squared /= rule.share
    for p in range(X.indptr[row], X.indptr[row + 1]):
        j, x = X.indices[p], X.data[p]
        h[j] += x * x * squared
        size = rule.rate / np.sqrt(h[j] + TINY_SQUARE) if rule.adaptive else rule.rate
        shrink, move, w = np.float32(1.0) / (np.float32(1.0) + size * rule.norm[j]), size * x, W[j]
        for c in range(k):
            w[c] = (w[c] - move * r[c]) * shrink


@numba.njit(nogil=True, cache=True)
def steps(
    shard: ShardRows, rows: Int64, lo: int, W: Float32, h: Float32, rule: StepRule, summed: bool
) -> None:
    """Take stochastic gradient steps on a block, row by row in the given order; cost O(nnz k).

    lo: first label of the block; W: (D, k) and h: (D,) float32 are changed in place. summed: also
    add the scores of the rows, as they are visited, to their partial sums.
    """
    k = W.shape[1]
    r, powers = np.empty(k, np.float32), np.empty(k, np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        row = rows[i]
        _score(shard.X, row, W, r)
        largest = _largest(r)
        total = exponentials(r, -largest, bits, powers)  # for the sums and for the step
        if summed:
            _add_pair(shard.top, shard.total, row, largest, total)
        factor = np.float32(np.exp(min(largest + shard.b[row], MAX_EXPONENT)))
        for c in range(k):
            r[c] = min(r[c] * factor, np.float32(1.0))
        _subtract_targets(shard.T, row, lo, r)
        for c in range(k):
            r[c] *= shard.weights[row]
        _step(shard.X, row, r, W, h, rule)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def batch_step(G: Float32, n: int, W: Float32, h: Float32, rule: StepRule) -> None:
    """Take one step for n rows together; G: (D, k) sum of their gradients.

    W (D, k) and h (D,) are changed in place.
    """
    k = W.shape[1]
    for j in range(len(h)):
        squared, w, g = np.float32(0.0), W[j], G[j]
        for c in range(k):
            squared += g[c] * g[c]
        h[j] += squared / rule.share
        size = rule.rate / np.sqrt(h[j] + TINY_SQUARE) if rule.adaptive else rule.rate
        shrink = np.float32(1.0) / (np.float32(1.0) + size * rule.norm[j] * np.float32(n))
        for c in range(k):
            w[c] = (w[c] - size * g[c]) * shrink


@numba.njit(nogil=True, cache=True)
def update_log_partition(shard: ShardRows) -> float:
    """Set b = -log of the partition function from the partial sums, and reset these.

    Returns the sum of -weight b, the part of the loss with the partition function. Source: DS-MLR,
    eq. (9).
    """
    out = 0.0
    for i in range(len(shard.b)):
        z = np.float64(shard.top[i]) + np.log(shard.total[i])
        shard.b[i] = -z
        shard.top[i], shard.total[i] = EMPTY_TOP, 0.0
        out += np.float64(shard.weights[i]) * z
    return out


@numba.njit(nogil=True, cache=True)
def merge_best(S: Float32, rows: Int64, lo: int, labels: Int32, best: Float32) -> None:
    """Merge scores of labels lo, lo + 1, ... into the best labels of each row.

    S: (len(rows), k); labels, best: (n, m), highest score first, ties by lower label. Free
    positions have label -1 and score -inf. Each label occurs once.
    """
    m = labels.shape[1]
    for i in range(len(rows)):
        best_labels, values = labels[rows[i]], best[rows[i]]
        for c in range(S.shape[1]):
            s, label = S[i, c], lo + c
            if s < values[m - 1] or (s == values[m - 1] and label > best_labels[m - 1] >= 0):
                continue
            at = m - 1
            while at > 0 and (
                s > values[at - 1] or (s == values[at - 1] and label < best_labels[at - 1])
            ):
                values[at], best_labels[at] = values[at - 1], best_labels[at - 1]
                at -= 1
            values[at], best_labels[at] = s, label
