"""Reader of the pages of a metric forest on disk."""

from __future__ import annotations

import os
import weakref
from typing import Final

import numpy as np

from xcray.arrays import CSR, csr
from xcray.data.metric_forest.check import check_page_rows
from xcray.data.metric_forest.directory import (
    PageFile,
    StoredForest,
    check_page,
    damaged_page,
)
from xcray.errors import Corrupt

ENTRY_BYTES: Final = 8  # column index and value


class PageReader:
    """Reads each page with one positional read. One thread at a time uses it.

    bytes_read: so far.
    """

    def __init__(self, file: PageFile) -> None:
        self._file, self.bytes_read = file, 0
        self._handle = os.open(file.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        if hasattr(os, "posix_fadvise"):  # the system must not read more than was requested
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, pages: list[int]) -> list[bytes]:
        """Return the bytes of pages, in their order.

        Raises Corrupt with the number of a damaged page.
        """
        return [self._read_page(page) for page in pages]

    def _read_page(self, page: int) -> bytes:
        """Return the bytes of a page."""
        first, last = (int(offset) for offset in self._file.offsets[page : page + 2])
        data = os.pread(self._handle, last - first, first)
        check_page(self._file, page, data)
        self.bytes_read += len(data)
        return data


def decode_page(stored: StoredForest, page: int, data: bytes) -> CSR:
    """Return the rows of a page as views of its bytes.

    Raises Corrupt if they are not valid rows with the stored norms.
    """
    first, last = stored.indexed.pages.indptr[page : page + 2]
    starts = np.zeros(last - first + 1, np.int64)
    np.cumsum(stored.file.lengths[first:last], out=starts[1:])
    n = len(data) // ENTRY_BYTES
    indices = np.frombuffer(data, np.int32, n)
    X = csr(starts, indices, np.frombuffer(data, np.float32, n, 4 * n), stored.file.n_cols)
    try:
        check_page_rows(X, stored.indexed.norms[first:last])
    except Corrupt as error:
        raise damaged_page(stored.file, page, error.message) from None
    return X
