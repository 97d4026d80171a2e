"""The weights by feature, made of the weights by label within a budget of memory: the files may be larger than memory.

One pass counts the weights of each feature. Then the features are gone through in ranges whose postings fit in the budget:
a pass over all labels collects a range, and it is written behind the one before. Each label keeps a cursor, so all passes
together visit every weight once; what a pass reads in vain is the rest of the pages it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from xcray.arrays import CSR, Int64
from xcray.files import MatrixWriter
from xcray.kernels.merge import column_counts, take_columns

BUDGET = 64 << 20  # bytes of postings, or of merged weights, that are in memory at once; larger pieces leave the caches
ENTRY = 8  # bytes of an entry: int32 and float32


def write_postings(path: Path, W: CSR, budget: int = BUDGET, tick: Callable[[], None] = lambda: None) -> None:
    """Write the transpose (D, K) of W, a sound (K, D) matrix that may be mapped from disk; the same bytes for any budget.

    budget: bytes in memory at once, beside 8 K + 16 D; a feature with more postings is taken whole. tick: called after
    each range.
    """
    counts = column_counts(W.indices[: W.nnz], W.n_cols)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    cursors = np.array(W.indptr[:-1])
    with MatrixWriter(path, indptr, W.n_rows) as out:
        for first, stop in ranges(indptr, budget // ENTRY):
            n = int(indptr[stop] - indptr[first])
            rows, weights = np.empty(n, np.int32), np.empty(n, np.float32)
            take_columns(W, cursors, first, stop, indptr[first:stop] - indptr[first], rows, weights)
            out.write(int(indptr[first]), rows, weights)
            tick()


def ranges(indptr: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, stop) of rows, in order, that have at most `most` entries each or are a single row."""
    first, n = 0, len(indptr) - 1
    while first < n:
        stop = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
        stop = min(max(stop, first + 1), n)
        yield first, stop
        first = stop
