"""Active rows on disk, for trainings whose active rows do not fit into memory."""

from __future__ import annotations

import os
import weakref
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import numpy as np

from xcray.arrays import CSR, Int32, Int64, csr
from xcray.kernels.sparse import take_rows
from xcray.storage.positional import read_array, write_all

ENTRY_BYTES: Final = 8  # column index and value
COMPACT_SHARE: Final = 0.25  # of a zone: removed entries, above which it is written again


class RowSpill:
    """Rows grouped by zone, in two temporary files without names: column indices and values.

    Each zone has a range of both files that is large enough for all its rows; the files have holes
    where nothing was written. Rows are appended to their zones. Removed rows stay until they are a
    quarter of the zone, and need not be written again if they return before.

    zones: (N,) zone of each row; lengths: (N,) entries of each row; folder: on the disk that is
    used if it can be written, otherwise the temporary directory of the system. bytes_read: so far.
    """

    def __init__(self, zones: np.ndarray, lengths: Int32, n_cols: int, folder: Path) -> None:
        self._zones, self._lengths, self._n_cols = zones, lengths, n_cols
        entries = np.bincount(zones, lengths).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(entries)])
        self._rows = [np.empty(0, np.int64) for _ in entries]  # with removed ones
        place = str(folder) if os.access(folder, os.W_OK) else None
        self._handles = tuple(_nameless_file(place) for _ in range(2))
        for handle in self._handles:
            weakref.finalize(self, os.close, handle)
        self._is_kept, self._is_written = (np.zeros(len(zones), bool) for _ in range(2))
        self._is_wanted = np.zeros(len(zones), bool)  # scratch memory
        self.bytes_read = 0

    def add(self, rows: Int64, X: CSR) -> None:
        """Append rows, which are not here; X: (n, D), in their order."""
        self._is_kept[rows] = True
        new = np.flatnonzero(~self._is_written[rows])
        order = new[np.argsort(self._zones[rows[new]], kind="stable")]
        rows, zones = rows[order], self._zones[rows][order]
        X = take_rows(X, order)
        first = np.append(np.flatnonzero(np.diff(zones, prepend=-1)), len(rows))
        for lo, hi in pairwise(first):
            self._append(int(zones[lo]), rows[lo:hi], X, int(X.indptr[lo]), int(X.indptr[hi]))

    def contains(self, rows: Int64) -> np.ndarray:
        """Return whether rows are here: (n,) bool."""
        return self._is_kept[rows]

    def keep(self, rows: Int64) -> None:
        """Remove all rows except `rows`."""
        self._is_kept.fill(False)
        self._is_kept[rows] = True
        for zone, stored in enumerate(self._rows):
            entries = self._entries(stored)
            removed = entries - self._entries(stored[self._is_kept[stored]])
            if removed > COMPACT_SHARE * entries:
                self._compact(zone)

    def read(self, rows: Int64) -> list[tuple[Int64, CSR]]:
        """Return rows zone by zone, in any order: their numbers (n,) and the rows (n, D)."""
        self._is_wanted[rows] = True
        parts = [
            self._read_zone(int(zone), self._is_wanted) for zone in np.unique(self._zones[rows])
        ]
        self._is_wanted[rows] = False
        return parts

    def _append(self, zone: int, rows: Int64, X: CSR, lo: int, hi: int) -> None:
        """Append rows of one zone, whose entries in X are lo to hi - 1."""
        place = int(self._starts[zone]) + self._entries(self._rows[zone])
        for handle, array in zip(self._handles, (X.indices, X.data), strict=True):
            if hi > lo:
                write_all(handle, array[lo:hi], 4 * place)
        self._rows[zone] = np.concatenate([self._rows[zone], rows])
        self._is_written[rows] = True

    def _compact(self, zone: int) -> None:
        """Write a zone again, without removed rows."""
        kept, X = self._read_zone(zone, self._is_kept)
        self._is_written[self._rows[zone]] = False
        self._rows[zone] = kept[:0]
        self._append(zone, kept, X, 0, X.nnz)

    def _entries(self, rows: Int64) -> int:
        """Return the number of entries of rows."""
        return int(self._lengths[rows].sum(dtype=np.int64))

    def read_zone(self, zone: int) -> tuple[Int64, CSR]:
        """Return all rows of a zone that were written, and their numbers; for any thread."""
        stored = self._rows[zone]
        indptr = np.concatenate([[0], np.cumsum(self._lengths[stored], dtype=np.int64)])
        n, place = int(indptr[-1]), 4 * int(self._starts[zone])
        indices, data = (
            read_array(handle, dtype, n, place)
            for handle, dtype in zip(self._handles, (np.int32, np.float32), strict=True)
        )
        return stored, csr(indptr, indices, data, self._n_cols)

    def _read_zone(self, zone: int, is_wanted: np.ndarray) -> tuple[Int64, CSR]:
        """Return the rows of a zone that are wanted, and their numbers. is_wanted: (N,) bool."""
        stored, X = self.read_zone(zone)
        self.bytes_read += ENTRY_BYTES * X.nnz
        wanted = is_wanted[stored]
        if wanted.all():
            return stored, X
        return stored[wanted], take_rows(X, np.flatnonzero(wanted))


def _nameless_file(folder: str | None) -> int:
    """Return the descriptor of a new temporary file without a name."""
    with TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())
