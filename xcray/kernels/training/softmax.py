"""Multinomial logistic regression in one cell of the grid: scores, safe exponents, partial sums, residuals, steps.

A block of weights is W (D, k): one row a feature, one column a label of the block, so that a feature of a row meets all its
labels in one stretch of memory. Rows are named by their numbers, in any order. With b_i = -log of the partition function of row
i, as it was at its last exact update,

    p_ik = exp(min(w_k.x_i + b_i, 0))      between two exact updates the exponent can pass 0, which no probability does

Partial sums of the partition function are pairs (top, total): the largest score and the sum of exp(score - top).

Source: Raman et al., "DS-MLR", eq. (10)-(13) and algorithms 1 and 2; the pairs and the bound of the exponent are ours.
"""

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = (
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)  # ln 2 in two parts, the first exact in few bits
LEAST = np.float32(-87.0)  # exp of it is the smallest normal float32, about
MOST = np.float32(80.0)  # exp of it is far below the largest float32
EMPTY = np.float32(-3e38)  # the top of no scores at all
TINY = np.float32(1e-35)  # under the root of the step: a feature that never had a gradient


class Rows(NamedTuple):
    """The rows of a shard and what stays with them.

    X: (n, D); T: (n, K) targets, which add up to 1 in each row; weights: (n,) float32, the c_i;
    b: (n,) float32; top: (n,) float32 and total: (n,) float64: partial sums of the lap under way. The last three change in place.
    """

    X: CSR
    T: CSR
    weights: Float32
    b: Float32
    top: Float32
    total: Float64


class Rule(NamedTuple):
    """How long steps are: `rate`, over the root of the sum of squared gradients of a feature (over all labels) if `adaptive`.

    norm: (D,) float32 lam / n_j, the gradient of the norm spread over the n_j rows that have feature j; share: of all labels, the
    block's.
    """

    rate: np.float32
    norm: Float32
    share: np.float32
    adaptive: bool


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def exponentials(values: Float32, shift: np.float32, bits: Int32, powers: Float32) -> np.float32:
    """values = exp(min(values + shift, 0)), at least e^-87; returns their sum. bits, powers: (k,) scratch, one memory seen as both.

    Relative error at most 2e-7: Cody and Waite's reduction to |f| <= ln(2) / 2 and a polynomial, all of it in SIMD.
    """
    k = len(values)
    for c in range(k):
        x = min(max(values[c] + shift, LEAST), np.float32(0.0))
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


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def _largest(values: Float32) -> np.float32:
    """The largest of some values, at least one."""
    top = values[0]
    for c in range(1, len(values)):
        top = max(top, values[c])
    return np.float32(top)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def _score(X: CSR, row: int, W: Float32, out: Float32) -> None:
    """out = W' x of one row; (k,)."""
    out[:] = np.float32(0.0)
    for p in range(X.indptr[row], X.indptr[row + 1]):
        x, w = X.data[p], W[X.indices[p]]
        for c in range(len(out)):
            out[c] += x * w[c]


@numba.njit(nogil=True, cache=True)
def _add_pair(
    top: Float32, total: Float64, row: int, new_top: np.float32, new_total: np.float32
) -> None:
    """Merge a partial sum into that of a row; whichever top is larger stays."""
    if new_top > top[row]:
        total[row] = total[row] * np.exp(np.float64(top[row]) - np.float64(new_top)) + new_total
        top[row] = new_top
    else:
        total[row] += new_total * np.exp(np.float64(new_top) - np.float64(top[row]))


@numba.njit(nogil=True, cache=True)
def _take_targets(T: CSR, row: int, lo: int, residual: Float32) -> None:
    """residual -= y of one row, for the labels of the block, which begins at `lo`; T: (n, K) targets, labels ascend."""
    hi = lo + len(residual)
    for q in range(T.indptr[row], T.indptr[row + 1]):
        if lo <= T.indices[q] < hi:
            residual[T.indices[q] - lo] -= T.data[q]


