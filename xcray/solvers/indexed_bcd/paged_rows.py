"""Rows on pages: a cache of pages and a buffer of the active rows, within a limit of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.metric_forest.directory import StoredForest
from xcray.data.metric_forest.page_reader import ENTRY_BYTES, PageReader, decode_page
from xcray.data.metric_forest.row_spill import RowSpill
from xcray.errors import ParameterError
from xcray.kernels.sparse import take_rows
from xcray.kernels.training.dual_hinge import HingeRows
from xcray.kernels.training.row_buffer import compact_rows
from xcray.solvers.indexed_bcd.row_store import Plan, RowStore, Visit
from xcray.system.units import format_bytes

READ_AHEAD_ROWS: Final = 1024  # average rows that are read together
CACHE_SHARE: Final = 8  # the cache has at least 1 / CACHE_SHARE of the memory
BATCH_SHARE: Final = 8  # a batch has at most 1 / BATCH_SHARE of the cache
MIN_CACHE_PAGES: Final = 8
BUFFER_STEPS: Final = 16  # in which the buffer grows
ROW_BYTES: Final = 8  # of the buffer of active rows, in addition to the entries


class _PageBatch(NamedTuple):
    """Pages that are read together.

    end: next position in the order. needed: positions to read. missing: pages that are not in the
    cache; reading: their bytes, None if there are none.
    """

    end: int
    needed: Int64
    missing: list[int]
    reading: Future[list[bytes]] | None


class PagedRows(RowStore):
    """Rows that are read from disk when they are needed.

    The active rows are in a buffer that grows in steps. The rest of the memory, at least an eighth,
    is a cache of pages, from which those that were not used for the longest time are removed. If
    the active rows do not fit, they are in temporary files (`RowSpill`), and every sweep reads them
    from there, in parts. While a batch of pages is in use, a thread reads the next.

    costs, zones: (N,) by position, see `RowStore` and `RowSelection`. memory_limit: bytes of cache
    and buffer. Raises ParameterError if it is too small for a few pages.
    """

    def __init__(
        self,
        stored: StoredForest,
        costs: Float64,
        zones: np.ndarray,
        memory_limit: int,
        is_squared: bool = False,
    ) -> None:
        self._stored, self._file, self._limit = stored, stored.file, memory_limit
        self._zones, self.is_squared = zones, is_squared
        self._spill: RowSpill | None = None
        self._spilled_bytes, self._counted = 0, 0
        self._reader = PageReader(stored.file)
        self._indptr = stored.indexed.pages.indptr
        self.norms, self.costs, self.n_cols = stored.indexed.norms, costs, stored.file.n_cols
        n_rows, n_bytes = len(costs), int(np.diff(stored.file.offsets[[0, -1]])[0])
        self.average = n_bytes / ENTRY_BYTES / max(n_rows, 1)
        page_rows = int(np.diff(self._indptr).max())
        # the bytes of a page in the cache, with the starts of its rows
        self._sizes = np.diff(stored.file.offsets) + 8 * (np.diff(self._indptr) + 1)
        self._cache: OrderedDict[int, CSR] = OrderedDict()
        self._used = 0  # bytes of the cache, with those that are being read
        self._set_sizes(memory_limit)
        self._local_slots = frozen(np.arange(page_rows), np.int32)
        self._none = self._hinge_rows(csr([0], [], [], self.n_cols), 0)
        self._thread: ThreadPoolExecutor | None = None
        self._new_buffer(n_rows)

    def _set_sizes(self, memory_limit: int) -> None:
        """Divide the memory. Raises ParameterError if it is too small."""
        largest = int(self._sizes.max())
        cache_bytes = max(memory_limit // CACHE_SHARE, MIN_CACHE_PAGES * largest)
        if memory_limit < 2 * cache_bytes:
            raise ParameterError(
                f"a memory limit that leaves {format_bytes(memory_limit)} for pages and active "
                f"rows is too small for pages of {format_bytes(largest)}: raise it by "
                f"{format_bytes(2 * cache_bytes - memory_limit)}, use fewer workers, or build the "
                "metric forest again with a smaller --leaf-size"
            )
        per_row = self.average * ENTRY_BYTES
        # Three batches must fit, each with the page that ends it: the one in use, the next, and the
        # one before, whose pages can have been used later than those of the next.
        self._batch_bytes = min(cache_bytes // BATCH_SHARE, max(1, int(READ_AHEAD_ROWS * per_row)))
        self._max_buffer = memory_limit - cache_bytes

    def _new_buffer(self, n_rows: int) -> None:
        """Create an empty buffer of active rows."""
        row_bytes = ROW_BYTES + ENTRY_BYTES * max(self.average, 1.0)
        self._max_rows = min(n_rows, int(self._max_buffer / row_bytes))
        self._buffer_indptr = np.zeros(self._max_rows + 1, np.int64)
        self._max_entries = (self._max_buffer - self._buffer_indptr.nbytes) // ENTRY_BYTES
        self._indices, self._data = np.empty(0, np.int32), np.empty(0, np.float32)
        self._slots = np.full(n_rows, -1, np.int32)
        self._n_buffered = 0
        self._resize_buffer(0)

    def _resize_buffer(self, n_entries: int) -> None:
        """Make the buffer as large as `n_entries` and the rest of a step; remove pages for it."""
        step = max(1, self._max_entries // BUFFER_STEPS)
        size = min(-(-n_entries // step) * step, self._max_entries)
        buffer = self._buffer_indptr.nbytes + ENTRY_BYTES * size
        self._cache_bytes = self._limit - buffer
        self._make_room(0)
        # In place, so that the old and the new arrays never exist together. The views of the old
        # ones are replaced here.
        self._indices.resize(size, refcheck=False)
        self._data.resize(size, refcheck=False)
        X = CSR(
            frozen(self._buffer_indptr, np.int64),
            frozen(self._indices, np.int32),
            frozen(self._data, np.float32),
            self.n_cols,
        )
        slots = frozen(self._slots, np.int32)
        self._rows = HingeRows(X, slots, 0, self.norms, self.costs, self.is_squared)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages in the cache or being read, and of the buffer."""
        return self._used + self._buffer_indptr.nbytes + ENTRY_BYTES * len(self._indices)

    @property
    def bytes_read(self) -> int:
        """Bytes of the pages and of the temporary files that were read."""
        spilled = 0 if self._spill is None else self._spill.bytes_read
        return self._reader.bytes_read + self._spilled_bytes + spilled

    def take_bytes_read(self) -> int:
        """Return the bytes that were read since the last call."""
        before, self._counted = self._counted, self.bytes_read
        return self._counted - before

    def clone(self) -> PagedRows:
        """Return a store of the same pages, with its own memory of the same size."""
        limits = (self._limit, self.is_squared)
        return PagedRows(self._stored, self.costs, self._zones, *limits)

    def stash(self, rows: Int64, visit: Visit) -> None:
        """Store rows (n,) of a visit, ascending, so that `activate` need not read them again."""
        rows = rows[~self._is_stored(rows)]
        if len(rows):
            self._store_rows(rows, take_rows(visit.rows.X, rows - visit.rows.first))

    def activate(self, rows: Int64) -> None:
        """Store rows in the buffer, or in temporary files if they do not fit."""
        missing = rows[~self._is_stored(rows)]
        pages, begins = np.unique(self._page_of(missing), return_index=True)
        parts = np.split(missing, begins[1:]) if len(missing) else []
        for visit, part in zip(self.visits(pages, _plan_all(pages)), parts, strict=True):
            self._store_rows(part, take_rows(visit.rows.X, part - visit.rows.first))

    def keep(self, rows: Int64) -> None:
        """Remove all stored rows except `rows`; return to the buffer if they fit."""
        if self._spill is None:
            self._compact(rows)
            return
        self._spill.keep(rows)
        self._clear()
        if self._fits(rows):
            spill, self._spill = self._spill, None
            for part, X in spill.read(rows):
                self._add_to_buffer(part, X)
            self._spilled_bytes += spill.bytes_read

    def active_parts(self, rows: Int64) -> Iterator[tuple[Int64, HingeRows]]:
        """Yield parts of `rows`; if not all active rows are in the buffer, read them first."""
        lo, largest = 0, self.slice_rows
        while lo < len(rows):
            part = rows[lo : lo + largest]
            if self._spill is not None:
                self._clear()
                part = part[: self._count_fitting(part)]
                for some, X in self._spill.read(part):
                    self._add_to_buffer(some, X)
            lo += len(part)
            yield part, self._rows

    def visits(self, order: Int64, plan: Plan) -> Generator[Visit, None, None]:
        """Yield the rows of pages, and read the next ones meanwhile."""
        batch, following = self._begin(order, plan, 0), None
        try:
            while batch is not None:
                following = self._begin(order, plan, batch.end)
                pages = self._finish(order, batch)
                last = 0
                for position in batch.needed:
                    page = int(order[position])
                    last = int(position) + 1
                    yield Visit(self._hinge_rows(pages[page], int(self._indptr[page])), last)
                if last < batch.end:
                    yield Visit(self._none, batch.end)
                batch, following = following, None
        finally:
            if following is not None:  # its pages stay in the cache
                self._finish(order, following)

    def _begin(self, order: Int64, plan: Plan, begin: int) -> _PageBatch | None:
        """Plan the batch at position `begin`, and start to read it; None at the end."""
        if begin >= len(order):
            return None
        end, needed = plan(begin, self._batch_bytes, self._sizes)
        pages = order[needed].tolist()
        missing = []
        for page in pages:
            if page in self._cache:
                self._cache.move_to_end(page)
            else:
                missing.append(page)
        self._make_room(int(self._sizes[missing].sum()))
        if not missing:
            return _PageBatch(end, needed, missing, None)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "xcray-pages")
        return _PageBatch(end, needed, missing, self._thread.submit(self._reader.read, missing))

    def _finish(self, order: Int64, batch: _PageBatch) -> dict[int, CSR]:
        """Wait for the pages of a batch; return them by number."""
        if batch.reading is not None:
            for page, data in zip(batch.missing, batch.reading.result(), strict=True):
                if page in self._cache:  # an earlier batch has read it meanwhile
                    self._used -= int(self._sizes[page])
                self._cache[page] = decode_page(self._stored, page, data)
        return {page: self._cache[page] for page in order[batch.needed].tolist()}

    def _make_room(self, n_bytes: int) -> None:
        """Remove pages until `n_bytes` more fit, and reserve them."""
        while self._cache and self._used + n_bytes > self._cache_bytes:
            page, _ = self._cache.popitem(last=False)
            self._used -= int(self._sizes[page])
        self._used += n_bytes

    def _hinge_rows(self, X: CSR, first: int) -> HingeRows:
        """Return the rows of a page whose first row is `first`."""
        slots = self._local_slots
        return HingeRows(X, slots, first, self.norms, self.costs, self.is_squared)

    def _fits(self, rows: Int64) -> bool:
        """Return whether rows fit into the rest of the buffer."""
        return self._count_fitting(rows) == len(rows)

    def _count_fitting(self, rows: Int64) -> int:
        """Return how many of the first rows fit into the rest of the buffer."""
        left = self._max_entries - int(self._buffer_indptr[self._n_buffered])
        ends = np.cumsum(self._file.lengths[rows], dtype=np.int64)
        return min(int(np.searchsorted(ends, left, "right")), self._max_rows - self._n_buffered)

    def _page_of(self, rows: Int64) -> Int64:
        """Return the pages of rows."""
        return np.searchsorted(self._indptr, rows, "right") - 1

    def _is_stored(self, rows: Int64) -> np.ndarray:
        """Return whether rows are in the buffer or in the temporary files: (n,) bool."""
        return self._slots[rows] >= 0 if self._spill is None else self._spill.contains(rows)

    def _store_rows(self, rows: Int64, X: CSR) -> None:
        """Store rows that are not stored; move all rows to temporary files if they do not fit."""
        if self._spill is None:
            if self._fits(rows):
                self._add_to_buffer(rows, X)
                return
            self._spill = self._move_to_files()
        self._spill.add(rows, X)

    def _move_to_files(self) -> RowSpill:
        """Move all rows of the buffer to temporary files; return these."""
        folder = self._file.path.parent
        spill = RowSpill(self._zones, self._file.lengths, self.n_cols, folder)
        stored = np.flatnonzero(self._slots >= 0)
        slots = self._slots[stored].astype(np.int64)
        step = max(1, READ_AHEAD_ROWS)
        for lo in range(0, len(stored), step):
            some = slice(lo, lo + step)
            spill.add(stored[some], take_rows(self._rows.X, slots[some]))
        self._clear()
        return spill

    def _add_to_buffer(self, rows: Int64, X: CSR) -> None:
        """Copy rows X (n, D) into the buffer, where they fit."""
        n, begin = self._n_buffered, int(self._buffer_indptr[self._n_buffered])
        end = begin + X.nnz
        if end > len(self._indices):
            self._resize_buffer(end)
        self._indices[begin:end], self._data[begin:end] = X.indices, X.data
        self._buffer_indptr[n + 1 : n + 1 + len(rows)] = begin + X.indptr[1:]
        self._slots[rows] = np.arange(n, n + len(rows))
        self._n_buffered += len(rows)

    def _compact(self, rows: Int64) -> None:
        """Remove all rows except `rows` from the buffer, in place."""
        kept = rows[np.argsort(self._slots[rows])]
        places = self._slots[kept].astype(np.int64)
        compact_rows(self._buffer_indptr, self._indices, self._data, places)
        self._slots.fill(-1)
        self._slots[kept] = np.arange(len(kept))
        self._n_buffered = len(kept)
        self._resize_buffer(int(self._buffer_indptr[len(kept)]))

    def _clear(self) -> None:
        """Empty the buffer."""
        self._slots.fill(-1)
        self._n_buffered = 0


def _plan_all(order: Int64) -> Plan:
    """Return a plan that reads all pages of `order`."""

    def plan(begin: int, max_size: int, sizes: Int64) -> tuple[int, Int64]:
        ends = np.cumsum(sizes[order[begin:]])
        end = begin + min(1 + int(np.searchsorted(ends, max_size)), len(ends))
        return end, np.arange(begin, end)

    return plan
