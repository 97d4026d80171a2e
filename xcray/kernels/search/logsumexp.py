"""Log-partition function: the log of the sum of exp(score) over all labels, for each row.

It turns scores into softmax probabilities. Every label counts, so nothing can be left unread: all
weights of a row's features are added, in float64 and with ascending features, which gives exactly
the scores of a search. The score of labels without touching features is their bias. For rows that
touch few labels, their part is a precomputed sum over all biases minus that of the touched labels.
This difference is inaccurate if the touched labels hold almost all of the sum, so its rounding
error is bounded, and if the bound exceeds MAX_RELATIVE_ERROR all labels are visited.

Exponentials are computed of score - largest score, at most 0, so that none overflows, by a
polynomial of degree 12 that compilers vectorise: within 2 units in the last place of float64, about
a nanosecond each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import float64, float_of, int64, load16, load32
from xcray.kernels.search.dense import add_rows
from xcray.kernels.search.lists import (
    NARROW_BYTES,
    WEIGHT_BYTES,
    PackedLists,
    Terms,
    new_terms,
    read_terms,
)
from xcray.kernels.search.postings import PostingScratch, add_all, add_touched, n_postings

LANES = 256  # numbers processed together
# from K / TOUCHED_DIVISOR postings on, visiting all labels is cheaper than recording touched ones
TOUCHED_DIVISOR = 4
MAX_RELATIVE_ERROR = 1e-12  # of a sum that is computed as a difference
EPS = 2.0**-52
MIN_EXPONENT = -708.0  # smaller exponentials are not normal and do not change the sum
# LN2_HIGH: the 32 leading bits of ln 2
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
# 1.5 * 2**52: adding and subtracting it rounds, and its last bits are the integer
ROUNDER = 6755399441055744.0
C12, C11, C10, C9, C8, C7, C6, C5, C4, C3 = (1.0 / math.factorial(n) for n in range(12, 2, -1))


class BiasPartition(NamedTuple):
    """Biases of all labels, (K,) float32, and their partition sum.

    max_bias: the largest bias; sum_exp: the sum of exp(bias - max_bias), float64.
    """

    biases: Float32
    max_bias: float
    sum_exp: float


@numba.njit(nogil=True, cache=True)
def largest(values: Float64) -> float:
    """Return the largest number, or -inf."""
    lanes = np.full(min(LANES, len(values)), -np.inf)
    for begin in range(0, len(values), LANES):
        part = values[begin : begin + LANES]
        for i in range(len(part)):
            lanes[i] = part[i] if part[i] > lanes[i] else lanes[i]
    top = -np.inf
    for value in lanes:
        top = max(top, value)
    return float(top)


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
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@numba.njit(nogil=True, cache=True)
def logsumexp_all(partition: BiasPartition, sums: Float64) -> float:
    """Return the log-partition of scores sums + biases, (K,); reset the sums to zero."""
    for label in range(len(sums)):
        sums[label] += float64(partition.biases[label])
    top = largest(sums)
    total = sum_exp(sums, top)
    sums[:] = 0.0
    return float(top + np.log(total))


@numba.njit(nogil=True, cache=True)
def logsumexp_touched(partition: BiasPartition, scratch: PostingScratch, n: int) -> float:
    """Return the log-partition if only n labels are touched; reset the scratch memory."""
    scores, biases = np.empty(n, np.float64), np.empty(n, np.float64)
    for t in range(n):
        label = scratch.touched[t]
        scratch.seen[label] = 0
        biases[t] = float64(partition.biases[label])
        scores[t] = scratch.sums[label] + biases[t]
    top = max(largest(scores), partition.max_bias)
    scale = np.exp(partition.max_bias - top)
    total = (
        sum_exp(scores, top)
        + max(0.0, partition.sum_exp - sum_exp(biases, partition.max_bias)) * scale
    )
    rounding = EPS * (4 * LANES + 2 * len(partition.biases) / LANES) * partition.sum_exp * scale
    if not rounding <= MAX_RELATIVE_ERROR * total:
        return logsumexp_all(partition, scratch.sums)
    for t in range(n):
        scratch.sums[scratch.touched[t]] = 0.0
    return float(top + np.log(total))


@numba.njit(nogil=True, cache=True)
def by_postings(
    X: CSR,
    first: int,
    stop: int,
    postings: CSR,
    partition: BiasPartition,
    scratch: PostingScratch,
    out: Float64,
) -> None:
    """Write the log-partition of rows [first, stop) to `out`.

    postings: (D, K), the weights by feature.
    """
    for i in range(first, stop):
        if n_postings(X, i, postings) * TOUCHED_DIVISOR < len(partition.biases):
            out[i] = logsumexp_touched(partition, scratch, add_touched(X, i, postings, scratch))
        else:
            add_all(X, i, postings, scratch.sums)
            out[i] = logsumexp_all(partition, scratch.sums)


@numba.njit(nogil=True, cache=True)
def by_rows(
    X: CSR, first: int, stop: int, dense: Float32, partition: BiasPartition, out: Float64
) -> None:
    """Run `by_postings` with dense rows of weights, (D, at least K)."""
    sums = np.zeros(dense.shape[1], np.float64)
    for i in range(first, stop):
        add_rows(X, i, dense, sums)
        out[i] = logsumexp_all(partition, sums[: len(partition.biases)])


@numba.njit(nogil=True, cache=True)
def by_lists(
    X: CSR,
    first: int,
    stop: int,
    lists: PackedLists,
    partition: BiasPartition,
    scratch: PostingScratch,
    out: Float64,
) -> None:
    """Run `by_postings` with narrow lists, which contain all weights."""
    for i in range(first, stop):
        lo, hi = X.indptr[i], X.indptr[i + 1]
        terms = new_terms(hi - lo)
        n_terms = read_terms(X.indices[lo:hi], X.data[lo:hi], lists, terms)
        reach = int64(0)
        for t in range(n_terms):
            reach += terms.n_all[t]
        if reach * TOUCHED_DIVISOR < len(partition.biases):
            out[i] = logsumexp_touched(
                partition, scratch, touch_listed(lists, terms, n_terms, scratch)
            )
        else:
            add_listed(lists, terms, n_terms, scratch.sums)
            out[i] = logsumexp_all(partition, scratch.sums)


@inner()
def add_listed(lists: PackedLists, terms: Terms, n_terms: int, sums: Float64) -> None:
    """Add x * weight of all terms to the sums of their labels, from narrow lists."""
    blocks = lists.blocks
    for t in range(n_terms):
        n, x = terms.n_all[t], terms.x[t]
        labels, weights = terms.all[t], terms.all[t] + NARROW_BYTES * n
        for j in range(n):
            sums[load16(blocks, labels + NARROW_BYTES * j)] += x * float64(
                float_of(load32(blocks, weights + WEIGHT_BYTES * j))
            )


@inner()
def touch_listed(lists: PackedLists, terms: Terms, n_terms: int, scratch: PostingScratch) -> int:
    """Run `add_listed` and record labels that are met for the first time; return their number."""
    blocks, n_touched = lists.blocks, int64(0)
    for t in range(n_terms):
        n, x = terms.n_all[t], terms.x[t]
        labels, weights = terms.all[t], terms.all[t] + NARROW_BYTES * n
        for j in range(n):
            label = load16(blocks, labels + NARROW_BYTES * j)
            # always written, counted if new: no branch to mispredict
            scratch.touched[n_touched] = label
            n_touched += 1 - scratch.seen[label]
            scratch.seen[label] = 1
            scratch.sums[label] += x * float64(float_of(load32(blocks, weights + WEIGHT_BYTES * j)))
    return int(n_touched)
