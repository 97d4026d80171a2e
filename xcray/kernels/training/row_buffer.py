"""A buffer of some rows of a matrix, from which rows are removed in place."""

import numba

from xcray.arrays import Float32, Int32, Int64


@numba.njit(nogil=True, cache=True)
def compact_rows(indptr: Int64, indices: Int32, data: Float32, remaining: Int64) -> int:
    """Move the rows `remaining` (n,), ascending, to the front of a buffer; return their entries."""
    end = 0
    for new in range(len(remaining)):
        old = remaining[new]
        first, last = indptr[old], indptr[old + 1]
        for p in range(first, last):
            indices[end + p - first] = indices[p]
            data[end + p - first] = data[p]
        # `new` is at most `old`, so no start that is still needed is overwritten
        indptr[new] = end
        end += last - first
    indptr[len(remaining)] = end
    return int(end)
