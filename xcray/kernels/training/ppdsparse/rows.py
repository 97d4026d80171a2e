"""Rows of the active set of a class: numbers of their features, and products with weights.

A class numbers features in the order in which its rows become active, so that the arrays that
sweeps read are small and dense. Loops over entries have unsigned positions: numba checks signed
ones for being negative, which costs as much as the arithmetic.
"""

from typing import Any

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.training.ppdsparse.state import NEGATIVE, PPDSparseScratch

# short rows and lists take most of their time for the first access to memory
PREFETCH_ENTRIES, LINE_ENTRIES = 128, 16
ROWS_AHEAD = 3  # distance of prefetches


@inner(allocates=False)
def activate(scratch: PPDSparseScratch, at: Any, i: int) -> None:
    """Make sample i an active negative."""
    scratch.kind[i] = NEGATIVE
    scratch.active[at.n_active] = i
    at.n_active += 1


@inner(allocates=False)
def number_features(X: CSR, i: int, scratch: PPDSparseScratch, at: Any) -> None:
    """Assign numbers to the features of a row that becomes active for the first time.

    Without a branch to mispredict.
    """
    if scratch.row_begins[i] != 0:
        return
    n, e, one = np.uint64(at.n_touched), np.uint64(at.n_entries), np.uint64(1)
    scratch.row_begins[i] = at.n_entries + 1
    scratch.ever_active[at.n_entered] = i
    at.n_entered += 1
    for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        j = np.uint32(X.indices[p])
        number = scratch.number[j]
        scratch.touched[n] = np.int32(j)
        scratch.v[n] = 0.0
        is_new = number == 0
        number = np.int32(n + one) if is_new else number
        n += np.uint64(is_new)
        scratch.number[j] = number
        scratch.entries[e] = number - np.int32(1)
        e += one
    at.n_touched, at.n_entries = n, e


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
def number_rows(X: CSR, scratch: PPDSparseScratch, at: Any, first: int) -> None:
    """Assign numbers to the features of the active samples from position `first` on."""
    for a in range(first, at.n_active):
        if a + ROWS_AHEAD < at.n_active:
            prefetch_row(X, scratch.active[a + ROWS_AHEAD])
        if a + 1 < at.n_active:
            prefetch_numbers(X, scratch.active[a + 1], scratch.number)
        number_features(X, scratch.active[a], scratch, at)


@inner(allocates=False)
def add_row(X: CSR, i: int, step: float, scratch: PPDSparseScratch) -> None:
    """Add step x_i to v, for a row with numbered features."""
    e = np.uint64(scratch.row_begins[i] - 1)
    for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        scratch.v[np.uint32(scratch.entries[e])] += step * X.data[p]
        e += np.uint64(1)


@inner(allocates=False, fastmath={"reassoc", "nsz", "nnan", "contract"})
def soft_dot(
    numbers: Int32, begin: int, data: Float32, lo: int, hi: int, v: Float64, lam: float
) -> float:
    """Return the sum of data[lo + k] * soft(v[numbers[begin + k]], lam), k below hi - lo; SIMD."""
    dot, a, b = 0.0, np.uint64(begin), np.uint64(lo)
    for k in range(np.uint64(hi - lo)):
        u = v[np.uint32(numbers[a + k])]
        dot += data[b + k] * (u - max(-lam, min(lam, u)))
    return dot
