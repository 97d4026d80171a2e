"""Exact search with a certificate, filters and deadlines, over a model's packed lists and its weights by label."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from xcray.arrays import CSR, Float32, Int32, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.packed import build, check, order_of
from xcray.index.search_result import Answer
from xcray.index.validate_rows import check_place, check_rows
from xcray.kernels.search.bounded_scan import Engine, Found, Work, rank_of, score_one
from xcray.kernels.search.choose_scan import search
from xcray.kernels.search.dense import LANES, search_dense, spread
from xcray.kernels.search.lists import NARROW, Lists

ROWS_A_CALL = 64  # a kernel call takes milliseconds, so that a batch can be interrupted and threads share it evenly
LOUD = 16  # labels that may be scored always, because their biases are unusually large
LOUDER = 0.002  # by how much the largest bias of the others must fall for each of them
NANOSECONDS = 1.5  # a posting, at worst: what is left of a deadline is so many postings
DENSE_SHARE = 3  # weights are kept as plain rows too when at least one in so many is there: a cell takes a tenth of a posting's time
DENSE_CELLS = 1 << 25  # of plain rows in memory, 4 bytes each
FEW_LABELS, FEW_CELLS = (
    256,
    1 << 21,
)  # plain rows of so few labels are added in less time than a list is opened, whatever they hold
CELLS = 8  # of plain rows that are added in the time of a posting, at worst
NO_LABELS = frozen(np.empty(0), np.uint8)


class SearchIndex:
    """The k best labels of each row, proven: the labels and scores of the full product, ties by lower label number.

    A score is summed in float64 over ascending features, then + bias: bit for bit what `InvertedIndex` gives. Safe for any
    number of threads at once; each uses working memory of its own, about 25 bytes a label, kept for the next.

    Where at least a third of all weights are there, or labels are few, plain rows of weights are added instead of reading lists,
    which is up to ten times as fast and exact by itself. These rows are made in memory: 128 MiB at most, 8 where labels are few.
    Larger models are searched by their lists.
    """

    def __init__(
        self, lists: Lists, W: CSR, b: Float32, order: Int32, *, dense: bool | None = None
    ) -> None:
        """lists: of `packed.build` or `packed.read`; W: (K, D) by label, sound; b: (K,); order: (K,) of `packed.order_of`. dense:
        whether to search plain rows, however many weights and cells there are; None: where that is better."""
        if (
            len(b) != W.n_rows
            or lists.n_labels != W.n_rows
            or len(lists.starts) != W.n_cols + 1
            or len(order) != len(b)
        ):
            raise ShapeMismatch(
                f"W is {W.shape}; the lists, b ({len(b)}) and order ({len(order)}) must be made of it"
            )
        lengths = np.diff(W.indptr)
        full = lengths > 0
        loud, quiet = _loud(b, order[full[order]])
        self._engine = Engine(
            lists,
            W,
            frozen(b, np.float32),
            frozen(np.where(full, b, np.float32(-np.inf)), np.float32),
            frozen(order, np.int32),
            frozen(order[~full[order]], np.int32),
            300.0 + 1.2 * float(np.dot(lengths, lengths)) / max(int(lengths.sum()), 1),
            frozen(loud, np.int32),
            quiet,
            float(np.abs(b).max(initial=0.0)),
        )
        self._free: deque[Work] = deque()
        self._wants_plain = _is_dense(W) if dense is None else dense

    @classmethod
    def build(cls, W: CSR, b: Float32, *, dense: bool | None = None) -> SearchIndex:
        """The index of weights by label, in memory. dense: as for the class."""
        return cls(build(W), W, frozen(b, np.float32), order_of(b), dense=dense)

    @cached_property
    def dense(self) -> Float32 | None:
        """Plain rows of weights, where they are the better way; made when first asked for: opening a model takes no memory."""
        return _plain_rows(self.W) if self._wants_plain else None

    @property
    def lists(self) -> Lists:
        """The packed lists of weights by feature."""
        return self._engine.lists

    @property
    def W(self) -> CSR:
        """The weights by label, (K, D)."""
        return self._engine.W

    @property
    def b(self) -> Float32:
        """The biases, (K,)."""
        return self._engine.bias

    @property
    def n_labels(self) -> int:
        """K, the number of labels."""
        return self._engine.W.n_rows

    @property
    def n_features(self) -> int:
        """D, the number of features."""
        return int(self._engine.W.n_cols)

    @property
    def n_bytes(self) -> int:
        """Bytes of the lists and of the order, the weights by label aside."""
        engine = self._engine
        return int(engine.lists.blocks.nbytes + engine.lists.starts.nbytes + engine.order.nbytes)

    def query(
        self,
        X: CSR,
        k: int = 5,
        *,
        threads: int = 1,
        deadline_ms: float | None = None,
        among: LabelFilter | None = None,
    ) -> Answer:
        """The k best labels of each row among those allowed; k is clipped to their number.

        X: (n, D). threads: cores to use; answers do not depend on it. deadline_ms: time for the whole call; rows that are not
        done by then have the best labels found so far, and `exact` False. Raises ShapeMismatch when X has other features,
        ParameterError for k or threads below 1 or a deadline below 0, InputError for values that are not finite.
        """
        end = None if deadline_ms is None else time.perf_counter() + deadline_ms / 1e3
        check_rows(X, self.n_features)
        if k < 1 or threads < 1:
            raise ParameterError(f"k is {k} and threads {threads}: both must be at least 1")
        if deadline_ms is not None and not deadline_ms >= 0:
            raise ParameterError(f"deadline_ms is {deadline_ms}: it must be at least 0")
        if among is not None and len(among.allowed) != self.n_labels:
            raise ShapeMismatch(
                f"the filter is made for {len(among.allowed)} labels, the model has {self.n_labels}"
            )
        n, k = X.n_rows, min(k, self.n_labels if among is None else len(among.labels))
        out = Found(
            np.empty((n, k), np.int32),
            np.empty((n, k), np.float64),
            np.empty(n, np.uint8),
            np.empty(n, np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.float64),
        )
        if k > 0:
            self._fill(X, out, threads, end, among)
        else:
            out.exact[:], out.labels_scored[:], out.postings_read[:], out.rival[:] = 1, 0, 0, 0.0
        return _answer(out)

    def check(self, name: str) -> None:
        """Raise Corrupt, naming the file, unless the lists are sound; one pass over them. The weights are not looked at."""
        check(self._engine.lists, self._engine.order, name)

    def score(self, X: CSR, label: int, row: int = 0) -> float:
        """The score of one label for one row: the same bits as `query` gives. Raises NotFound, ShapeMismatch."""
        check_rows(X, self.n_features)
        check_place(X, row, label, self.n_labels)
        return float(score_one(X, row, label, self._engine))

    def rank(self, X: CSR, label: int, row: int = 0) -> int:
        """The place of a label among all for one row, from 1. Raises NotFound, ShapeMismatch."""
        check_rows(X, self.n_features)
        check_place(X, row, label, self.n_labels)
        work = self._work()
        place = 1 + int(rank_of(X, row, label, self._engine, work))
        self._free.append(work)
        return place

    def _fill(
        self, X: CSR, out: Found, threads: int, end: float | None, among: LabelFilter | None
    ) -> None:
        """Answer all rows, in ranges that idle threads take one after the other."""
        step = 1 if end is not None else max(1, min(ROWS_A_CALL, -(-X.n_rows // threads)))
        starts = range(0, X.n_rows, step)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                self._rows(X, out, start, step, end, among)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="xcray-search") as pool:
            for _ in pool.map(lambda start: self._rows(X, out, start, step, end, among), starts):
                continue  # map's results are None; asking for them raises what a thread raised

    def _rows(
        self,
        X: CSR,
        out: Found,
        start: int,
        step: int,
        end: float | None,
        among: LabelFilter | None,
    ) -> None:
        """Answer rows [start, start + step) with working memory of our own."""
        budget = -1 if end is None else max(0, int((end - time.perf_counter()) * 1e9 / NANOSECONDS))
        allowed, n_allowed = (
            (NO_LABELS, self.n_labels) if among is None else (among.allowed, len(among.labels))
        )
        stop = min(start + step, X.n_rows)
        if self.dense is not None and (
            end is None or int(X.indptr[stop] - X.indptr[start]) * self.n_labels <= CELLS * budget
        ):
            search_dense(X, start, stop, self.dense, self.b, allowed, out)
            return
        work = self._work()
        search(X, start, stop, self._engine, allowed, n_allowed, budget, work, out)
        self._free.append(work)  # clean again; after an exception it is not, and is dropped

    def _work(self) -> Work:
        """Working memory that nobody uses now."""
        try:
            return self._free.pop()
        except IndexError:
            n = self.n_labels
            narrow = self._engine.lists.width == NARROW
            return Work(
                np.zeros(n, np.float32),
                np.zeros(n if narrow else 0, np.float64),
                np.zeros(0 if narrow else n, np.int16),
                np.zeros(n, np.uint8),
                np.zeros(n + 1, np.int32),
                np.zeros(n, np.int32),
                np.zeros(n, np.float64),
            )


def _is_dense(W: CSR) -> bool:
    """Whether plain rows are better than lists, and not too large."""
    cells = W.n_rows * int(W.n_cols)
    few = W.n_rows <= FEW_LABELS and cells <= FEW_CELLS
    return 0 < cells <= DENSE_CELLS and (few or W.nnz * DENSE_SHARE >= cells)


def _plain_rows(W: CSR) -> Float32:
    """The weights by feature with all zeros, (D, K and some more): float32."""
    rows = np.zeros((int(W.n_cols), -(-W.n_rows // LANES) * LANES), np.float32)
    spread(W, rows)
    return frozen(rows, np.float32)


def _loud(b: Float32, order: Int32) -> tuple[Any, Any]:
    """The few labels whose biases are so large that scoring them always is better than a bound that holds for them; and the bound.

    order: labels with weights by falling bias.
    """
    if not len(order):
        return order[:0], np.float32(0.0)
    top = b[order[: LOUD + 1]].astype(np.float64)
    gain = top[0] - top - LOUDER * np.arange(len(top))
    n = int(np.argmax(gain))
    return order[:n], np.float32(top[n])


def _answer(out: Found) -> Answer:
    """The arrays of a search, read-only; where there is no other label, the gap is 0."""
    answer = Answer(
        out.labels,
        out.scores,
        out.exact.view(np.bool_),
        out.labels_scored,
        out.postings_read,
        out.rival,
    )
    for array in answer:
        array.flags.writeable = False
    return answer
