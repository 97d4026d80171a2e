"""Rows of the active set of a class: copies of their entries, and products with weights.

A class numbers features in the order in which its rows become active, so that the arrays that
sweeps read are small and dense. Loops over entries have unsigned positions: numba checks signed
ones for being negative, which costs as much as the arithmetic.
"""

from typing import Any

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.training.hinge import Objective
from xcray.kernels.training.ppdsparse.dual import cost, dual_terms
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem, PPDSparseScratch

# short rows and lists take most of their time for the first access to memory
PREFETCH_ENTRIES, LINE_ENTRIES = 128, 16
ROWS_AHEAD, STARTS_AHEAD = 3, 8  # distances of prefetches


@inner(allocates=False)
def copy_entries(X: CSR, i: int, begin: int, scratch: PPDSparseScratch, at: Any) -> None:
    """Copy the entries of a sample to `begin`; features without a number get the next ones.

    Without a branch to mispredict.
    """
    lo, hi, one = np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1]), np.uint64(1)
    n, e, length = np.uint64(at.n_touched), np.uint64(begin), hi - lo
    for p in range(lo, hi):
        j = np.uint32(X.indices[p])
        number = scratch.number[j]
        scratch.touched[n] = np.int32(j)
        scratch.v[n] = 0.0
        is_new = number == 0
        number = np.int32(n + one) if is_new else number
        n += np.uint64(is_new)
        scratch.number[j] = number
        scratch.entries[e] = number - np.int32(1)
        scratch.values[e + length] = X.data[p]
        e += one
    at.n_touched = n


@inner(allocates=False)
def new_row(
    problem: PPDSparseProblem, o: Objective, i: int, sign: float, scratch: PPDSparseScratch, at: Any
) -> None:
    """Make a row of sample i, with alpha = 0."""
    row, X = scratch.rows[at.n_rows], problem.X
    row.begin, row.length = at.n_entries, X.indptr[i + 1] - X.indptr[i]
    row.sample, row.sign = i, sign
    row.cost = cost(problem, o, at.factor, i, sign > 0.0)
    row.inv, row.upper = dual_terms(o, row.cost)
    row.rate = 1.0 / ((problem.row_sq[i] + 1.0) / o.tau + row.inv)
    row.alpha = 0.0
    at.n_rows += 1
    scratch.row_of[i] = at.n_rows
    copy_entries(X, i, row.begin, scratch, at)
    at.n_entries += 2 * row.length


@inner(allocates=False)
def prefetch_row(matrix: CSR, row: int) -> None:
    """Prefetch the first entries of a row, or of a posting list."""
    begin, end = matrix.indptr[row], matrix.indptr[row + 1]
    for p in range(begin, min(end, begin + PREFETCH_ENTRIES), LINE_ENTRIES):
        prefetch(matrix.indices, p)
        prefetch(matrix.data, p)


@inner(allocates=False)
def prefetch_numbers(X: CSR, i: int, number: Int32) -> None:
    """Prefetch the numbers of the features of a row."""
    for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        prefetch(number, X.indices[p])


@inner(allocates=False)
def add_rows(
    problem: PPDSparseProblem, o: Objective, sign: float, scratch: PPDSparseScratch, at: Any
) -> None:
    """Add the entering samples to the active rows. Those that were active before have a row."""
    X, entering, n = problem.X, scratch.entering, at.n_entering
    for a in range(n):
        if a + STARTS_AHEAD < n:
            prefetch(X.indptr, entering[a + STARTS_AHEAD])
            prefetch(problem.row_sq, entering[a + STARTS_AHEAD])
            prefetch(scratch.row_of, entering[a + STARTS_AHEAD])
        if a + ROWS_AHEAD < n:
            prefetch_row(X, entering[a + ROWS_AHEAD])
        if a + 1 < n:
            prefetch_numbers(X, entering[a + 1], scratch.number)
        if scratch.row_of[entering[a]] == 0:
            new_row(problem, o, entering[a], sign, scratch, at)
        scratch.is_active[entering[a]] = 1
        scratch.active[at.n_active] = scratch.row_of[entering[a]] - 1
        at.n_active += 1
    at.n_entering = 0


@inner(allocates=False)
def add_row(scratch: PPDSparseScratch, row: Any, step: float) -> None:
    """Add step x_i to v."""
    begin, length = np.uint64(row.begin), np.uint64(row.length)
    for e in range(begin, begin + length):
        scratch.v[np.uint32(scratch.entries[e])] += step * scratch.values[e + length]


@inner(allocates=False, inline="always", fastmath={"reassoc", "nsz", "nnan", "contract"})
def soft_dot(entries: Int32, values: Float32, row: Any, v: Float64, lam: float) -> float:
    """Return the product of a row with soft(v, lam); SIMD.

    Inlined: a call of a short row would take as long as the product.
    """
    dot, begin, length = 0.0, np.uint64(row.begin), np.uint64(row.length)
    for e in range(begin, begin + length):
        u = v[np.uint32(entries[e])]
        dot += values[e + length] * (u - max(-lam, min(lam, u)))
    return dot
