"""Matrices put together and turned piece by piece, for those that do not fit in memory.

Inputs are read-only arrays (mapped files), outputs are the pieces at hand, written in place.
"""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32, Int64


@numba.njit(nogil=True, cache=True)
def copy_rows(source: CSR, rows: Int64, starts: Int64, indices: Int32, data: Float32) -> None:
    """Row rows[r] of `source` goes to place starts[r] and on in `indices` and `data`, (rows,) int64 both."""
    for r in range(len(rows)):
        lo, hi = source.indptr[rows[r]], source.indptr[rows[r] + 1]
        for p in range(lo, hi):
            indices[starts[r] + p - lo] = source.indices[p]
            data[starts[r] + p - lo] = source.data[p]


@numba.njit(nogil=True, cache=True)
def column_counts(indices: Int32, n_cols: int) -> Int64:
    """Entries of each column: (n_cols,) int64."""
    counts = np.zeros(n_cols, np.int64)
    for p in range(len(indices)):
        counts[indices[p]] += 1
    return counts


@numba.njit(nogil=True, cache=True)
def take_columns(
    matrix: CSR, cursors: Int64, first: int, stop: int, places: Int64, rows: Int32, data: Float32
) -> None:
    """The entries of columns [first, stop), column by column with ascending rows, into `rows` and `data`.

    cursors: (n_rows,) int64, where each row goes on: at its first entry of a column >= first; moved to the first >= stop.
    places: (stop - first,) int64, where each column goes on in the output; moved to its end. Columns of a row ascend.
    """
    for i in range(len(cursors)):
        p, end = cursors[i], matrix.indptr[i + 1]
        while p < end and matrix.indices[p] < stop:
            place = places[matrix.indices[p] - first]
            rows[place] = i
            data[place] = matrix.data[p]
            places[matrix.indices[p] - first] = place + 1
            p += 1
        cursors[i] = p
