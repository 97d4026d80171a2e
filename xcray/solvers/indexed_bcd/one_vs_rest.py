"""One-vs-rest linear SVMs with the bias as a weight: what their solvers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, frozen
from xcray.certificate import largest_gap
from xcray.data.metric_forest.forest import extended_norms
from xcray.errors import Stopped
from xcray.kernels.training.dual_hinge import DualState
from xcray.kernels.training.hinge import (
    HINGE,
    SQUARED_HINGE,
    Objective,
    null_objective,
)
from xcray.solvers.contract import IndependentSolver, check_labels, check_weights
from xcray.solvers.declarations import Link
from xcray.solvers.indexed_bcd.row_store import RowsInMemory, RowStore
from xcray.solvers.indexed_bcd.selection import ExactScan, RowSelection
from xcray.solvers.parameters import Parameters
from xcray.solvers.solved_labels import SolvedLabels


@dataclass
class HingeState:
    """State of a worker: shared read-only rows and selection, and scratch memory of one label.

    positions: (N,) of the rows on the pages; None for their order in the data. leaf_rows: maximum
    rows of a leaf of the forest that was built in memory; 0 without one. The scratch needs 27 bytes
    per row and 8 per feature.
    """

    store: RowStore
    YT: Pattern
    selection: RowSelection
    scratch: DualState
    positions: Int32 | None = None
    leaf_rows: int = 0

    def clone_for_thread(self) -> HingeState:
        """Return the same rows and selection with separate scratch memory."""
        store = self.store.clone()
        scratch = new_scratch(len(store.costs), store.n_cols)
        return replace(self, store=store, scratch=scratch)

    def positives(self, label: int) -> Int64:
        """Return the positions of the rows of a label on the pages: (n,), ascending."""
        return np.sort(self.positions_of(self.YT.row(label)))

    def positions_of(self, rows: Int32) -> Int64:
        """Return the positions of rows of the data on the pages: (n,)."""
        return frozen(rows if self.positions is None else self.positions[rows], np.int64)


class HingeOneVsRest(Parameters, IndependentSolver):
    """Base of the solvers: a weight vector v = (w, b) per label, rows with a feature of value 1."""

    link: ClassVar[Link] = "identity"
    # seconds per entry of X and per row, on two sets; refined at run time
    cost_rates: ClassVar[tuple[float, ...]] = (3e-8, 3e-8)

    C: float

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the squared hinge."""
        return False

    def solve_label(
        self, local: HingeState, label: int, record: np.ndarray, check: Callable[[], None]
    ) -> Float64:
        """Return the weights and the bias of a label (D + 1,); write its record (1,).

        check: called at least every 100 ms; raises Stopped.
        """
        raise NotImplementedError

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> HingeState:
        """Return the state of a worker, see `IndependentSolver`; XT is not used."""
        selection = ExactScan(X)
        costs = self.row_costs(weights, X.n_rows)
        store = RowsInMemory(X, selection.pages.rows, extended_norms(X), costs, self.is_squared)
        return HingeState(store, YT, selection, new_scratch(X.n_rows, X.n_cols))

    def largest_gap(self, records: np.ndarray) -> float | None:
        """Return the largest gap of a label, relative to its null objective."""
        return largest_gap(records)

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the entries and the rows of X for each label: (K, 2); see `load`."""
        return frozen(np.tile([float(X.nnz), float(X.n_rows)], (YT.n_rows, 1)), np.float64)

    def solve(
        self, local: HingeState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve `labels` one after the other, see `IndependentSolver`."""
        labels = frozen(labels, np.int32)

        def solve_one(i: int, record: np.ndarray, check: Callable[[], None]) -> Float64:
            return self.solve_label(local, int(labels[i]), record, check)

        return self.solve_each(local, labels, stopped, solve_one)

    def solve_each(
        self,
        local: HingeState,
        labels: Int32,
        stopped: Callable[[], bool],
        solve_one: Callable[[int, np.ndarray, Callable[[], None]], Float64],
    ) -> SolvedLabels:
        """Solve `labels`, see `solve`.

        solve_one: called with the number of each label that has rows, its record (1,) and `check`
        of `solve_label`; returns its weights and bias.
        """
        check_labels(labels, local.YT.n_rows)

        def check() -> None:
            if stopped():
                raise Stopped("stopped between two slices of a label; finished batches are kept")

        records, bias = np.zeros(len(labels), self.records.dtype), np.full(len(labels), -1.0)
        records["label"] = labels
        rows, columns, weights = (
            [np.empty(0, dtype)] for dtype in (np.int64, np.int32, np.float32)
        )
        for i in np.flatnonzero(np.diff(local.YT.indptr)[labels]):
            v = solve_one(int(i), records[i : i + 1], check)
            columns.append(np.flatnonzero(v[:-1].astype(np.float32)))
            rows.append(np.full(len(columns[-1]), i))
            weights.append(v[columns[-1]])
            bias[i] = v[-1]
        indptr = np.searchsorted(np.concatenate(rows), np.arange(len(labels) + 1))
        W = csr(indptr, np.concatenate(columns), np.concatenate(weights), local.store.n_cols)
        return SolvedLabels(labels, W, frozen(bias, np.float64), records)

    def null_objective(self, local: HingeState, label: int) -> float:
        """Return the objective without truncation of w = 0 with the best bias."""
        costs = local.store.costs
        positive = float(costs[local.positives(label)].sum())
        loss = SQUARED_HINGE if self.is_squared else HINGE
        objective = Objective(loss, 0.0, 1.0, 1.0, 1.0)
        return float(null_objective(objective, positive, float(costs.sum()) - positive))

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels, on a problem of two rows."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        local = self.load(X, X, Pattern(frozen([0, 1], np.int64), frozen([0], np.int32), 2))
        self.solve(local, frozen([0], np.int32))

    def row_costs(self, weights: Float32 | None, n_rows: int) -> Float64:
        """Return C times the weight of each row: (N,). Raises ParameterError, see `load`."""
        ones = frozen(np.ones(n_rows), np.float32)
        weights = ones if weights is None else check_weights(weights, n_rows)
        return frozen(float(self.C) * weights.astype(np.float64), np.float64)


def new_scratch(n: int, n_features: int) -> DualState:
    """Return scratch memory of one label; a training resets it."""
    return DualState(
        np.empty(n, np.int8),
        np.empty(n),
        np.empty(n_features + 1),
        np.zeros(n),
        np.empty(n),
        np.empty(n, np.uint8),
        np.empty(n, bool),
    )
