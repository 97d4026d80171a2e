"""Validation of matrices from outside: other kernels read them without bounds checks."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Pattern

# messages by the code of `first_fault`
FAULTS = (
    "",
    "its row offsets do not ascend within its entries",
    "a column index lies outside the matrix",
    "column indices do not ascend, or repeat",
    "a value is not finite",
)


@numba.njit(nogil=True, cache=True)
def first_fault(matrix: CSR) -> tuple[int, int]:
    """Return (code in FAULTS, row) of the first fault of a CSR; (0, -1) if it is valid.

    One pass, O(rows + entries).
    """
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    n_rows = len(indptr) - 1
    if n_rows < 0 or indptr[0] < 0 or indptr[n_rows] > min(len(indices), len(data)):
        return 1, 0
    for i in range(n_rows):
        if indptr[i + 1] < indptr[i]:
            return 1, i
    for i in range(n_rows):
        before = -1
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] < 0 or indices[p] >= matrix.n_cols:
                return 2, i
            if indices[p] <= before:
                return 3, i
            if not np.isfinite(data[p]):
                return 4, i
            before = indices[p]
    return 0, -1


def pattern_fault(matrix: Pattern) -> tuple[int, int]:
    """Return (code in FAULTS, row) of a fault of a Pattern; (0, -1) if it is valid.

    Array operations, O(rows + entries) time and O(entries) bytes of memory.
    """
    indptr, indices = matrix.indptr, matrix.indices[: max(int(matrix.indptr[-1]), 0)]
    falling = np.flatnonzero(np.diff(indptr) < 0)
    if len(falling) or indptr[0] < 0:
        return 1, int(falling[0]) if len(falling) else 0

    def fault(code: int, positions: np.ndarray) -> tuple[int, int]:
        return code, int(np.searchsorted(indptr, positions[0], "right")) - 1

    outside = np.flatnonzero((indices < 0) | (indices >= matrix.n_cols))
    if len(outside):
        return fault(2, outside)
    is_first = np.zeros(len(indices) + 1, np.bool_)
    is_first[indptr] = True
    repeated = np.flatnonzero((np.diff(indices) <= 0) & ~is_first[1:-1])
    return fault(3, repeated + 1) if len(repeated) else (0, -1)
