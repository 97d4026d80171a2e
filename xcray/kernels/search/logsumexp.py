"""The logarithm of the sum of exp(score) over all labels, for each row: what turns scores into softmax probabilities.

Every label counts, so nothing can be left unread as in a search: all weights of a row's features are added, in float64 and with
features ascending, which gives the very scores a search answers. Labels that no feature touches score their bias; a row that
touches few takes these from a sum over all biases that is made once, less the biases of those touched. That difference of sums
would be worthless where the labels touched hold almost all of the sum, so its rounding is bounded, and where the bound is
above ACCURATE all labels are gone through.

Exponentials are taken of score - largest score, at most 0, so that none overflows, by a polynomial of degree 12 that
compilers put into SIMD: within 2 units in the last place of float64, about a nanosecond each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64
from xcray.kernels.search.bits import float64, float_of, int64, load16, load32
from xcray.kernels.search.dense import add_rows
from xcray.kernels.search.lists import NARROW, WEIGHT, Lists, Terms, new_terms, read_terms
from xcray.kernels.search.postings import Scratch, add_all, add_touched, n_postings

BUILT_ON = {
    "search.bits": "b69c88f5",
    "search.dense": "649addd7",
    "search.lists": "e4c3b501",
    "search.postings": "5bf42791",
}

BLOCK = 256  # numbers that are looked at together
SPARSE = 4  # from K / SPARSE postings on, going through all labels is cheaper than remembering which were touched
ACCURATE = 1e-12  # how wrong a sum may be for its parts
EPS = 2.0**-52
LOWEST = -708.0  # exp of less is no normal float64, and nothing beside the 1 of the largest
LOG2E, LN2_HIGH, LN2_LOW = (
    1.4426950408889634,
    0.6931471803691238,
    1.9082149292705877e-10,
)  # LN2_HIGH: the 32 leading bits
ROUNDER = 6755399441055744.0  # 1.5 * 2**52: added and taken away it rounds, and its last bits are the whole number
C12, C11, C10, C9, C8, C7, C6, C5, C4, C3 = (1.0 / math.factorial(n) for n in range(12, 2, -1))


class Whole(NamedTuple):
    """The biases of all labels, (K,) float32; the largest of them, `top`; and sum: the sum of exp(bias - top), float64."""

    biases: Float32
    top: float
    sum: float


@numba.njit(nogil=True, cache=True)
def largest(values: Float64) -> float:
    """The largest of some numbers, -inf of none."""
    lanes = np.full(min(BLOCK, len(values)), -np.inf)
    for begin in range(0, len(values), BLOCK):
        part = values[begin : begin + BLOCK]
        for i in range(len(part)):
            lanes[i] = part[i] if part[i] > lanes[i] else lanes[i]
    top = -np.inf
    for value in lanes:
        top = max(top, value)
    return float(top)


@numba.njit(nogil=True, cache=True)
def sum_exp(values: Float64, top: float) -> float:
    """The sum of exp(value - top); top is not below any value. Summed in BLOCK lanes, so rounding grows with n / BLOCK."""
    lanes, power = np.zeros(BLOCK, np.float64), np.empty(BLOCK, np.float64)
    rounded = np.empty(BLOCK, np.float64)
    power_bits, rounded_bits = power.view(np.int64), rounded.view(np.int64)
    for begin in range(0, len(values), BLOCK):
        part = values[begin : begin + BLOCK]
        n = len(part)
        for i in range(n):
            x = part[i] - top
            x = x if x > LOWEST else LOWEST
            rounded[i] = x * LOG2E + ROUNDER
            whole = rounded[i] - ROUNDER
            r = (x - whole * LN2_HIGH) - whole * LN2_LOW
            p = ((((C12 * r + C11) * r + C10) * r + C9) * r + C8) * r + C7
            p = ((((p * r + C6) * r + C5) * r + C4) * r + C3) * r + 0.5
            power[i] = (p * r + 1.0) * r + 1.0
        for i in range(n):
            power_bits[i] += rounded_bits[i] << 52  # times 2 to the whole number
        for i in range(n):
            lanes[i] += power[i]
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@numba.njit(nogil=True, cache=True)
def of_all(whole: Whole, sums: Float64) -> float:
    """The normaliser of scores sums + biases, (K,); sums are zero again."""
    for label in range(len(sums)):
        sums[label] += float64(whole.biases[label])
    top = largest(sums)
    total = sum_exp(sums, top)
    sums[:] = 0.0
    return float(top + np.log(total))


@numba.njit(nogil=True, cache=True)
def of_touched(whole: Whole, scratch: Scratch, n: int) -> float:
    """The normaliser where but n labels are touched; scratch is zero again."""
    scores, biases = np.empty(n, np.float64), np.empty(n, np.float64)
    for t in range(n):
        label = scratch.touched[t]
        scratch.seen[label] = 0
        biases[t] = float64(whole.biases[label])
        scores[t] = scratch.sums[label] + biases[t]
    top = max(largest(scores), whole.top)
    scale = np.exp(whole.top - top)
    total = sum_exp(scores, top) + max(0.0, whole.sum - sum_exp(biases, whole.top)) * scale
    rounding = EPS * (4 * BLOCK + 2 * len(whole.biases) / BLOCK) * whole.sum * scale
    if not rounding <= ACCURATE * total:
        return of_all(whole, scratch.sums)
    for t in range(n):
        scratch.sums[scratch.touched[t]] = 0.0
    return float(top + np.log(total))


@numba.njit(nogil=True, cache=True)
def by_postings(
    X: CSR, first: int, stop: int, postings: CSR, whole: Whole, scratch: Scratch, out: Float64
) -> None:
    """The normalisers of rows [first, stop) into the same places of `out`. postings: (D, K), the weights by feature."""
    for i in range(first, stop):
        if n_postings(X, i, postings) * SPARSE < len(whole.biases):
            out[i] = of_touched(whole, scratch, add_touched(X, i, postings, scratch))
        else:
            add_all(X, i, postings, scratch.sums)
            out[i] = of_all(whole, scratch.sums)


@numba.njit(nogil=True, cache=True)
def by_rows(X: CSR, first: int, stop: int, dense: Float32, whole: Whole, out: Float64) -> None:
    """`by_postings` from plain rows of weights, (D, at least K)."""
    sums = np.zeros(dense.shape[1], np.float64)
    for i in range(first, stop):
        add_rows(X, i, dense, sums)
        out[i] = of_all(whole, sums[: len(whole.biases)])


@numba.njit(nogil=True, cache=True)
def by_lists(
    X: CSR, first: int, stop: int, lists: Lists, whole: Whole, scratch: Scratch, out: Float64
) -> None:
    """`by_postings` from narrow lists, which hold all weights."""
    for i in range(first, stop):
        lo, hi = X.indptr[i], X.indptr[i + 1]
        terms = new_terms(hi - lo)
        n_terms = read_terms(X.indices[lo:hi], X.data[lo:hi], lists, terms)
        reach = int64(0)
        for t in range(n_terms):
            reach += terms.n_all[t]
        if reach * SPARSE < len(whole.biases):
            out[i] = of_touched(whole, scratch, touch_listed(lists, terms, n_terms, scratch))
        else:
            add_listed(lists, terms, n_terms, scratch.sums)
            out[i] = of_all(whole, scratch.sums)


@numba.njit(nogil=True, cache=True)
def add_listed(lists: Lists, terms: Terms, n_terms: int, sums: Float64) -> None:
    """Add x * weight of all terms to the sums of their labels, from narrow lists."""
    blocks = lists.blocks
    for t in range(n_terms):
        n, x = terms.n_all[t], terms.x[t]
        labels, weights = terms.all[t], terms.all[t] + NARROW * n
        for j in range(n):
            sums[load16(blocks, labels + NARROW * j)] += x * float64(
                float_of(load32(blocks, weights + WEIGHT * j))
            )


@numba.njit(nogil=True, cache=True)
def touch_listed(lists: Lists, terms: Terms, n_terms: int, scratch: Scratch) -> int:
    """As `add_listed`, and the labels met for the first time go to touched; returns how many."""
    blocks, n_touched = lists.blocks, int64(0)
    for t in range(n_terms):
        n, x = terms.n_all[t], terms.x[t]
        labels, weights = terms.all[t], terms.all[t] + NARROW * n
        for j in range(n):
            label = load16(blocks, labels + NARROW * j)
            scratch.touched[n_touched] = (
                label  # written always, kept if new: no branch to mispredict
            )
            n_touched += 1 - scratch.seen[label]
            scratch.seen[label] = 1
            scratch.sums[label] += x * float64(float_of(load32(blocks, weights + WEIGHT * j)))
    return int(n_touched)
