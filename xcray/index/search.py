"""Exact search with certificate, filters and deadlines, over packed lists and weights by label."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Int32, csr, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.label_groups import LabelGroups
from xcray.index.packed import bias_order, build_lists, check_lists
from xcray.index.search_engine import (
    dense_rows,
    is_dense,
    make_engine,
    make_grouped_engine,
)
from xcray.index.search_result import SearchResult
from xcray.index.validate_rows import check_position, check_query, check_rows
from xcray.index.weight_scan import (
    MAX_SCAN_WEIGHTS,
    RowBiases,
    Scan,
    choose_scan,
    row_scores,
)
from xcray.kernels.cache import is_compiled
from xcray.kernels.entry_points import INT32, INT64, DirectKernel
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.search.bounded_scan import (
    SearchOutput,
    SearchScratch,
    rank_of,
    score_one,
)
from xcray.kernels.search.choose_scan import (
    SHORT_LABELS,
    search_narrow_rows,
    search_short_rows,
    search_wide_rows,
)
from xcray.kernels.search.dense import DenseWeights, search_dense
from xcray.kernels.search.label_groups import search_grouped_rows
from xcray.kernels.search.lists import NARROW_BYTES, PackedLists
from xcray.kernels.sparse import take_rows

# keeps a kernel call to milliseconds, so that a batch can be interrupted and threads share it
# evenly
ROWS_PER_CALL = 64
POSTING_NANOSECONDS = 1.5  # worst case, to convert a deadline into a number of postings
CELLS_PER_POSTING = 8  # cells of dense rows that are added in the worst-case time of a posting
COMPILE_SECONDS = 5.0  # searches in NumPy that take longer are left to kernels
BOOL, FLOAT64 = np.dtype(np.bool_), np.dtype(np.float64)
EMPTY_MASK = frozen(np.empty(0), np.uint8)


class SearchIndex:
    """The k best labels of each row, with a certificate of exactness.

    Labels and scores are those of the full product, ties by lower label number. A score is summed
    in float64 over ascending features, then + bias: bit-identical to a loop over all labels.
    Thread-safe; each thread uses its own working memory of about 27 bytes per label, which is
    reused.

    If at least a third of all weights are nonzero, or labels are few, dense rows of weights are
    added instead of reading lists, which is up to ten times as fast and exact by itself. These rows
    are built in memory: at most 128 MiB, or 8 MiB if labels are few. Larger models are searched by
    their lists.

    With label groups, the bias of a label depends on the row, see `xcray.index.label_groups`: it is
    summed first, then added to the sum over the label's weights.
    """

    _numpy_seconds: ClassVar[float] = 0.0  # of all searches of this process, estimated

    def __init__(
        self,
        lists: PackedLists,
        W: CSR,
        b: Float32,
        order: Int32,
        *,
        dense: bool | None = None,
        row_norm: str = "none",
        groups: LabelGroups | None = None,
    ) -> None:
        """Create an index.

        lists: from `packed.build_lists` or `packed.read_lists`. W: (K, D) by label, valid. b: (K,).
        order: (K,) from `packed.bias_order`. dense: whether to search dense rows regardless of the
        number of weights and cells; None: where that is faster. row_norm: normalisation of the rows
        of every request, one of ROW_NORMS. groups: of the labels, or None.
        """
        if (
            len(b) != W.n_rows
            or lists.n_labels != W.n_rows
            or len(lists.starts) != W.n_cols + 1
            or len(order) != len(b)
        ):
            raise ShapeMismatch(
                f"W is {W.shape}; the lists, b ({len(b)}) and order ({len(order)}) must match it"
            )
        if groups is not None and (len(groups.members), groups.postings.n_rows) != W.shape:
            raise ShapeMismatch(
                f"W is {W.shape}; the groups are of {len(groups.members)} labels and have weights "
                f"on {groups.postings.n_rows} features"
            )
        self._engine = make_engine(lists, W, b, order)
        self._free_work: deque[tuple[Any, ...]] = deque()  # of `_take_work`
        self._is_compiled = self._is_compiling = False
        narrow = lists.width == NARROW_BYTES
        self._list_kernel = DirectKernel(search_narrow_rows if narrow else search_wide_rows)
        is_small = narrow and groups is None and lists.dropped_below == 0 and len(b) <= SHORT_LABELS
        self._short_kernel = DirectKernel(search_short_rows) if is_small else None
        self._dense_kernel = DirectKernel(search_dense)
        n_groups, weights = 0, W.nnz
        if groups is not None:
            n_groups, weights = groups.n_groups, W.nnz + groups.postings.nnz
        self._prefer_dense = is_dense(*W.shape, weights, n_groups) if dense is None else dense
        self.row_norm, self.groups = row_norm, groups
        # attributes, because each query reads them
        self.W, self.b = self._engine.W, self._engine.bias
        self.n_labels, self.n_features = W.shape
        self._data: tuple[Any, ...] = (self._engine,)
        if groups is not None:
            self._data = (make_grouped_engine(self._engine, groups), groups.arrays)
            self._list_kernel = DirectKernel(search_grouped_rows)

    @classmethod
    def build(
        cls,
        W: CSR,
        b: Float32,
        *,
        dense: bool | None = None,
        row_norm: str = "none",
        groups: LabelGroups | None = None,
    ) -> SearchIndex:
        """Return the index of weights by label, in memory; options as for the class."""
        bias, order = frozen(b, np.float32), bias_order(b)
        return cls(build_lists(W), W, bias, order, dense=dense, row_norm=row_norm, groups=groups)

    def with_groups(self, groups: LabelGroups | None) -> SearchIndex:
        """Return a search of the same weights with other groups."""
        engine = self._engine
        return SearchIndex(
            engine.lists,
            engine.W,
            engine.bias,
            engine.bias_order,
            row_norm=self.row_norm,
            groups=groups,
        )

    @cached_property
    def dense(self) -> DenseWeights | None:
        """Return dense rows of weights if they are faster, else None.

        They are built on first use, so that opening a model takes no memory.
        """
        return dense_rows(self.W, self.b, self.groups) if self._prefer_dense else None

    @property
    def lists(self) -> PackedLists:
        """Return the packed lists of weights by feature."""
        return self._engine.lists

    @property
    def n_bytes(self) -> int:
        """Return the bytes of lists, bias order and groups, without the weights by label."""
        lists = self._engine.lists
        arrays = (lists.blocks, lists.starts, self._engine.bias_order)
        n_bytes = 0 if self.groups is None else self.groups.n_bytes
        return n_bytes + sum(int(array.nbytes) for array in arrays)

    def input_rows(self, X: CSR) -> CSR:
        """Return rows (n, D) as they are multiplied with the weights: checked, and normalised.

        Raises ShapeMismatch or InputError.
        """
        check_rows(X, self.n_features)
        return normalize_rows(X, self.row_norm)

    def query(
        self,
        X: CSR,
        k: int = 5,
        *,
        threads: int = 1,
        deadline_ms: float | None = None,
        label_filter: LabelFilter | None = None,
    ) -> SearchResult:
        """Return the k best allowed labels of each row; k is clipped to their number.

        X: (n, D). threads: number of cores; results do not depend on it. deadline_ms: time limit of
        the whole call; rows that are not finished by then have the best labels found so far, and
        `exact` False. While the kernels are not compiled, and NumPy takes less time than to compile
        them, it gives the same labels and scores. Raises ShapeMismatch if X has a different number
        of features, ParameterError for an invalid k, threads or deadline, InputError for values
        that are not finite.
        """
        end = None if deadline_ms is None else time.perf_counter() + deadline_ms / 1e3
        X = self.input_rows(X)
        check_query(k, deadline_ms, label_filter, self.n_labels)
        if threads < 1:
            raise ParameterError(f"threads is {threads}: it must be at least 1")
        k = min(k, self.n_labels if label_filter is None else len(label_filter.labels))
        out = _new_output(X.n_rows, k)
        scan = None if self.is_compiled or end is not None else self._scan_without_kernels(X)
        if k == 0:
            out.exact[:], out.runner_up[:] = True, 0.0
            out.labels_scored[:] = out.postings_read[:] = 0
        elif scan is not None:
            scan(X, self.W, self.row_biases(X), label_filter, out)
        else:
            self._search_all(X, out, threads, end, label_filter)
        for array in out:
            array.setflags(False)  # type: ignore[call-arg]  # write=False takes twice as long
        return SearchResult(*out)

    def check(self, name: str) -> None:
        """Raise Corrupt, with the file name, unless the lists are valid; one pass over them.

        The weights are not checked.
        """
        check_lists(self._engine.lists, self.W, self._engine.bias_order, name)

    def score(self, X: CSR, label: int, row: int = 0) -> float:
        """Return the score of one label for one row, bit-identical to `query`.

        Raises NotFound or ShapeMismatch.
        """
        X = self.input_rows(X)
        check_position(X, row, label, self.n_labels)
        if self.groups is not None:
            one = take_rows(self.W, frozen([label], np.int64))
            return float(row_scores(X, row, one, lambda i: self.row_biases(X)(i)[label])[0])
        return float(score_one(X, row, label, self._engine))

    def rank(self, X: CSR, label: int, row: int = 0) -> int:
        """Return the rank of a label among all labels for one row, from 1.

        Raises NotFound or ShapeMismatch.
        """
        X = self.input_rows(X)
        check_position(X, row, label, self.n_labels)
        if self.groups is not None:
            scores = row_scores(X, row, self.W, self.row_biases(X))
            better = np.count_nonzero(scores > scores[label])
            return 1 + int(better + np.count_nonzero(scores[:label] == scores[label]))
        work = self._take_work()
        rank = 1 + int(rank_of(X, row, label, self._engine, work[0]))
        self._free_work.append(work)
        return rank

    def row_biases(self, X: CSR) -> RowBiases:
        """Return a function from the number of a row of X (n, D) to all biases for it: (K,)."""
        if self.groups is not None:
            return self.groups.row_biases(X, self.b)
        own = self.b.astype(np.float64)
        return lambda row: own

    @property
    def is_compiled(self) -> bool:
        """Return whether the kernel that searches the rows needs no compilation."""
        if not self._is_compiled:  # remembered, because each request asks
            kernels = [search_dense if self._prefer_dense else self._list_kernel.kernel]
            if self._short_kernel is not None and not self._prefer_dense:
                kernels.append(search_short_rows)
            self._is_compiled = all(map(is_compiled, kernels))
        return self._is_compiled

    @property
    def answers_while_compiling(self) -> bool:
        """Return whether kernels are not compiled, and NumPy needs less than a second for a row."""
        return not self.is_compiled and self.W.nnz <= MAX_SCAN_WEIGHTS

    def compile(self) -> None:
        """Load or compile the kernel; queries of other threads use NumPy meanwhile if they can."""
        self._is_compiling = True
        try:
            row, out = csr([0, 0], [], [], self.n_features), _new_output(1, min(1, self.n_labels))
            for end in (None, time.perf_counter() + 3600):  # with a deadline, no row is short
                self._search_all(row, out, 1, end, None)
        finally:
            self._is_compiling = False

    def _scan_without_kernels(self, X: CSR) -> Scan | None:
        """Return the search of rows X in NumPy if it takes less time than to compile the kernels.

        All searches of the process count, except those that need not wait for a compilation.
        """
        if not self.answers_while_compiling:
            return None
        scan, seconds = choose_scan(X, self.W)
        if self._is_compiling:
            return scan if seconds <= COMPILE_SECONDS else None
        SearchIndex._numpy_seconds += seconds
        return scan if SearchIndex._numpy_seconds <= COMPILE_SECONDS else None

    def _search_all(
        self, X: CSR, out: SearchOutput, threads: int, end: float | None, among: LabelFilter | None
    ) -> None:
        """Search all rows, a few at a time."""
        n_rows = len(X.indptr) - 1
        step = 1 if end is not None else min(ROWS_PER_CALL, -(-n_rows // threads))
        if n_rows <= step:
            self._search_rows(X, out, 0, n_rows, end, among)
            return

        def search_range(start: int, stop: int) -> None:
            self._search_rows(X, out, start, stop, end, among)

        run_ranges(n_rows, step, threads, search_range)

    def _search_rows(
        self,
        X: CSR,
        out: SearchOutput,
        start: int,
        stop: int,
        end: float | None,
        among: LabelFilter | None,
    ) -> None:
        """Search rows [start, stop) with exclusive working memory."""
        budget = -1
        if end is not None:
            budget = max(0, int((end - time.perf_counter()) * 1e9 / POSTING_NANOSECONDS))
        # masks of filters can have other types
        allowed, n_allowed, kernel = EMPTY_MASK, self.n_labels, self._list_kernel
        if among is not None:
            allowed, n_allowed, kernel = among.allowed, len(among.labels), kernel.kernel
        if self.dense is not None and (
            end is None
            or int(X.indptr[stop] - X.indptr[start]) * self.n_labels <= CELLS_PER_POSTING * budget
        ):
            dense = self._dense_kernel if among is None else search_dense
            dense(X, start, stop, self.dense, allowed, out)
            return
        work = self._take_work()
        if self._short_kernel is not None and among is None and end is None:
            lists = (self.lists.blocks, self.lists.starts, self.b)
            start = self._short_kernel(X, start, stop, *lists, work[0].totals, out)
        if start < stop:
            kernel(X, start, stop, *self._data, allowed, n_allowed, budget, *work, out)
        self._free_work.append(work)  # clean again; after an exception it is not, and is discarded

    def _take_work(self) -> tuple[Any, ...]:
        """Return working memory that is not in use: SearchScratch, and GroupScratch for groups."""
        try:
            return self._free_work.pop()
        except IndexError:
            n = self.n_labels
            narrow = self._engine.lists.width == NARROW_BYTES
            work = SearchScratch(
                np.zeros(n, np.float32),
                np.zeros(n if narrow else 0, np.float64),
                np.zeros(n, np.int16),
                np.zeros(n, np.uint8),
                np.zeros(n + 1, np.int32),
                np.zeros(n, np.int32),
                np.zeros(n, np.float64),
            )
            return (work,) if self.groups is None else (work, self.groups.scratch())


def run_ranges(n_rows: int, step: int, threads: int, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for ranges of `step` rows, which idle threads take in turn."""
    starts = range(0, n_rows, step)
    if threads == 1 or len(starts) <= 1:
        for start in starts:
            work(start, min(start + step, n_rows))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="xcray-search") as pool:
        for _ in pool.map(lambda start: work(start, min(start + step, n_rows)), starts):
            continue  # the results are None; iterating raises errors of the threads


def _new_output(n: int, k: int) -> SearchOutput:
    """Return arrays for the results of n rows, any content."""
    empty = np.empty
    return SearchOutput(
        empty((n, k), INT32),
        empty((n, k), FLOAT64),
        empty(n, BOOL),
        empty(n, INT64),
        empty(n, INT64),
        empty(n, FLOAT64),
    )
