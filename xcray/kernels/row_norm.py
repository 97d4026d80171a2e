"""Normalisation of rows: "l2" divides each row by its Euclidean norm, as scikit-learn's Normalizer.

Written in NumPy, so that a first prediction does not wait for a compilation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from xcray.arrays import CSR, Float64, frozen

ROW_NORMS: Final = ("none", "l2")
CHUNK_ENTRIES = 1 << 20  # entries per step, which limits the memory of intermediate results


def row_lengths(X: CSR) -> Float64:
    """Return the Euclidean norm of each row: (n,) float64.

    Squares are summed in float64 in ascending column order.
    """
    sums = np.zeros(X.n_rows, np.float64)
    for start, stop in _chunks(X):
        lo, hi = X.indptr[start], X.indptr[stop]
        rows = np.repeat(np.arange(stop - start), np.diff(X.indptr[start : stop + 1]))
        squares = np.square(X.data[lo:hi], dtype=np.float64)
        sums[start:stop] = np.bincount(rows, squares, stop - start)
    return frozen(np.sqrt(sums), np.float64)


def normalize_rows(X: CSR, row_norm: str) -> CSR:
    """Return rows divided by their norm, rounded to float32; X itself for "none".

    Empty rows stay empty, and rows of zeros stay zero. The positions of the entries are shared.
    """
    if row_norm == "none":
        return X
    lengths, data = _divisors(row_lengths(X)), np.empty(len(X.data), np.float32)
    for start, stop in _chunks(X):
        lo, hi = X.indptr[start], X.indptr[stop]
        counts = np.diff(X.indptr[start : stop + 1])
        data[lo:hi] = X.data[lo:hi] / np.repeat(lengths[start:stop], counts)
    return X._replace(data=frozen(data, np.float32))


def normalize_columns(XT: CSR, lengths: Float64) -> CSR:
    """Return the transpose of normalised rows, with the same bits. XT: (D, n); lengths: (n,)."""
    divisors, data = _divisors(lengths), np.empty(len(XT.data), np.float32)
    for lo in range(0, len(data), CHUNK_ENTRIES):
        hi = lo + CHUNK_ENTRIES
        data[lo:hi] = XT.data[lo:hi] / divisors[XT.indices[lo:hi]]
    return XT._replace(data=frozen(data, np.float32))


def has_equal_lengths(X: CSR, tolerance: float = 1e-3) -> bool:
    """Return whether all rows with an entry have the same norm, up to a relative tolerance."""
    lengths = row_lengths(X)
    lengths = lengths[lengths > 0.0]
    return bool(len(lengths) == 0 or lengths.max() <= (1.0 + tolerance) * lengths.min())


def _divisors(lengths: Float64) -> Float64:
    """Return norms, with 1 in place of 0."""
    return np.where(lengths > 0.0, lengths, 1.0)


def _chunks(X: CSR) -> list[tuple[int, int]]:
    """Return ranges of rows that cover X, each with about CHUNK_ENTRIES entries."""
    if not X.n_rows:
        return []
    ends = np.searchsorted(X.indptr, np.arange(X.indptr[0], X.indptr[-1], CHUNK_ENTRIES)[1:])
    bounds = np.unique(np.concatenate(([0], ends, [X.n_rows])))
    return [(int(start), int(stop)) for start, stop in pairwise(bounds)]
