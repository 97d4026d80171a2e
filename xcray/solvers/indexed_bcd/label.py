"""Training of one class: a series of convex problems, each without the outliers of the one before.

A convex problem has two phases. First queries add violating rows to the active set; each query is
followed by a sweep over the new rows and a cyclic window of the active set, which is about as long
as the query was. Then sweeps over the active set, with shrinking, alternate with passes over all
rows whose loss is not certain. A pass gives the duality gap over all non-outliers, the truncated
objective, and the outliers of the next problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64
from xcray.kernels import random
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.dual_hinge import (
    INLIER,
    OUTLIER,
    UNKNOWN,
    DualState,
    OutlierRule,
    Query,
)
from xcray.solvers.indexed_bcd.row_store import Plan, RowStore
from xcray.solvers.indexed_bcd.selection import RowSelection

FIRST_SWEEPS: Final = 3
READS_PER_ROW: Final = 20  # a query reads at most this number of rows for each row that it adds
MIN_PRECISION: Final = 0.01  # of the last query: violating rows per row that was read
MAX_VIOLATING: Final = 1 << 16  # rows that one call of the query kernel returns
MAX_PLAN: Final = 256  # pages that are planned together
ACTIVE_GAP_SHARE: Final = 0.5  # of the allowed gap, on the active rows
NO_WAITS: Final = np.empty(0, np.int32)
FIRST_SPREAD: Final = 1.0  # of the gradients, before the gap of the active rows is computed


class LabelSettings(NamedTuple):
    """Parameters of a class; gap: the allowed duality gap, in units of the objective."""

    s: float
    gap: float
    first_rows: int
    max_rounds: int
    max_sweeps: int
    query_rows: int
    seed: int


class SweepProgress(NamedTuple):
    """State after a sweep.

    reads: rows of the pages read so far; support: rows with alpha > 0; bytes_read: from disk by the
    store, so far.
    """

    v: Float64
    reads: int
    support: int
    bytes_read: int


@dataclass
class ConvexResult:
    """Result of a convex problem.

    v: (D + 1,) weights and bias; primal and dual: of the convex problem; objective: with the
    truncated loss; outliers: (N,) bool, at v; support: rows with alpha > 0.
    """

    v: Float64
    primal: float
    dual: float
    objective: float
    outliers: np.ndarray
    support: int


class LabelTraining:
    """Trains one class. A new object for each class; `state` is clean scratch memory.

    positives: (n,) ascending positions of the rows of the class on the pages of `selection`.
    check: called at least every 100 ms; can raise Stopped. observe: called after sweeps. It is
    never called between a new set of outliers and the sweep that follows, because the weights are
    far from any solution there.
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
    ) -> None:
        self._store, self._state, self._selection = store, state, selection
        self._settings, self._check, self._observe = settings, check, observe
        self._rng = np.random.default_rng([settings.seed, label])
        self._counter = np.uint64(random.stream(settings.seed, label))
        self._path, self._v_before = 0.0, np.zeros_like(state.v)
        self._active: Int64 = np.empty(0, np.int64)
        self._window = 0  # position of the cyclic window
        self._reference = OutlierRule(state.v.copy(), settings.s)
        self._waits = np.zeros(selection.pages.n_pages, np.int32)
        self._order = np.arange(selection.pages.n_pages)
        largest_page = int(np.diff(selection.pages.indptr).max(initial=0))
        self._violating = np.empty(MAX_VIOLATING + largest_page, np.int64)
        self._positives = positives
        self.sweeps, self.queries, self.reads, self.rounds = 0, 0, 0, 0
        self.objectives: list[float] = []
        store.keep(self._active)
        self._reset()

    def train(self) -> tuple[ConvexResult, bool]:
        """Return the best result, and whether no other outliers would improve it."""
        self._solve_first()
        best = self._solve_convex()
        self.rounds, self.objectives = 1, [best.objective]
        while self._outliers_changed(best):
            if self.rounds == self._settings.max_rounds:
                return best, False
            self._exclude(best)
            following = self._solve_convex()
            self.rounds, gain = self.rounds + 1, best.objective - following.objective
            if gain > 0.0:
                best = following
                self.objectives.append(best.objective)
            if gain <= self._settings.gap:
                break
        return best, True

    @property
    def n_active(self) -> int:
        """Number of active rows."""
        return len(self._active)

    def _outliers_changed(self, result: ConvexResult) -> bool:
        """Return whether the outliers of a result are not those of its problem."""
        return bool((result.outliers != (self._state.status == OUTLIER)).any())

    def _reset(self) -> None:
        """Write the initial state of the class."""
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
        self._activate(first.rows)
        self.reads += first.reads
        for _ in range(FIRST_SWEEPS):
            self._sweep(self._active)
        self._drop_idle()
        self._state.status.fill(INLIER)
        self._grow()
        for _ in range(FIRST_SWEEPS):
            self._sweep(self._active)
        self._state.status.fill(UNKNOWN)
        self._waits.fill(0)
        self._reference = OutlierRule(self._state.v.copy(), self._settings.s)
        self._find_outliers(self._active)

    def _find_outliers(self, chosen: Int64) -> None:
        """Find the outliers among active rows, and deactivate them."""
        self._path_moved()
        self._refresh(chosen)
        self._deactivate(chosen[self._state.status[chosen] == OUTLIER])

    def _refresh(self, chosen: Int64) -> None:
        """Read the active rows of `chosen` whose loss is not certain."""
        for part, rows in self._store.active_parts(chosen):
            self._check()
            kernel.refresh_rows(rows, self._state, self._reference, self._path, part)

    def _exclude(self, result: ConvexResult) -> None:
        """Begin the next convex problem: with the outliers of `result`, without idle rows."""
        self._reference = OutlierRule(result.v, self._settings.s)
        self._state.status[:] = np.where(result.outliers, OUTLIER, INLIER)
        active = self._active
        idle = result.outliers[active] | (self._state.alpha[active] == 0.0)
        self._deactivate(active[idle])
        self._waits.fill(0)

    def _solve_convex(self) -> ConvexResult:
        """Solve the problem of the present non-outliers to the allowed gap."""
        last = self.sweeps + self._settings.max_sweeps
        self._sweep(self._active)
        self._grow()
        while True:
            self._polish(last)
            result = self._evaluate()
            gap = result.primal - result.dual
            if gap <= self._settings.gap or self.sweeps >= last:
                return result
            self._activate(kernel.violating_rows(self._state))
            for _ in range(FIRST_SWEEPS):
                self._sweep(self._active)
            self._drop_idle()

    def _grow(self) -> None:
        """Add rows by queries, until a query finds few."""
        n, precise = self._settings.query_rows, True
        while precise and len(self._active) < len(self._state.y):
            new, reads = self._query()
            precise = len(new) > MIN_PRECISION * reads
            self._activate(new)
            size = min(len(self._active) - len(new), max(reads - len(new), n))
            window = (self._window + np.arange(size)) % max(len(self._active) - len(new), 1)
            self._window = int(window[-1]) + 1 if size else 0
            self._sweep(np.concatenate([new, self._active[window]]))
            self._drop_idle()

    def _query(self) -> tuple[Int64, int]:
        """Return violating rows that are not active, and how many rows were read."""
        self._path_moved()
        n, selection, limits = self._settings.query_rows, self._selection, self._query_limits()
        order, begin = selection.order(self._state.v, self._rng), 0
        skips, slice_rows = (self._waits, selection.skipped_queries), self._store.slice_rows
        chunks, n_violating, reads = [np.empty(0, np.int64)], 0, 0
        visits = self._store.visits(order, self._plan(order, self._waits))
        while (
            n_violating < limits.violating
            and reads < limits.reads
            and (visit := next(visits, None))
        ):
            while begin < visit.end and n_violating < limits.violating and reads < limits.reads:
                self._check()
                left = Query(
                    min(limits.violating - n_violating, MAX_VIOLATING),
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
                n_violating, reads = n_violating + count, reads + read
        visits.close()
        self.queries, self.reads = self.queries + 1, self.reads + reads
        violating = np.concatenate(chunks)
        margins = self._state.y[violating] * self._state.scores[violating]
        return violating[np.argsort(margins, kind="stable")[:n]], reads

    def _query_limits(self) -> Query:
        """Return the limits of a query; an exhaustive one has none but the number of rows."""
        n, all_rows = self._settings.query_rows, len(self._state.y)
        return (
            Query(all_rows + 1, all_rows + 1)
            if self._selection.is_exhaustive
            else Query(n, READS_PER_ROW * n)
        )

    def _plan(self, order: Int64, waits: Int32) -> Plan:
        """Return the plan of a query, or of a refresh if `waits` is empty."""
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

    def _polish(self, last: int) -> None:
        """Sweep over the active rows with shrinking, until their gap is a share of the allowed."""
        order, spread = self._active.copy(), FIRST_SPREAD
        kept, high, low = len(order), np.inf, -np.inf
        while self.sweeps < last:
            kept, largest, smallest = self._sweep(order[:kept], high, low)
            if largest - smallest > spread:
                high = largest if largest > 0.0 else np.inf
                low = smallest if smallest < 0.0 else -np.inf
            elif kept < len(order):  # check the rows that were left out, too
                kept, high, low = len(order), np.inf, -np.inf
            elif self._active_gap() <= ACTIVE_GAP_SHARE * self._settings.gap:
                return
            else:
                spread *= 0.25

    def _active_gap(self) -> float:
        """Return the duality gap of the problem of the active rows."""
        v, loss = self._state.v, 0.0
        for part, rows in self._store.active_parts(self._active):
            self._check()
            loss = kernel.hinge_sum(rows, self._state, part, loss)
        return float(v @ v) + loss - float(self._state.alpha[self._active].sum())

    def _evaluate(self) -> ConvexResult:
        """Read all rows whose loss is not certain; return the result at the present weights."""
        self._path_moved()
        self._refresh(self._active)
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
        outliers = np.empty(len(state.y), bool)
        losses = kernel.sum_losses(state, self._store.costs, self._settings.s, outliers)
        half = 0.5 * float(state.v @ state.v)
        return ConvexResult(
            state.v.copy(),
            half + losses[0],
            float(state.alpha[self._active].sum()) - half,
            half + losses[1],
            outliers,
            int((state.alpha[self._active] > 0.0).sum()),
        )

    def _sweep(
        self, chosen: Int64, high: float = np.inf, low: float = -np.inf
    ) -> tuple[int, float, float]:
        """Sweep over rows in random order, in slices; reorder `chosen`; see `dual_hinge.sweep`."""
        self._counter = np.uint64(kernel.shuffle_rows(chosen, self._counter))
        remaining, shrunk = list[Int64](), list[Int64]()
        largest, smallest = -np.inf, np.inf
        for part, rows in self._store.active_parts(chosen):
            self._check()
            kept, up, down = kernel.sweep(rows, self._state, part, high, low)
            remaining, shrunk = [*remaining, part[:kept]], [*shrunk, part[kept:]]
            largest, smallest = max(largest, up), min(smallest, down)
        if len(remaining) > 1:
            chosen[:] = np.concatenate([*remaining, *shrunk])
        self.sweeps += 1
        support = int((self._state.alpha[self._active] > 0.0).sum())
        self._observe(SweepProgress(self._state.v, self.reads, support, self._store.bytes_read))
        return sum(map(len, remaining)), largest, smallest

    def _drop_idle(self) -> None:
        """Remove the rows with alpha = 0; those that violate the margin later return."""
        self._deactivate(self._active[self._state.alpha[self._active] == 0.0])

    def _activate(self, chosen: Int64) -> None:
        """Add rows to the active set."""
        self._state.is_active[chosen] = True
        self._active = np.concatenate([self._active, chosen])
        self._store.activate(chosen)

    def _deactivate(self, chosen: Int64) -> None:
        """Remove rows from the active set and from the weights."""
        for part, rows in self._store.active_parts(chosen):
            kernel.drop_rows(rows, self._state, part)
        self._state.is_active[chosen] = False
        self._active = self._active[self._state.is_active[self._active]]
        self._store.keep(self._active)

    def _path_moved(self) -> None:
        """Add the way from the weights of the last call to the length of the path."""
        self._path += float(np.linalg.norm(self._state.v - self._v_before))
        self._v_before = self._state.v.copy()
