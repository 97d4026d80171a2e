"""Pages of object storage that are kept on the disk of a node, for all its workers and trainings.

pages.kept    the pages at their positions in the object, with holes in between
pages.held    one byte per page: 1 if it is in pages.kept

Pages never change, and every reader compares their checksums, so processes need no lock: a page
that is not completely written is read from the storage again. There is no removal: the first pages
that are read stay, until the directory of the copy is removed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Final, Self

import numpy as np

from xcray.errors import Corrupt
from xcray.solvers.indexed_bcd.forest_directory import PageFile, check_page
from xcray.system.units import parse_bytes

VARIABLE: Final = "XCRAY_PAGE_CACHE"  # bytes per data set, like 50GiB
KEPT: Final = "pages.kept"
HELD: Final = "pages.held"


class NodePages:
    """The pages of one data set that this node keeps, at most `max_bytes` on the disk."""

    def __init__(self, file: PageFile, max_bytes: int) -> None:
        self._file, self._max_bytes, self._is_full = file, max_bytes, False
        folder, n_pages = file.path.parent, len(file.checksums)
        self._handle, held = (
            os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in (KEPT, HELD)
        )
        weakref.finalize(self, os.close, self._handle)
        os.truncate(held, n_pages)
        os.close(held)
        self._held = np.memmap(folder / HELD, np.uint8, "r+", shape=(n_pages,))

    @classmethod
    def open(cls, file: PageFile) -> Self | None:
        """Return the pages that the environment asks to keep; None if it does not.

        Raises ParameterError if XCRAY_PAGE_CACHE is not a size.
        """
        text = os.environ.get(VARIABLE, "")
        limit = parse_bytes(text) if text else 0
        if not limit or not os.access(file.path.parent, os.W_OK):
            return None
        return cls(file, limit)

    def read(self, pages: Iterable[int]) -> dict[int, bytes]:
        """Return the bytes of those pages that are kept and undamaged."""
        found = {}
        for page in pages:
            if not self._held[page]:
                continue
            first, last = (int(offset) for offset in self._file.offsets[page : page + 2])
            data = os.pread(self._handle, last - first, first)
            try:
                check_page(self._file, page, data)
            except Corrupt:  # not written completely, or damaged: it is written again
                self._held[page] = 0
            else:
                found[page] = data
        return found

    def keep(self, pages: Mapping[int, bytes]) -> None:
        """Keep pages, if they fit on the disk and within the limit."""
        for page, data in pages.items():
            used = os.fstat(self._handle).st_blocks * 512  # by all processes
            if self._is_full or used + len(data) > self._max_bytes:
                return
            try:
                n = os.pwrite(self._handle, data, int(self._file.offsets[page]))
            except OSError:
                self._is_full = True  # the disk
            else:
                self._held[page] = n == len(data)
