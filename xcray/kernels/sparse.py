"""Sparse matrices turned, measured and cut: the arithmetic behind both orientations of a data set.

Every public function takes read-only arrays (`arrays.csr`, `arrays.pattern`) and gives read-only arrays, so each
kernel is compiled once.
"""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, frozen, pattern


@numba.njit(nogil=True, cache=True)
def _column_starts(indices: Int32, n_cols: int) -> Int64:
    """Where each column begins once entries are sorted by column: a running count."""
    starts = np.zeros(n_cols + 1, np.int64)
    for p in range(len(indices)):
        starts[indices[p] + 1] += 1
    for j in range(n_cols):
        starts[j + 1] += starts[j]
    return starts


@numba.njit(nogil=True, cache=True)
def _transpose(
    indptr: Int64, indices: Int32, data: Float32, n_cols: int
) -> tuple[Int64, Int32, Float32]:
    """Counting sort by column; stable, so rows ascend within each column."""
    starts = _column_starts(indices[: indptr[-1]], n_cols)
    rows = np.empty(starts[-1], np.int32)
    values = np.empty(starts[-1], np.float32)
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            rows[starts[j]] = i
            values[starts[j]] = data[p]
            starts[j] += 1
    return _shifted(starts), rows, values


@numba.njit(nogil=True, cache=True)
def _transpose_pattern(indptr: Int64, indices: Int32, n_cols: int) -> tuple[Int64, Int32]:
    """`_transpose` without values."""
    starts = _column_starts(indices[: indptr[-1]], n_cols)
    rows = np.empty(starts[-1], np.int32)
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            rows[starts[j]] = i
            starts[j] += 1
    return _shifted(starts), rows


@numba.njit(nogil=True, cache=True)
def _shifted(ends: Int64) -> Int64:
    """Column ends, as the fill leaves them, back to column starts; in place."""
    for j in range(len(ends) - 1, 0, -1):
        ends[j] = ends[j - 1]
    ends[0] = 0
    return ends


@numba.njit(nogil=True, cache=True)
def _row_norms_sq(indptr: Int64, indices: Int32, data: Float32, weights: Float32) -> Float64:
    """Sum of squares of each row, in float64; each times the weight of its column where there are weights."""
    norms = np.zeros(len(indptr) - 1, np.float64)
    for i in range(len(norms)):
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            square = np.float64(data[p]) * np.float64(data[p])
            total += square * weights[indices[p]] if len(weights) > 0 else square
        norms[i] = total
    return norms


@numba.njit(nogil=True, cache=True)
def _positions(indptr: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Row pointers of the chosen rows, and where each of their entries lies in the source."""
    chosen = np.zeros(len(rows) + 1, np.int64)
    for r in range(len(rows)):
        chosen[r + 1] = chosen[r] + indptr[rows[r] + 1] - indptr[rows[r]]
    places = np.empty(chosen[-1], np.int64)
    for r in range(len(rows)):
        first = indptr[rows[r]]
        for p in range(chosen[r], chosen[r + 1]):
            places[p] = first + p - chosen[r]
    return chosen, places


def transpose(X: CSR) -> CSR:
    """The CSR (n_cols x n_rows) of the transpose; column indices ascend; float32. X must start at indptr 0."""
    return csr(*_transpose(X.indptr, X.indices, X.data, X.n_cols), X.n_rows)


def transpose_pattern(Y: Pattern) -> Pattern:
    """The Pattern (n_cols x n_rows) of the transpose; column indices ascend. Y must start at indptr 0."""
    return pattern(*_transpose_pattern(Y.indptr, Y.indices, Y.n_cols), Y.n_rows)


def row_norms_sq(X: CSR, weights: Float32 | None = None) -> Float64:
    """Squared Euclidean norm of each row of X, summed in float64 in ascending column order: (n_rows,) float64.

    weights: (n_cols,) float32, what the square of each entry is multiplied by; None or empty for 1.
    """
    weights = frozen(np.empty(0) if weights is None else weights, np.float32)
    return frozen(_row_norms_sq(X.indptr, X.indices, X.data, weights), np.float64)


def take_rows(X: CSR, rows: Int64) -> CSR:
    """The rows of X numbered by `rows` (int64, any order, repeats allowed), in that order: (len(rows) x n_cols)."""
    indptr, places = _positions(X.indptr, frozen(rows, np.int64))
    return csr(indptr, X.indices[places], X.data[places], X.n_cols)


def take_pattern_rows(Y: Pattern, rows: Int64) -> Pattern:
    """The rows of Y numbered by `rows` (int64, any order, repeats allowed), in that order: (len(rows) x n_cols)."""
    indptr, places = _positions(Y.indptr, frozen(rows, np.int64))
    return pattern(indptr, Y.indices[places], Y.n_cols)


def row_range(X: CSR, start: int, stop: int) -> CSR:
    """Rows start..stop-1 of X as views of its indices and values; only the row pointers are new."""
    lo, hi = X.indptr[start], X.indptr[stop]
    return csr(X.indptr[start : stop + 1] - lo, X.indices[lo:hi], X.data[lo:hi], X.n_cols)


def pattern_range(Y: Pattern, start: int, stop: int) -> Pattern:
    """Rows start..stop-1 of Y as views of its indices; only the row pointers are new."""
    lo, hi = Y.indptr[start], Y.indptr[stop]
    return pattern(Y.indptr[start : stop + 1] - lo, Y.indices[lo:hi], Y.n_cols)
