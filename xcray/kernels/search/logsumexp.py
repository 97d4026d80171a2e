"""Log-partition function: the log of the sum of exp(score) over all labels, for each row.

It turns scores into softmax probabilities. Every label counts, so nothing can be left unread: all
weights of a row's features are added, in float64 and with ascending features, which gives exactly
the scores of a search. The exponential of a label that they do not touch is that of its bias, which
does not depend on the row.

Exponentials are computed of score - largest score, at most 0, so that none overflows, by a
polynomial of degree 12 that compilers vectorise: within 2 units in the last place of float64, about
a nanosecond each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, frozen
from xcray.kernels.search.bits import float64, int64
from xcray.kernels.search.bounded_scan import add_exact
from xcray.kernels.search.dense import add_rows
from xcray.kernels.search.lists import PackedLists, new_terms, read_terms
from xcray.kernels.search.postings import add_all

LANES = 256  # numbers processed together
MIN_TOTAL = 1e-6  # of a sum in units of the largest bias; smaller ones lose digits
MIN_EXPONENT = -708.0  # smaller exponentials are not normal and do not change the sum
# LN2_HIGH: the 32 leading bits of ln 2
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
# 1.5 * 2**52: adding and subtracting it rounds, and its last bits are the integer
ROUNDER = 6755399441055744.0
C12, C11, C10, C9, C8, C7, C6, C5, C4, C3 = (1.0 / math.factorial(n) for n in range(12, 2, -1))


class BiasPowers(NamedTuple):
    """Biases of all labels, (K,) float32, and their exponentials.

    largest: the largest bias, -inf without labels; powers: (K,) exp(bias - largest), float64.
    """

    biases: Float32
    largest: float
    powers: Float64


def bias_powers(biases: Float32) -> BiasPowers:
    """Return biases (K,) with their exponentials."""
    values = biases.astype(np.float64)
    top = float(values.max(initial=-np.inf))
    return BiasPowers(biases, top, frozen(np.exp(values - top), np.float64))


@numba.njit(nogil=True, cache=True)
def largest(values: Float64) -> float:
    """Return the largest number, or -inf."""
    lanes = np.full(LANES, -np.inf)
    for begin in range(0, len(values), LANES):
        part = values[begin : begin + LANES]
        for i in range(len(part)):
            lanes[i] = part[i] if part[i] > lanes[i] else lanes[i]
    width = LANES
    while width > 1:
        width //= 2
        for i in range(width):
            other = lanes[i + width]
            lanes[i] = other if other > lanes[i] else lanes[i]
    return float(lanes[0])


@numba.njit(nogil=True, cache=True)
def add_lanes(lanes: Float64) -> float:
    """Return the sum of LANES numbers, which are overwritten."""
    width = LANES
    while width > 1:
        width //= 2
        for i in range(width):
            lanes[i] += lanes[i + width]
    return float(lanes[0])


@numba.njit(nogil=True, cache=True)
def sum_exp(values: Float64, top: float) -> float:
    """Return the sum of exp(value - top); top must not be below any value.

    Summed in LANES lanes, so rounding grows with n / LANES.
    """
    lanes, power = np.zeros(LANES, np.float64), np.empty(LANES, np.float64)
    rounded = np.empty(LANES, np.float64)
    power_bits, rounded_bits = power.view(np.int64), rounded.view(np.int64)
    for begin in range(0, len(values), LANES):
        part = values[begin : begin + LANES]
        n = len(part)
        for i in range(n):
            x = part[i] - top
            x = x if x > MIN_EXPONENT else MIN_EXPONENT
            rounded[i] = x * LOG2E + ROUNDER
            integer = rounded[i] - ROUNDER
            r = (x - integer * LN2_HIGH) - integer * LN2_LOW
            p = ((((C12 * r + C11) * r + C10) * r + C9) * r + C8) * r + C7
            p = ((((p * r + C6) * r + C5) * r + C4) * r + C3) * r + 0.5
            power[i] = (p * r + 1.0) * r + 1.0
        for i in range(n):
            power_bits[i] += rounded_bits[i] << 52  # times 2 to the power of the integer
        for i in range(n):
            lanes[i] += power[i]
    return add_lanes(lanes)


@numba.njit(nogil=True, cache=True)
def logsumexp_all(biases: Float32, sums: Float64) -> float:
    """Return the log-partition of scores sums + biases, (K,), for rows that touch most labels."""
    for label in range(len(biases)):
        sums[label] += float64(biases[label])
    top = largest(sums[: len(biases)])
    return float(top + np.log(sum_exp(sums[: len(biases)], top)))


@numba.njit(nogil=True, cache=True)
def sum_untouched(powers: Float64, sums: Float64) -> float:
    """Return the sum of the powers of labels whose sum is zero, in LANES lanes."""
    lanes = np.zeros(LANES, np.float64)
    for begin in range(0, len(powers), LANES):
        part, totals = powers[begin : begin + LANES], sums[begin : begin + LANES]
        for i in range(len(part)):
            lanes[i] += part[i] if totals[i] == 0.0 else 0.0
    return add_lanes(lanes)


@numba.njit(nogil=True, cache=True)
def logsumexp(bias: BiasPowers, sums: Float64, scores: Float64) -> float:
    """Return the log-partition of scores sums + biases, (K,).

    Only labels whose sum is not zero need an exponential. scores: (K,), any content.
    """
    n = np.uintp(0)
    for label in range(len(bias.biases)):
        total = sums[label]
        # always written, counted if touched: no branch to mispredict
        scores[n] = total + float64(bias.biases[label])
        n += np.uintp(total != 0.0)
    top = max(largest(scores[:n]), bias.largest)
    scale = np.exp(bias.largest - top)
    total = sum_exp(scores[:n], top) + sum_untouched(bias.powers, sums) * scale
    if not total > MIN_TOTAL:  # the row lowers the score of the label of the largest bias
        return logsumexp_all(bias.biases, sums)
    return float(top + np.log(total))


@numba.njit(nogil=True, cache=True)
def by_postings(
    X: CSR, first: int, stop: int, postings: CSR, bias: BiasPowers, out: Float64
) -> None:
    """Write the log-partition of rows [first, stop) to `out`.

    postings: (D, K), the weights by feature.
    """
    sums, scores = np.empty(len(bias.biases), np.float64), np.empty(len(bias.biases))
    for i in range(first, stop):
        sums[:] = 0.0
        add_all(X, i, postings, sums)
        out[i] = logsumexp(bias, sums, scores)


@numba.njit(nogil=True, cache=True)
def by_rows(X: CSR, first: int, stop: int, dense: Float32, biases: Float32, out: Float64) -> None:
    """Run `by_postings` with dense rows of weights, (D, at least K); biases: (K,)."""
    sums = np.empty(dense.shape[1], np.float64)
    for i in range(first, stop):
        sums[:] = 0.0
        add_rows(X, i, dense, sums)
        out[i] = logsumexp_all(biases, sums)


@numba.njit(nogil=True, cache=True)
def by_lists(
    X: CSR, first: int, stop: int, lists: PackedLists, bias: BiasPowers, out: Float64
) -> None:
    """Run `by_postings` with narrow lists, which contain all weights."""
    sums, scores = np.empty(len(bias.biases), np.float64), np.empty(len(bias.biases))
    for i in range(first, stop):
        sums[:] = 0.0
        lo, hi = X.indptr[i], X.indptr[i + 1]
        terms, n_weights = new_terms(hi - lo), int64(0)
        for t in range(read_terms(X.indices[lo:hi], X.data[lo:hi], lists, terms)):
            add_exact(lists.blocks, terms.all[t], terms.n_all[t], terms.x[t], sums)
            n_weights += terms.n_all[t]
        if n_weights < len(sums):
            out[i] = logsumexp(bias, sums, scores)
        else:
            out[i] = logsumexp_all(bias.biases, sums)