@numba.njit(nogil=True, cache=True)
def scores(X: CSR, rows: Int64, W: Float32, S: Float32) -> None:
    """S[i] = W' x of rows[i]; S: (len(rows), k)."""
    for i in range(len(rows)):
        _score(X, rows[i], W, S[i])


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
def add_outer(X: CSR, rows: Int64, R: Float32, G: Float32) -> None:
    """G += sum of x (of rows[i]) times R[i]; G: (D, k)."""
    for i in range(len(rows)):
        r = R[i]
        for p in range(X.indptr[rows[i]], X.indptr[rows[i] + 1]):
            x, g = X.data[p], G[X.indices[p]]
            for c in range(len(r)):
                g[c] += x * r[c]


@numba.njit(nogil=True, cache=True)
def add_squares(X: CSR, weights: Float32, C: Float32) -> None:
    """C += sum of weight x x'; C: (D, D)."""
    for i in range(len(weights)):
        for p in range(X.indptr[i], X.indptr[i + 1]):
            row, f = C[X.indices[p]], weights[i] * X.data[p]
            for q in range(X.indptr[i], X.indptr[i + 1]):
                row[X.indices[q]] += f * X.data[q]


@numba.njit(nogil=True, cache=True)
def add_diagonal(X: CSR, weights: Float32, v: Float32) -> None:
    """v += sum of weight x^2, a feature a place; v: (D,)."""
    for i in range(len(weights)):
        for p in range(X.indptr[i], X.indptr[i + 1]):
            v[X.indices[p]] += weights[i] * X.data[p] * X.data[p]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def squared(W: Float32) -> float:
    """|W|^2 of W (D, k), in double precision."""
    out = 0.0
    for j in range(W.shape[0]):
        for c in range(W.shape[1]):
            out += np.float64(W[j, c]) * np.float64(W[j, c])
    return out


