"""Indexed block coordinate descent: a linear SVM that reads only the rows it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern, frozen
from xcray.certificate import is_certified
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import (
    MAX_LEAF_ROWS,
    MIN_LEAF_ROWS,
    StoredForest,
    has_forest,
    open_forest,
)
from xcray.data.metric_forest.forest import (
    LEAF_ROWS,
    IndexedRows,
    build_forest,
    extended_norms,
)
from xcray.errors import ParameterError
from xcray.kernels.training.metric_forest import PIVOTS
from xcray.solvers.contract import SolverState
from xcray.solvers.declarations import (
    CompileCase,
    RecordField,
    RecordSchema,
    StoppingRule,
    TaskNeeds,
)
from xcray.solvers.indexed_bcd.active_set import Duals
from xcray.solvers.indexed_bcd.label import LabelSettings, LabelTraining, PassResult
from xcray.solvers.indexed_bcd.one_vs_rest import HingeOneVsRest, HingeState, new_scratch
from xcray.solvers.indexed_bcd.paged_rows import PagedRows
from xcray.solvers.indexed_bcd.row_store import RowsInMemory
from xcray.solvers.indexed_bcd.selection import (
    ForestLeaves,
    make_leaf_selection,
    make_selection,
)
from xcray.solvers.indexed_bcd.warm_start import DualRows
from xcray.solvers.parameters import parameter
from xcray.solvers.solved_labels import SolvedLabels
from xcray.system.units import format_bytes

INNER_SOLVERS = ("l1-dual", "l2-dual", "l2-primal")
SELECTIONS = ("exact", "pages", "forest")
AUTO = "auto"
# in addition to the scratch memory: norms, losses, row numbers, outliers
BYTES_PER_ROW = 64

RECORDS = RecordSchema(
    RecordField("sweeps", np.int32, "sweeps of coordinate descent", "sweeps"),
    RecordField("queries", np.int32, "queries for violating rows", "queries"),
    RecordField("rows_read", np.int64, "rows of the pages that were read", "rows_read"),
    RecordField("bytes_read", np.int64, "bytes of pages that were read", "bytes_read"),
    RecordField("n_active", np.int32, "active rows at the end", "active"),
    RecordField("support", np.int32, "rows with a non-zero dual variable", "support"),
    RecordField("outliers", np.int32, "rows whose loss is truncated", "outliers"),
    RecordField("changing", np.int8, "1 if other outliers could lower the objective"),
    RecordField("objective", np.float64, "objective with the truncated loss", "objective"),
    RecordField("primal", np.float64, "primal objective of the last convex problem"),
    RecordField("dual", np.float64, "dual objective of the last convex problem"),
    RecordField("gap", np.float64, "duality gap over all rows that are not outliers", "gap"),
    RecordField("null", np.float64, "hinge objective of w = 0 with the best bias", "null"),
)


@dataclass(frozen=True)
class IndexedBCDSolver(HingeOneVsRest):
    """One-vs-rest linear SVM with truncated hinge loss, trained on the rows near the boundary.

    For every label k, independent of all others, with y_i = +1 if row i has label k and -1
    otherwise:

        min over (w, b)   1/2 (|w|^2 + b^2) + C sum_i min(max(0, 1 - y_i (w.x_i + b)), 1 + s)

    Rows with a loss above 1 + s are outliers: they count 1 + s and do not affect the weights. With
    `inner` l2-dual or l2-primal the loss before truncation is squared. The problem is not convex.
    It is solved as a series of convex problems, in each of which the outliers of the one before are
    left out. The objective decreases from one to the next; the series ends when the outliers no
    longer change, or when the objective decreases by less than `eps` times the null objective. With
    a very large s (1e30) there are no outliers, and the problem is LIBLINEAR's l1-loss or l2-loss
    SVM.

    Each convex problem is solved on its active rows, in the dual or primal. Queries add rows that
    violate the margin; `selection` decides in which order a query visits the rows: all of them
    (exact), pages of rows at random, or the leaves of a metric forest that are nearest to the
    hyperplane. A row is read only if the change of the weights since it was last read can have
    changed its loss. The convex problem ends when its duality gap over all rows that are not
    outliers is at most `eps` times the null objective. A label without rows gets no weights and the
    bias -1. The loss of a row can have a weight (`load`). State at a worker: the store of X (in
    memory, mapped, or pages on disk), the norms of its rows, the selection, and scratch memory (see
    `HingeState`).

        Example:
            >>> IndexedBCDSolver(s=2.0).selection
            'auto'

    Source: Yen, Chang, Lin, Lin, Lin, "Indexed block coordinate descent for large-scale linear
    classification with limited memory", KDD 2013: Algorithm 1, eq. 1-13, section 4. Differs from
    the paper: convex problems end on a certificate over all rows, not on the precision of queries,
    or as soon as other outliers decrease the objective by more than the duality gap.
    Bounds of the scores exclude rows that need not be read. The first weights solve the problem
    without truncation roughly, from random rows and eight queries; with a forest the random
    rows are of random trees. In the primal, a block is all active rows.
    """

    revision: ClassVar[int] = 6
    warm_starts: ClassVar[bool] = True
    # longer weights have more outliers, which remain outliers
    dual_exponent: ClassVar[float] = 0.0
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase(),
        CompileCase({"selection": "forest"}, "dense"),
        CompileCase({"inner": "l2-primal"}, "dense"),
        CompileCase({"leaf_rows": 16, "first_rows": 10, "query_rows": 10}, "dense", leaf_rows=16),
    )

    C: float = parameter(1.0, "weight of a row's loss", above=0.0)
    s: float = parameter(
        1.0,
        "rows beyond the boundary by more than s are outliers; 1e30: no outliers",
        above=0.0,
        high=1e30,
    )
    eps: float = parameter(
        0.001,
        "a convex problem ends when its duality gap is at most eps times the null objective",
        above=0.0,
        high=1.0,
    )
    selection: str = parameter(
        AUTO,
        "order in which queries visit the rows; auto: pages; with a memory limit and a forest on "
        "disk, forest if the first query of a label finds 1.5 times the support of random rows",
        choices=(*SELECTIONS, AUTO),
    )
    leaf_rows: int = parameter(
        LEAF_ROWS, "maximum rows of a leaf of the forest", low=MIN_LEAF_ROWS, high=MAX_LEAF_ROWS
    )
    query_rows: int = parameter(1000, "least rows that a query adds to the active ones", low=1)
    first_rows: int = parameter(10_000, "random rows of the first rough solution", low=1)
    max_rounds: int = parameter(20, "maximum number of convex problems per label", low=1)
    max_sweeps: int = parameter(300, "maximum number of sweeps per convex problem", low=1)
    inner: str = parameter(
        "l1-dual",
        "loss and solver of the active rows: l1 is the hinge, l2 its square; dual coordinate "
        "descent, or trust-region Newton steps in the primal",
        choices=INNER_SOLVERS,
    )
    shrinking: str = parameter(
        "on", "whether sweeps leave out rows at a bound (dual)", choices=("on", "off")
    )
    seed: int = parameter(
        0,
        "seed of the random order of rows; every label has its own stream",
        low=0,
    )

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the squared hinge."""
        return self.inner != "l1-dual"

    @property
    def stopping(self) -> StoppingRule:
        """Return when a label ends."""
        reached = f"outliers are final, and the gap is at most {self.eps:g} of the null objective"
        names = ("eps", "max_rounds")
        return StoppingRule("certificate", self.eps, self.max_rounds, reached, names)

    def certified(self, records: np.ndarray) -> np.ndarray:
        """Return (n,) bool: a gap of at most `eps` of the null objective, and final outliers."""
        is_final = (records["changing"] == 0) | (records["positives"] == 0)
        certified: np.ndarray = is_certified(records, self.eps) & is_final
        return certified

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> HingeState:
        """Return the state of a worker; builds the forest if it is selected. XT is not used."""
        indexed = build_forest(X, self.leaf_rows) if self.selection == "forest" else None
        return self._state_in_memory(X, YT, self.row_costs(weights, X.n_rows), indexed)

    def reload(
        self,
        before: SolverState,
        X: CSR,
        XT: CSR,
        YT: Pattern,
        weights: Float32 | None = None,
    ) -> HingeState:
        """Return the state of a worker, see `load`, with the forest of `before` if it fits."""
        assert isinstance(before, HingeState)
        selection = before.selection
        is_same = self.selection == "forest" and before.leaf_rows == self.leaf_rows
        if not (is_same and isinstance(selection, ForestLeaves)):
            return self.load(X, XT, YT, weights)
        costs = self.row_costs(weights, X.n_rows)
        return self._state_in_memory(X, YT, costs, selection.indexed)

    def load_dataset(self, dataset: Dataset, memory_limit: int | None = None) -> HingeState:
        """Return the state of a worker that sees the directory of a data set.

        The forest of `xcray data index` is used if there is one; it has the bits of one that is
        built in memory. If the rows exceed `memory_limit` (bytes), they are read from it page by
        page, and cache and active rows stay within the limit. With a limit and a forest, all
        strategies use its leaves, whether or not the rows fit. Raises ParameterError if the limit
        is too small, or if there is no forest then; Corrupt if the forest is damaged.
        """
        train = dataset.train
        n_bytes = 8 * (train.X.nnz + train.n_rows)
        is_paged = memory_limit is not None and n_bytes > memory_limit
        if is_paged and not has_forest(dataset):
            raise ParameterError(
                f"the rows of {dataset.path.name} have {format_bytes(n_bytes)}, the memory limit "
                f"leaves {format_bytes(memory_limit or 0)}: run `xcray data index {dataset.path}` "
                "first, or raise the limit"
            )
        costs = self.row_costs(train.weights, train.n_rows)
        if is_paged and memory_limit is not None:
            stored = open_forest(dataset, self.leaf_rows)
            return self._paged_state(stored, train.YT, costs, memory_limit)
        # With a limit, bits must not depend on whether the rows fit: it is shared among workers.
        if has_forest(dataset) and (self.selection == "forest" or memory_limit is not None):
            indexed = open_forest(dataset, self.leaf_rows).indexed
            return self._state_in_memory(train.X, train.YT, costs, indexed)
        return self.load(train.X, train.XT, train.YT, train.weights)

    def _paged_state(
        self, stored: StoredForest, YT: Pattern, costs: Float64, memory_limit: int
    ) -> HingeState:
        """Return the state of a worker whose rows are on disk. costs: (N,) by row."""
        indexed = stored.indexed
        selection = make_leaf_selection(self.selection, indexed)
        costs = frozen(costs[indexed.pages.rows], np.float64)
        store = PagedRows(stored, costs, selection.zones, memory_limit, self.is_squared)
        scratch = new_scratch(len(costs), store.n_cols)
        return HingeState(store, YT, selection, scratch, indexed.positions)

    def _state_in_memory(
        self, X: CSR, YT: Pattern, costs: Float64, indexed: IndexedRows | None
    ) -> HingeState:
        """Return the state of a worker whose rows are in memory. costs: (N,) by row."""
        scratch = new_scratch(X.n_rows, X.n_cols)
        if indexed is None:
            selection = make_selection(self.selection, X)
            store = RowsInMemory(X, selection.pages.rows, extended_norms(X), costs, self.is_squared)
            return HingeState(store, YT, selection, scratch)
        selection = make_leaf_selection(self.selection, indexed)
        rows = indexed.pages.rows
        costs = frozen(costs[rows], np.float64)
        store = RowsInMemory(X, rows, indexed.norms, costs, self.is_squared)
        return HingeState(store, YT, selection, scratch, indexed.positions, self.leaf_rows)

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the arrays of a label, and of the pivots while a forest is built."""
        pivots = 8 * PIVOTS * (X.n_cols + 1) if self.selection == "forest" else 0
        return TaskNeeds(BYTES_PER_ROW * X.n_rows + 24 * X.n_cols + pivots)

    def label_settings(self, local: HingeState, label: int) -> LabelSettings:
        """Return the parameters of the training of a label."""
        return LabelSettings(
            s=float(np.sqrt(1.0 + self.s)) - 1.0 if self.is_squared else float(self.s),
            gap=float(self.eps) * self.null_objective(local, label),
            first_rows=self.first_rows,
            max_rounds=self.max_rounds,
            max_sweeps=self.max_sweeps,
            query_rows=self.query_rows,
            seed=self.seed,
            shrinking=self.shrinking == "on",
            is_primal=self.inner == "l2-primal",
        )

    def solve(
        self,
        local: HingeState,
        labels: Int32,
        stopped: Callable[[], bool] = lambda: False,
        start: CSR | None = None,
        keep_duals: bool = False,
    ) -> SolvedLabels:
        """Solve `labels` one after the other, see `WarmStartSolver`.

        start: can be of another C or s. The first outliers are those of its weights, so the result
        can be another stationary point. Duals are those of the last convex problem.
        """
        labels = frozen(labels, np.int32)
        duals = DualRows(local, labels, start)

        def solve_one(i: int, record: np.ndarray, check: Callable[[], None]) -> Float64:
            result = self._train(local, int(labels[i]), record, check, duals.start_of(i))
            if keep_duals:
                duals.store(i, result.duals)
            return result.v

        solved = self.solve_each(local, labels, stopped, solve_one)
        return solved._replace(duals=duals.merge()) if keep_duals else solved

    def solve_label(
        self, local: HingeState, label: int, record: np.ndarray, check: Callable[[], None]
    ) -> Float64:
        """Return the weights and the bias of a label (D + 1,); write its record (1,)."""
        return self._train(local, label, record, check, None).v

    def _train(
        self,
        local: HingeState,
        label: int,
        record: np.ndarray,
        check: Callable[[], None],
        start: Duals | None,
    ) -> PassResult:
        """Train a label; write its record (1,)."""
        positives, settings = local.positives(label), self.label_settings(local, label)
        training = LabelTraining(
            local.store,
            local.scratch,
            local.selection,
            positives,
            label,
            settings,
            check,
            start=start,
        )
        result, stationary = training.train()
        values = {
            "label": label,
            "positives": len(positives),
            "rounds": training.rounds,
            "sweeps": training.sweeps,
            "queries": training.queries,
            "rows_read": training.reads,
            "bytes_read": local.store.take_bytes_read(),
            "n_active": training.n_active,
            "support": result.support,
            "outliers": int(result.outliers.sum()),
            "changing": not stationary,
            "objective": result.objective,
            "primal": result.primal,
            "dual": result.dual,
            "gap": result.gap,
            "null": self.null_objective(local, label),
        }
        for name, value in values.items():
            record[name] = value
        return result
