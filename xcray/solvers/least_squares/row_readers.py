"""Readers of a shard's rows: copied into memory, or read from mapped files each time."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from xcray.arrays import CSR, Float32, Int64
from xcray.features.columns import Columns
from xcray.features.pipeline import Rows
from xcray.kernels.sparse import row_range, take_rows
from xcray.solvers.least_squares.stages import Features
from xcray.solvers.row_shards import MIN_DENSE_SHARE, Shard

ROWS_AT_A_TIME: Final = 4096  # mapped rows of which columns are taken at a time
ENTRIES_AT_A_TIME: Final = 1 << 17  # mapped entries that are copied at a time: 1 MB


class RowReader(Protocol):
    """Rows (n, D) of a shard.

    shape; width: mean number of values of a row in memory; sparse: whether most entries are 0, so
    that rows stay sparse.
    """

    shape: tuple[int, int]
    width: int
    sparse: bool

    def take(self, lo: int, hi: int) -> Rows:
        """Return rows lo .. hi-1: CSR, or dense float32 if they have few zeros."""

    def columns(self, features: Columns | None) -> Features:
        """Return these columns of all rows as a scipy CSR matrix (n, n_outputs); None: all."""


class CopiedRows:
    """Rows that a shard holds in memory, see `RowReader`."""

    def __init__(self, shard: Shard) -> None:
        self._X, self._dense = shard.X, shard.dense
        self.shape, self.sparse = shard.X.shape, shard.dense is None
        self.width = _width(shard.X.nnz, self)

    def take(self, lo: int, hi: int) -> Rows:
        """See `RowReader`."""
        return row_range(self._X, lo, hi) if self._dense is None else self._dense[lo:hi]

    def columns(self, features: Columns | None) -> Features:
        """See `RowReader`. Time: that of the entries returned, after the first call."""
        if features is None:
            return self._X.to_scipy()
        return self._by_column[:, features.numbers].tocsr()

    @cached_property
    def _by_column(self) -> Any:
        """Return the rows as a scipy CSC matrix."""
        return self._X.to_scipy().tocsc()


class MappedRows:
    """Rows `numbers` (n,) of mapped X (N, D), see `RowReader`: memory for a chunk at a time.

    Chunks have the same numbers, bit by bit, as `CopiedRows` of the same shard.
    """

    def __init__(self, X: CSR, numbers: Int64) -> None:
        self._X, self._numbers = X, numbers
        self.shape = (len(numbers), X.n_cols)
        entries = int((X.indptr[numbers + 1] - X.indptr[numbers]).sum())
        self.sparse = not entries or entries < MIN_DENSE_SHARE * len(numbers) * X.n_cols
        self.width = _width(entries, self)

    def take(self, lo: int, hi: int) -> Rows:
        """See `RowReader`."""
        if self.sparse:
            return take_rows(self._X, self._numbers[lo:hi])
        dense: Float32 = np.zeros((hi - lo, self.shape[1]), np.float32)
        step = max(1, ENTRIES_AT_A_TIME // self.shape[1])
        for first in range(0, hi - lo, step):
            part = dense[first : first + step]
            numbers = self._numbers[lo + first : lo + first + len(part)]
            take_rows(self._X, numbers).to_scipy().toarray(out=part)
        return dense

    def columns(self, features: Columns | None) -> Features:
        """See `RowReader`. Time: that of reading all rows; memory: that of the result."""
        from scipy.sparse import vstack

        parts = []
        for lo in range(0, max(self.shape[0], 1), ROWS_AT_A_TIME):
            chunk = take_rows(self._X, self._numbers[lo : lo + ROWS_AT_A_TIME]).to_scipy()
            parts.append(chunk if features is None else chunk[:, features.numbers])
        return vstack(parts, format="csr")


def _width(entries: int, rows: RowReader) -> int:
    """Return the mean number of values of a row in memory."""
    n, d = rows.shape
    return entries // max(n, 1) if rows.sparse else d
