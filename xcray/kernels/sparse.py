"""Sparse matrix operations: dense copies, transpose, row norms, row selection.

Every public function takes and returns read-only arrays (`arrays.csr`, `arrays.pattern`), so each
kernel is compiled once.
"""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.kernels.inner import inner


@inner()
def _column_starts(indices: Int32, n_cols: int) -> Int64:
    """Return the start of each column once entries are sorted by column."""
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
    """Sort entries by column with a stable counting sort, so rows ascend within each column."""
    starts = _column_starts(indices[: indptr[-1]], n_cols)
    rows = np.empty(starts[-1], np.int32)
    values = np.empty(starts[-1], np.float32)
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            rows[starts[j]] = i
            values[starts[j]] = data[p]
            starts[j] += 1
    return _shift_back(starts), rows, values


@numba.njit(nogil=True, cache=True)
def _transpose_pattern(indptr: Int64, indices: Int32, n_cols: int) -> tuple[Int64, Int32]:
    """Run `_transpose` without values."""
    starts = _column_starts(indices[: indptr[-1]], n_cols)
    rows = np.empty(starts[-1], np.int32)
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            rows[starts[j]] = i
            starts[j] += 1
    return _shift_back(starts), rows


@inner()
def _shift_back(ends: Int64) -> Int64:
    """Turn the column ends that the fill leaves into column starts, in place."""
    for j in range(len(ends) - 1, 0, -1):
        ends[j] = ends[j - 1]
    ends[0] = 0
    return ends


@numba.njit(nogil=True, cache=True)
def _row_norms_sq(indptr: Int64, indices: Int32, data: Float32, weights: Float32) -> Float64:
    """Return the sum of squares of each row in float64.

    Each square is multiplied by the weight of its column if there are weights.
    """
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
    """Return row pointers of the selected rows, and the source position of each entry."""
    row_starts = np.zeros(len(rows) + 1, np.int64)
    for r in range(len(rows)):
        row_starts[r + 1] = row_starts[r] + indptr[rows[r] + 1] - indptr[rows[r]]
    positions = np.empty(row_starts[-1], np.int64)
    for r in range(len(rows)):
        first = indptr[rows[r]]
        for p in range(row_starts[r], row_starts[r + 1]):
            positions[p] = first + p - row_starts[r]
    return row_starts, positions


@numba.njit(nogil=True, cache=True)
def _take_rows(
    indptr: Int64, indices: Int32, data: Float32, rows: Int64
) -> tuple[Int64, Int32, Float32]:
    """Return row pointers, column indices and values of the selected rows."""
    starts = np.zeros(len(rows) + 1, np.int64)
    for r in range(len(rows)):
        starts[r + 1] = starts[r] + indptr[rows[r] + 1] - indptr[rows[r]]
    columns, values = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    for r in range(len(rows)):
        shift = indptr[rows[r]] - starts[r]
        for p in range(starts[r], starts[r + 1]):
            columns[p] = indices[p + shift]
            values[p] = data[p + shift]
    return starts, columns, values


@numba.njit(nogil=True, cache=True)
def _fill(indptr: Int64, indices: Int32, data: Float32, dense: Float32) -> None:
    """Write entries to a matrix of zeros."""
    for i in range(len(dense)):
        for p in range(indptr[i], indptr[i + 1]):
            dense[i, indices[p]] = data[p]


def to_dense(X: CSR) -> Float32:
    """Return X as an array (n, D) float32, without memory beyond it."""
    dense = np.zeros(X.shape, np.float32)
    _fill(X.indptr, X.indices, X.data, dense)
    return frozen(dense, np.float32)


def transpose(X: CSR) -> CSR:
    """Return the transpose: CSR (n_cols, n_rows) float32, column indices ascending.

    X must start at indptr 0.
    """
    return csr(*_transpose(X.indptr, X.indices, X.data, X.n_cols), X.n_rows)


def transpose_pattern(Y: Pattern) -> Pattern:
    """Return the transpose: Pattern (n_cols, n_rows), column indices ascending.

    Y must start at indptr 0.
    """
    return pattern(*_transpose_pattern(Y.indptr, Y.indices, Y.n_cols), Y.n_rows)


def row_norms_sq(X: CSR, weights: Float32 | None = None) -> Float64:
    """Return the squared Euclidean norm of each row of X: (n_rows,) float64.

    Summed in float64 in ascending column order. weights: (n_cols,) float32 factors of the squares;
    None or empty for 1.
    """
    weights = frozen(np.empty(0) if weights is None else weights, np.float32)
    return frozen(_row_norms_sq(X.indptr, X.indices, X.data, weights), np.float64)


def take_rows(X: CSR, rows: Int64) -> CSR:
    """Return these rows of X in this order: (len(rows), n_cols).

    rows: int64, in any order, repeats allowed.
    """
    return csr(*_take_rows(X.indptr, X.indices, X.data, frozen(rows, np.int64)), X.n_cols)


def take_pattern_rows(Y: Pattern, rows: Int64) -> Pattern:
    """Return these rows of Y in this order: (len(rows), n_cols).

    rows: int64, in any order, repeats allowed.
    """
    indptr, positions = _positions(Y.indptr, frozen(rows, np.int64))
    return pattern(indptr, Y.indices[positions], Y.n_cols)


def row_range(X: CSR, start: int, stop: int) -> CSR:
    """Return rows start..stop-1 of X; indices and values are views."""
    lo, hi = X.indptr[start], X.indptr[stop]
    return csr(X.indptr[start : stop + 1] - lo, X.indices[lo:hi], X.data[lo:hi], X.n_cols)


def pattern_range(Y: Pattern, start: int, stop: int) -> Pattern:
    """Return rows start..stop-1 of Y; indices are a view."""
    lo, hi = Y.indptr[start], Y.indptr[stop]
    return pattern(Y.indptr[start : stop + 1] - lo, Y.indices[lo:hi], Y.n_cols)