@numba.njit(nogil=True, cache=True)
def add_sums(S: Float32, rows: Int64, shard: Rows) -> None:
    """Add the scores S (len(rows), k) of a block to the partial sums of their rows. S is kept."""
    e = np.empty(S.shape[1], np.float32)
    powers = np.empty(S.shape[1], np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        e[:] = S[i]
        most = _largest(e)
        _add_pair(shard.top, shard.total, rows[i], most, exponentials(e, -most, bits, powers))


@numba.njit(nogil=True, cache=True)
def gained(S: Float32, rows: Int64, shard: Rows, lo: int) -> float:
    """Sum over rows of weight times y.score, for the labels of the block, which begins at `lo`; S: (len(rows), k)."""
    out, hi, T = 0.0, lo + S.shape[1], shard.T
    for i in range(len(rows)):
        row = rows[i]
        for q in range(T.indptr[row], T.indptr[row + 1]):
            if lo <= T.indices[q] < hi:
                out += np.float64(shard.weights[row]) * T.data[q] * S[i, T.indices[q] - lo]
    return out


@numba.njit(nogil=True, cache=True)
def residuals(S: Float32, rows: Int64, shard: Rows, lo: int) -> None:
    """S[i] = weight (p - y) of rows[i], made of its scores in place; the gradient is the sum of these times x."""
    powers = np.empty(S.shape[1], np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        r, row = S[i], rows[i]
        exponentials(r, shard.b[row], bits, powers)
        _take_targets(shard.T, row, lo, r)
        for c in range(len(r)):
            r[c] *= shard.weights[row]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def _step(X: CSR, row: int, r: Float32, W: Float32, h: Float32, rule: Rule) -> None:
    """One row's step: eq. (13) with a step size a feature, and the row's part of the norm taken implicitly. h: (D,), see `Rule`."""
    k, squared = len(r), np.float32(0.0)
    for c in range(k):
        squared += r[c] * r[c]
    squared /= rule.share
    for p in range(X.indptr[row], X.indptr[row + 1]):
        j, x = X.indices[p], X.data[p]
        h[j] += x * x * squared
        size = rule.rate / np.sqrt(h[j] + TINY) if rule.adaptive else rule.rate
        shrink, move, w = np.float32(1.0) / (np.float32(1.0) + size * rule.norm[j]), size * x, W[j]
        for c in range(k):
            w[c] = (w[c] - move * r[c]) * shrink


@numba.njit(nogil=True, cache=True)
def steps(
    shard: Rows, rows: Int64, lo: int, W: Float32, h: Float32, rule: Rule, summed: bool
) -> None:
    """Steps of stochastic gradient descent on a block, row by row in the order given; cost O(nnz k).

    lo: the block's first label; W: (D, k) and h: (D,) float32 change in place. summed: add the rows' scores, as they are met, to
    their partial sums too.
    """
    k = W.shape[1]
    r, powers = np.empty(k, np.float32), np.empty(k, np.float32)
    bits = powers.view(np.int32)
    for i in range(len(rows)):
        row = rows[i]
        _score(shard.X, row, W, r)
        most = _largest(r)
        total = exponentials(r, -most, bits, powers)  # once, for the sums and for the step
        if summed:
            _add_pair(shard.top, shard.total, row, most, total)
        factor = np.float32(np.exp(min(most + shard.b[row], MOST)))
        for c in range(k):
            r[c] = min(r[c] * factor, np.float32(1.0))
        _take_targets(shard.T, row, lo, r)
        for c in range(k):
            r[c] *= shard.weights[row]
        _step(shard.X, row, r, W, h, rule)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def batch_step(G: Float32, n: int, W: Float32, h: Float32, rule: Rule) -> None:
    """One step for n rows at once: G (D, k) the sum of their gradients; W (D, k) and h (D,) change in place."""
    k = W.shape[1]
    for j in range(len(h)):
        squared, w, g = np.float32(0.0), W[j], G[j]
        for c in range(k):
            squared += g[c] * g[c]
        h[j] += squared / rule.share
        size = rule.rate / np.sqrt(h[j] + TINY) if rule.adaptive else rule.rate
        shrink = np.float32(1.0) / (np.float32(1.0) + size * rule.norm[j] * np.float32(n))
        for c in range(k):
            w[c] = (w[c] - size * g[c]) * shrink


@numba.njit(nogil=True, cache=True)
def close(shard: Rows) -> float:
    """b = -log of the partition function, exactly, by the partial sums, which are empty afterwards. Source: DS-MLR, eq. (9).

    Returns the sum of -weight b: the part of the loss that takes the partition function.
    """
    out = 0.0
    for i in range(len(shard.b)):
        z = np.float64(shard.top[i]) + np.log(shard.total[i])
        shard.b[i] = -z
        shard.top[i], shard.total[i] = EMPTY, 0.0
        out += np.float64(shard.weights[i]) * z
    return out


@numba.njit(nogil=True, cache=True)
def keep_best(S: Float32, rows: Int64, lo: int, labels: Int32, best: Float32) -> None:
    """Merge scores S (len(rows), k) of labels lo, lo + 1, .. into each row's best labels: (n, m), best first, ties by lower label.

    Places not yet taken have label -1 and score -inf. A label comes once.
    """
    m = labels.shape[1]
    for i in range(len(rows)):
        names, values = labels[rows[i]], best[rows[i]]
        for c in range(S.shape[1]):
            s, label = S[i, c], lo + c
            if s < values[m - 1] or (s == values[m - 1] and label > names[m - 1] >= 0):
                continue
            at = m - 1
            while at > 0 and (
                s > values[at - 1] or (s == values[at - 1] and label < names[at - 1])
            ):
                values[at], names[at] = values[at - 1], names[at - 1]
                at -= 1
            values[at], names[at] = s, label
