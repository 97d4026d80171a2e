"""Readers of the pages of a metric forest: from a file on disk, or from object storage."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from xcray.arrays import CSR, csr
from xcray.errors import Corrupt, NotFound, Unavailable
from xcray.solvers.indexed_bcd.forest_directory import (
    DIRECTORY,
    PAGES,
    PageFile,
    StoredForest,
    check_page,
    repair_hint,
)
from xcray.solvers.indexed_bcd.node_pages import NodePages
from xcray.solvers.indexed_bcd.row_store import ReadCounts
from xcray.storage.objectstore.client import NO_BUCKET, StoragePath, with_retries
from xcray.system.malloc import limit_arenas

ENTRY_BYTES: Final = 8  # column index and value
# A request has the latency of an object store (10 to 30 ms), in which it could transfer about 1 MB.
REQUEST_BYTES: Final = 1 << 20
REQUESTS_IN_FLIGHT: Final = 16


class PageReader(Protocol):
    """Reads pages, and compares their checksums. One thread at a time uses it.

    batch_bytes: to read together; 0 if the caller decides. cache_share: the cache has at least
    1 / cache_share of the memory; batch_share: a batch has at most 1 / batch_share of the cache;
    min_cache_pages: least size of the cache. joins_pages: whether several pages arrive in one
    request. bytes_read: so far. requests, bytes_requested: of object storage, so far.
    """

    batch_bytes: int
    cache_share: int
    batch_share: int
    min_cache_pages: int
    joins_pages: bool
    bytes_read: int
    requests: int
    bytes_requested: int

    def read(self, pages: list[int]) -> list[bytes]:
        """Return the bytes of pages, in their order.

        Raises Corrupt with the number of a damaged page, Unavailable if object storage fails.
        """


class PagesOnDisk(PageReader):
    """Reads each page with one positional read."""

    batch_bytes, cache_share, batch_share, min_cache_pages = 0, 8, 8, 8
    joins_pages = False

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self.bytes_read, self.requests, self.bytes_requested = 0, 0, 0
        self._handle = os.open(file.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        if hasattr(os, "posix_fadvise"):  # the system must not read more than was requested
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, pages: list[int]) -> list[bytes]:
        """Return the bytes of pages, see `PageReader`."""
        return [self._read_page(page) for page in pages]

    def _read_page(self, page: int) -> bytes:
        """Return the bytes of a page."""
        first, last = (int(offset) for offset in self._file.offsets[page : page + 2])
        data = os.pread(self._handle, last - first, first)
        check_page(self._file, page, data)
        self.bytes_read += len(data)
        return data


class PageRange(NamedTuple):
    """Adjacent pages that one request reads: first to end - 1."""

    first: int
    end: int


class PagesInObjectStorage(PageReader):
    """Reads adjacent pages with one request, and has many requests in flight.

    A request that fails is retried with growing pauses, see `with_retries`. Pages that the node
    keeps are not requested again, see `NodePages`.
    """

    # Batches are as large as possible. Three batches and one that arrives must fit into the cache,
    # each with a page more.
    batch_bytes = REQUEST_BYTES * REQUESTS_IN_FLIGHT // 2
    cache_share, batch_share, min_cache_pages = 4, 5, 20
    joins_pages = True

    def __init__(self, file: PageFile, uri: str) -> None:
        self._file = file
        self.bytes_read, self.requests, self.bytes_requested = 0, 0, 0
        self._node = NodePages.open(file)
        self._object = StoragePath.parse(uri) / DIRECTORY / PAGES
        self._source: Any = None
        limit_arenas()  # each of the threads would keep a few MB that it has freed
        self._threads = ThreadPoolExecutor(REQUESTS_IN_FLIGHT, "xcray-requests")
        weakref.finalize(self, self._threads.shutdown, wait=False)

    def read(self, pages: list[int]) -> list[bytes]:
        """Return the bytes of pages, see `PageReader`."""
        found = {} if self._node is None else self._node.read(pages)
        if missing := sorted(set(pages) - found.keys()):
            found |= self._request(missing)
        self.bytes_read += sum(map(len, found.values()))
        return [found[page] for page in pages]

    def _request(self, pages: list[int]) -> dict[int, bytes]:
        """Return the bytes of ascending pages from the storage."""
        if self._source is None:
            self._source = self._open()
        ranges = join_pages(pages, self._file.offsets, REQUEST_BYTES)
        found: dict[int, bytes] = {}
        for place, data in zip(ranges, self._threads.map(self._read_range, ranges), strict=True):
            part = self._split(place, data)
            found |= part
            if self._node is not None:
                self._node.keep(part)
        self.requests += len(ranges)
        self.bytes_requested += sum(map(len, found.values()))
        return found

    def _open(self) -> Any:
        """Open the object. Raises Corrupt if it is missing or has another size."""
        place, self.requests = self._object, self.requests + 1
        try:
            source = with_retries(place, lambda: place.filesystem.open_input_file(place.path))
        except NotFound as error:
            raise self._missing(error) from None
        if source.size() != self._file.n_bytes:
            raise Corrupt(
                f"{place.uri} has {source.size():,} bytes instead of {self._file.n_bytes:,}: "
                f"{repair_hint(self._file.name, self._file.uri)}",
                file=place.name,
            )
        return source

    def _read_range(self, pages: PageRange) -> bytes:
        """Return the bytes of adjacent pages."""
        start, end = (int(self._file.offsets[page]) for page in pages)

        def request() -> bytes:
            data = bytes(self._source.read_at(end - start, start))
            if len(data) != end - start:
                raise Unavailable(
                    f"{self._object.uri} ended early at byte {start + len(data):,}",
                    code="STORAGE_AWAY",
                )
            return data

        try:
            return with_retries(self._object, request)
        except NotFound as error:
            raise self._missing(error) from None

    def _split(self, pages: PageRange, data: bytes) -> dict[int, bytes]:
        """Return the bytes of each of adjacent pages, checked."""
        starts = self._file.offsets[pages.first : pages.end + 1] - self._file.offsets[pages.first]
        found = {}
        for page, lo, hi in zip(range(*pages), starts[:-1], starts[1:], strict=True):
            found[page] = data[lo:hi]
            check_page(self._file, page, found[page])
        return found

    def _missing(self, error: NotFound) -> Exception:
        """Return the error for a missing object."""
        if error.code == NO_BUCKET:
            return error
        return Corrupt(
            f"{self._object.uri} is missing: {repair_hint(self._file.name, self._file.uri)}",
            file=self._object.name,
        )


def open_pages(file: PageFile) -> PageReader:
    """Return a reader of the pages of a forest."""
    return PagesOnDisk(file) if file.uri is None else PagesInObjectStorage(file, file.uri)


def join_pages(pages: Sequence[int], offsets: np.ndarray, max_bytes: int) -> list[PageRange]:
    """Return the ranges of ascending pages: adjacent ones of at most `max_bytes`, or one page.

    offsets: (pages + 1,) bytes.
    """
    ranges: list[PageRange] = []
    for page in pages:
        if (
            ranges
            and page == ranges[-1].end
            and offsets[page + 1] - offsets[ranges[-1].first] <= max_bytes
        ):
            ranges[-1] = ranges[-1]._replace(end=page + 1)
        else:
            ranges.append(PageRange(page, page + 1))
    return ranges


def decode_page(stored: StoredForest, page: int, data: bytes) -> CSR:
    """Return the rows of a page as views of its bytes."""
    first, last = stored.indexed.pages.indptr[page : page + 2]
    starts = np.zeros(last - first + 1, np.int64)
    np.cumsum(stored.file.lengths[first:last], out=starts[1:])
    n = len(data) // ENTRY_BYTES
    indices = np.frombuffer(data, np.int32, n)
    return csr(starts, indices, np.frombuffer(data, np.float32, n, 4 * n), stored.file.n_cols)


def read_all_rows(stored: StoredForest) -> tuple[CSR, ReadCounts]:
    """Return all rows in the order of the pages, (N, D) in memory, and what was read."""
    file, reader = stored.file, open_pages(stored.file)
    indptr = np.concatenate([[0], np.cumsum(file.lengths, dtype=np.int64)])
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    end, n_pages = 0, stored.indexed.pages.n_pages
    for lo in range(0, n_pages, REQUESTS_IN_FLIGHT):
        pages = list(range(lo, min(lo + REQUESTS_IN_FLIGHT, n_pages)))
        for page, data in zip(pages, reader.read(pages), strict=True):
            X = decode_page(stored, page, data)
            begin, end = end, end + X.nnz
            indices[begin:end], values[begin:end] = X.indices, X.data
    counts = ReadCounts(reader.bytes_read, reader.requests, reader.bytes_requested)
    return csr(indptr, indices, values, file.n_cols), counts
