"""Blocks of rows in a temporary file; one block and a cache of selected rows are in memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import numpy as np

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.metric_forest.row_spill import ENTRY_BYTES, RowSpill
from xcray.kernels.sparse import take_rows
from xcray.kernels.training.dual_hinge import HingeRows
from xcray.solvers.indexed_bcd.row_store import RowsInMemory

NO_ROWS: Final = np.empty(0, np.int64)


class DiskBlocks(RowsInMemory):
    """Rows of which one block at a time is in memory, and the rows that are held.

    Positions are those of a random order of the rows; block b has the positions edges[b] to
    edges[b + 1] - 1. The blocks are written once and read whole. bytes_read: so far.
    """

    def __init__(
        self,
        X: CSR,
        order: Int64,
        n_blocks: int,
        norms: Float64,
        costs: Float64,
        is_squared: bool,
        folder: Path,
    ) -> None:
        """Write the blocks.

        X: (N, D); order: (N,) row of X by position; norms, costs: (N,) by position; folder: see
        `RowSpill`.
        """
        self._slots = np.zeros(len(order), np.int32)
        self._empty = csr([0], [], [], X.n_cols)
        super().__init__(self._empty, self._slots, norms, costs, is_squared)
        self.average, self.bytes_read = X.nnz / max(X.n_rows, 1), 0
        parts = np.array_split(np.arange(len(order)), n_blocks)
        self.edges = np.cumsum([0, *map(len, parts)])
        zones = np.repeat(np.arange(n_blocks), np.diff(self.edges))
        lengths = frozen(np.diff(X.indptr)[order], np.int32)
        self._file = RowSpill(zones, lengths, X.n_cols, folder)
        for part in parts:
            self._file.add(part, take_rows(X, order[part]))
        self.hold(NO_ROWS)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.edges) - 1

    def open(self, block: int) -> Int64:
        """Read a block; return the positions in memory: its own, then the held ones."""
        own, X = self._file.read_zone(block)
        self.bytes_read += ENTRY_BYTES * X.nnz
        others = np.flatnonzero((self._held < own[0]) | (self._held > own[-1]))
        chosen = np.concatenate([own, self._held[others]])
        self.rows = self.rows._replace(X=_stack(X, take_rows(self._held_rows, others)))
        self._slots[chosen] = np.arange(len(chosen))
        return chosen

    def hold(self, rows: Int64) -> None:
        """Hold these of the rows in memory, and no others; call it before the next `open`."""
        self._held, self._held_rows = (
            rows,
            take_rows(self.rows.X, frozen(self._slots[rows], np.int64)),
        )

    def clone(self) -> DiskBlocks:
        """Return a store of the same file for another thread."""
        other = copy.copy(self)
        other._slots, other.bytes_read = self._slots.copy(), 0
        other.rows = HingeRows(
            self._empty, other._slots, 0, self.norms, self.costs, self.is_squared
        )
        other.hold(NO_ROWS)
        return other


def _stack(first: CSR, second: CSR) -> CSR:
    """Return the rows of both."""
    if not second.n_rows:
        return first
    return csr(
        np.concatenate([first.indptr, second.indptr[1:] + first.nnz]),
        np.concatenate([first.indices, second.indices]),
        np.concatenate([first.data, second.data]),
        first.n_cols,
    )
