"""Training of one label: a series of convex problems, each without the outliers of the one before.

First, queries add violating rows to the active set; after each query its rows and a cyclic window
of the active set are solved as one block. Then solutions of the active problem alternate with
passes over all rows whose loss is not certain. A pass gives the duality gap over all non-outliers,
the truncated objective, the rows that violate the margin, and the outliers of the next problem.
A warm start takes the place of the first rows: the outliers are those of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, distinct
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.dual_hinge import (
    INLIER,
    OUTLIER,
    UNKNOWN,
    DualState,
    OutlierRule,
    Query,
)
from xcray.solvers.indexed_bcd.active_set import ActiveSet, Duals
from xcray.solvers.indexed_bcd.primal_active_set import PrimalActiveSet
from xcray.solvers.indexed_bcd.row_store import Plan, RowStore
from xcray.solvers.indexed_bcd.selection import RowSelection

BLOCK_SWEEPS: Final = 3  # over the rows of a query and the window
FIRST_QUERIES: Final = 8  # without truncation, because the first outliers are those of their result
READS_PER_ROW: Final = 20  # a query reads at most this number of rows for each row that it adds
MIN_PRECISION: Final = 0.01  # of the last query: violating rows per row that was read
# of the share of support vectors among random rows: precision of the last of the first queries, and
# that of the first query for which an order of pages is kept; see
# docs/decisions/19-indexed-bcd-choices.md
FIRST_PRECISION: Final = 0.5
MIN_LIFT: Final = 1.5
MAX_VIOLATING: Final = 1 << 16  # rows that one call of the query kernel returns
MAX_PLAN: Final = 256  # pages that are planned together
NO_WAITS: Final = np.empty(0, np.int32)


class LabelSettings(NamedTuple):
    """Parameters of a label.

    s: rows with y_i v.x_i < -s are outliers. gap: the allowed duality gap, in units of the
    objective. is_primal: whether active rows are solved in the primal.
    """

    s: float
    gap: float
    first_rows: int
    max_rounds: int
    max_sweeps: int
    query_rows: int
    seed: int
    shrinking: bool
    is_primal: bool


class QueryResult(NamedTuple):
    """Result of a query.

    rows: positions of rows to add to the active ones; found: rows that violate the margin among
    those that were read; reads: rows of the pages that were read.
    """

    rows: Int64
    found: int
    reads: int


class SweepProgress(NamedTuple):
    """State after a block or a sweep over the active rows.

    reads: rows of the pages read so far; support: rows with alpha > 0; bytes_read: from disk by the
    store, so far.
    """

    v: Float64
    reads: int
    support: int
    bytes_read: int


@dataclass
class PassResult:
    """Result of a pass over all rows.

    v: (D + 1,) weights and bias; primal and dual: of the convex problem, without the constant loss
    of its outliers; constant: this loss; objective: with the truncated loss; outliers: (N,) bool,
    at v; duals: of the convex problem.
    """

    v: Float64
    primal: float
    dual: float
    constant: float
    objective: float
    outliers: np.ndarray
    duals: Duals

    @property
    def support(self) -> int:
        """Number of rows with a dual variable above 0."""
        return len(self.duals.rows)

    @property
    def gap(self) -> float:
        """Duality gap of the convex problem."""
        return self.primal - self.dual

    @property
    def gain(self) -> float:
        """Decrease of the convex objective if the outliers at v replace those of the problem."""
        return self.primal + self.constant - self.objective


class LabelTraining:
    """Trains one label. A new object for each label; `state` is clean scratch memory.

    positives: (n,) ascending positions of the rows of the label on the pages of `selection`.
    start: dual variables of a similar problem, for a warm start; None for a cold one. check: called
    at least every 100 ms; can raise Stopped. observe: called after blocks and sweeps.
    It is never called between a new set of outliers, or new active rows, and the end of the block
    that follows, because the weights are far from any solution there.
    """

    def __init__(
        self,
        store: RowStore,
        state: DualState,
        selection: RowSelection,
        positives: Int64,
        label: int,
        settings: LabelSettings,
        check: Callable[[], None] = lambda: None,
        observe: Callable[[SweepProgress], None] = lambda progress: None,
        start: Duals | None = None,
    ) -> None:
        self._store, self._state, self._selection = store, state, selection
        self._settings, self._check, self._observe = settings, check, observe
        self._rng = np.random.default_rng([settings.seed, label])
        self._active = (PrimalActiveSet if settings.is_primal else ActiveSet)(
            store,
            state,
            selection.zones,
            (settings.seed, label),
            settings.shrinking,
            check,
            self._report,
        )
        self._path, self._v_before = 0.0, np.zeros_like(state.v)
        self._window = 0  # position of the cyclic window
        self._reference = OutlierRule(np.zeros_like(state.v), settings.s)
        self._waits = np.zeros(selection.pages.n_pages, np.int32)
        self._order = np.arange(selection.pages.n_pages)
        largest_page = int(np.diff(selection.pages.indptr).max(initial=0))
        self._violating = np.empty(MAX_VIOLATING + largest_page, np.int64)
        self._positives, self._start = positives, start
        self._random_precision = 0.0
        self.queries, self.reads, self.rounds = 0, 0, 0
        self.objectives: list[float] = []
        self._reset()

    @property
    def n_active(self) -> int:
        """Number of active rows."""
        return len(self._active.rows)

    @property
    def sweeps(self) -> int:
        """Number of sweeps so far."""
        return self._active.sweeps

    def train(self) -> tuple[PassResult, bool]:
        """Return the best certified result, and whether no other outliers would improve it.

        If a problem is not solved to the allowed gap, returns the last result.
        """
        if self._start is None:
            self._solve_first()
        else:
            self._solve_from(self._start)
        self._grow(None, MIN_PRECISION)
        best, last, self.rounds = None, self._last_sweep(), 1
        while True:
            self._active.polish(self._settings.gap, last)
            result = self._pass_over_all()
            solved = result.gap <= self._settings.gap
            if solved:
                gain = np.inf if best is None else best.objective - result.objective
                if best is None or gain > 0.0:
                    best = result
                    self.objectives.append(result.objective)
                if gain <= self._settings.gap or not self._outliers_changed(result):
                    return best, True
            elif self.sweeps >= last:
                return best or result, False
            # the present problem can gain at most its gap
            if solved or result.gain > result.gap:
                if self.rounds == self._settings.max_rounds:
                    return best or result, False
                self._exclude(result)
                self.rounds, last = self.rounds + 1, self._last_sweep()
            self._active.add(self._violating_inliers())
            # rows that are idle after a few sweeps with new rows often matter again: keep them
            self._active.solve_block(self._active.rows.copy(), BLOCK_SWEEPS)

    def _last_sweep(self) -> int:
        """Return the number of sweeps at which a problem that starts now is given up."""
        return self.sweeps + self._settings.max_sweeps

    def _outliers_changed(self, result: PassResult) -> bool:
        """Return whether the outliers of a result are not those of its problem."""
        return bool((result.outliers != (self._state.status == OUTLIER)).any())

    def _report(self) -> None:
        """Report the present state."""
        progress = (self.reads, self._active.support, self._store.bytes_read)
        self._observe(SweepProgress(self._state.v, *progress))

    def _reset(self) -> None:
        """Write the initial state of the label."""
        state = self._state
        state.y.fill(-1)
        state.y[self._positives] = 1
        state.alpha.fill(0.0)
        state.v.fill(0.0)
        state.scored_at.fill(-1.0)
        state.status.fill(UNKNOWN)
        state.is_active.fill(False)

    def _solve_first(self) -> None:
        """Solve the problem without truncation roughly; its weights define the first outliers."""
        first = self._selection.first_rows(self._positives, self._settings.first_rows, self._rng)
        self._active.add(first.rows)
        self.reads += first.reads
        self._solve_active()
        self._state.status.fill(INLIER)
        self._random_precision = self._active.support / len(first.rows)
        # later queries, which leave out the outliers, find the rest
        least = max(MIN_PRECISION, FIRST_PRECISION * self._random_precision)
        self._grow(FIRST_QUERIES, least)
        self._state.status.fill(UNKNOWN)
        self._waits.fill(0)
        self._solve_without_outliers()

    def _solve_from(self, duals: Duals) -> None:
        """Begin with the dual variables of a similar problem; its weights define the outliers."""
        self._active.start(duals)
        indptr = self._selection.pages.indptr
        pages = distinct(np.searchsorted(indptr, duals.rows, "right") - 1)
        self.reads += int((indptr[pages + 1] - indptr[pages]).sum())
        self._solve_without_outliers()

    def _solve_without_outliers(self) -> None:
        """Remove the active rows that are outliers of the present weights, and solve the rest."""
        self._reference = OutlierRule(self._state.v.copy(), self._settings.s)
        self._path_moved()
        self._active.refresh(self._reference, self._path)
        rows = self._active.rows
        self._active.remove(rows[self._state.status[rows] == OUTLIER])
        self._solve_active()

    def _solve_active(self) -> None:
        """Solve a block of all active rows, and remove idle ones."""
        self._active.solve_block(self._active.rows.copy(), BLOCK_SWEEPS)
        self._active.remove_idle()

    def _exclude(self, result: PassResult) -> None:
        """Begin the next convex problem, with the outliers of `result`."""
        self._reference = OutlierRule(result.v, self._settings.s)
        self._state.status[:] = np.where(result.outliers, OUTLIER, INLIER)
        rows = self._active.rows
        self._active.remove(rows[result.outliers[rows]])

    def _grow(self, max_queries: int | None, min_precision: float) -> None:
        """Add rows by queries, at most `max_queries` times.

        Ends with the first query that finds at most `min_precision` violating rows per row read.
        """
        last = np.inf if max_queries is None else self.queries + max_queries
        precise = True
        while precise and self.queries < last and self.n_active < len(self._state.y):
            growth = int(self._selection.growth * self.n_active)
            n = max(self._settings.query_rows, growth)
            new, found, reads = self.query(n)
            precise = found > min_precision * reads
            if self.queries == 1 and self._selection.fallback is not None:
                self._choose_selection(self._selection.fallback, found / max(reads, 1))
            window = self._next_window(max(reads - len(new), n))
            self._active.add(new)
            self._active.solve_block(np.concatenate([new, window]), BLOCK_SWEEPS)
            self._active.remove_idle()

    def _choose_selection(self, fallback: RowSelection, precision: float) -> None:
        """Continue with the fallback if the first query found little more than random reads."""
        if precision < MIN_LIFT * self._random_precision:
            self._selection = fallback

    def _next_window(self, size: int) -> Int64:
        """Return the next `size` active rows of the cyclic window, or all."""
        rows = self._active.rows
        if size >= len(rows):
            return rows
        window = (self._window + np.arange(size)) % len(rows)
        self._window = int(window[-1]) + 1
        return rows[window]

    def query(self, n: int) -> QueryResult:
        """Return rows that violate the margin, are not active and are not outliers.

        n: number of rows, with those of the page that reaches it; an exhaustive strategy reads all
        rows and returns at most n of them, others end with n rows or READS_PER_ROW times n reads.
        """
        self._path_moved()
        selection, limits = self._selection, self._query_limits(n)
        order, begin = selection.order(self._state.v, self._rng), 0
        skips, slice_rows = (self._waits, selection.skipped_queries), self._store.slice_rows
        chunks, found, reads = [np.empty(0, np.int64)], 0, 0
        visits = self._store.visits(order, self._plan(order, self._waits))
        while found < limits.violating and reads < limits.reads and (visit := next(visits, None)):
            while begin < visit.end and found < limits.violating and reads < limits.reads:
                self._check()
                left = Query(
                    min(limits.violating - found, MAX_VIOLATING),
                    min(limits.reads - reads, slice_rows),
                )
                begin, count, read = kernel.query_pages(
                    visit.rows,
                    self._state,
                    self._reference,
                    self._path,
                    selection.pages,
                    order,
                    skips,
                    (begin, visit.end),
                    left,
                    self._violating,
                )
                chunks.append(self._violating[:count].copy())
                if not selection.is_exhaustive:
                    self._store.stash(chunks[-1], visit)
                found, reads = found + count, reads + read
        visits.close()
        self.queries, self.reads = self.queries + 1, self.reads + reads
        violating = np.concatenate(chunks)
        if selection.is_exhaustive and found > n:
            # random ones: those that violate the margin most are often outliers
            violating = self._rng.choice(violating, n, replace=False)
        return QueryResult(violating, found, reads)

    def _query_limits(self, n: int) -> Query:
        """Return the limits of a query; an exhaustive one has none but the number of rows."""
        all_rows = len(self._state.y)
        if self._selection.is_exhaustive:
            return Query(all_rows + 1, all_rows + 1)
        return Query(n, READS_PER_ROW * n)

    def _plan(self, order: Int64, waits: Int32) -> Plan:
        """Return the plan of a query, or of a pass over all rows if `waits` is empty."""
        needed = np.empty(MAX_PLAN, np.int64)

        def plan(begin: int, max_size: int, sizes: Int64) -> tuple[int, Int64]:
            end, count = kernel.plan_pages(
                self._store.norms,
                self._state,
                self._reference.s,
                self._path,
                self._selection.pages,
                order,
                waits,
                begin,
                sizes,
                max_size,
                needed,
            )
            return end, needed[:count].copy()

        return plan

    def _pass_over_all(self) -> PassResult:
        """Read all rows whose loss is not certain; return the result at the present weights."""
        self._path_moved()
        self._active.refresh(self._reference, self._path)
        state, page = self._state, 0
        for visit in self._store.visits(self._order, self._plan(self._order, NO_WAITS)):
            while page < visit.end:
                self._check()
                page, reads = kernel.refresh_pages(
                    visit.rows,
                    state,
                    self._reference,
                    self._path,
                    self._selection.pages,
                    (page, visit.end),
                    self._store.slice_rows,
                )
                self.reads += reads
            # rows that can be active in the next problem, whatever its outliers are
            first = visit.rows.first
            last = first + visit.rows.X.n_rows
            rows = kernel.violating_rows(state, self._settings.s, first, last)
            self._store.stash(rows, visit)
        outliers = np.empty(len(state.y), bool)
        convex, constant, truncated = kernel.sum_losses(
            state, self._store.costs, self._store.is_squared, self._settings.s, outliers
        )
        half = 0.5 * float(state.v @ state.v)
        return PassResult(
            state.v.copy(),
            half + convex,
            self._active.dual(),
            constant,
            half + truncated,
            outliers,
            self._active.duals(),
        )

    def _violating_inliers(self) -> Int64:
        """Return the inactive inliers whose stored score violates the margin."""
        return kernel.violating_rows(self._state, -np.inf, 0, len(self._state.y))

    def _path_moved(self) -> None:
        """Add the way from the weights of the last call to the length of the path."""
        self._path += float(np.linalg.norm(self._state.v - self._v_before))
        self._v_before = self._state.v.copy()
