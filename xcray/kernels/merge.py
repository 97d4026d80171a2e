"""Merging and transposing matrices piece by piece, for matrices larger than memory.

Inputs are read-only arrays (mapped files). Outputs are arrays of one piece, written in place.
"""

from __future__ import annotations

import numba

from xcray.arrays import CSR, Float32, Int32, Int64


@numba.njit(nogil=True, cache=True)
def copy_rows(source: CSR, rows: Int64, starts: Int64, indices: Int32, data: Float32) -> None:
    """Copy row rows[r] of `source` to `indices` and `data` from position starts[r] on.

    rows, starts: (n,) int64.
    """
    for r in range(len(rows)):
        lo, hi = source.indptr[rows[r]], source.indptr[rows[r] + 1]
        for p in range(lo, hi):
            indices[starts[r] + p - lo] = source.indices[p]
            data[starts[r] + p - lo] = source.data[p]


@numba.njit(nogil=True, cache=True)
def take_columns(
    matrix: CSR, cursors: Int64, first: int, stop: int, positions: Int64, rows: Int32, data: Float32
) -> None:
    """Copy the entries of columns [first, stop) to `rows` and `data`, by column and ascending row.

    cursors: (n_rows,) int64, for each row the position of its first entry of a column >= first;
    moved to the first >= stop. positions: (stop - first,) int64, output position of each column;
    moved to its end. The columns of a row must ascend.
    """
    for i in range(len(cursors)):
        p, end = cursors[i], matrix.indptr[i + 1]
        while p < end and matrix.indices[p] < stop:
            position = positions[matrix.indices[p] - first]
            rows[position] = i
            data[position] = matrix.data[p]
            positions[matrix.indices[p] - first] = position + 1
            p += 1
        cursors[i] = p
