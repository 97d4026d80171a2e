"""The active rows of a label, and the inner solvers of the problem of these rows.

All inner solvers have one contract: `sweep` improves a block of active rows, `polish` solves the
problem of all of them, `remove` takes rows out of the problem. The weights are `state.v`, and
`state.alpha` is a point of the dual problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.kernels import random
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.dual_hinge import DualState, OutlierRule
from xcray.solvers.indexed_bcd.row_store import RowStore

GROUPS: Final = 8  # of zones, in a sweep
GAP_SHARE: Final = 0.5  # of the allowed gap, on the active rows
FIRST_SPREAD: Final = 1.0  # of the gradients, before the gap of the active rows is computed


class Duals(NamedTuple):
    """Dual variables above 0 of a label. rows: (n,) ascending positions; values: (n,)."""

    rows: Int64
    values: Float64


class ActiveSet:
    """Active rows, solved by dual coordinate descent (L1 or L2 loss).

    rows: (n,) ascending positions. zones: (N,) zone of each row, see `RowSelection`. The order of a
    sweep does not depend on the memory of the store. seed: of a label. shrinking: whether `polish`
    leaves out rows at a bound. observe: called after blocks and sweeps.
    """

    def __init__(
        self,
        store: RowStore,
        state: DualState,
        zones: np.ndarray,
        seed: tuple[int, int],
        shrinking: bool,
        check: Callable[[], None],
        observe: Callable[[], None],
    ) -> None:
        self._store, self._state, self._zones = store, state, zones
        self._n_zones = int(zones.max(initial=0)) + 1
        self._counter = np.uint64(random.stream(*seed))
        self._shrinking, self._check, self._observe = shrinking, check, observe
        self.rows: Int64 = np.empty(0, np.int64)
        self.sweeps = 0
        store.keep(self.rows)

    def add(self, rows: Int64) -> None:
        """Add rows that are not active, in any order."""
        rows = np.sort(rows)
        self._state.is_active[rows] = True
        self.rows = np.sort(np.concatenate([self.rows, rows]))
        self._store.activate(rows)

    def start(self, duals: Duals) -> None:
        """Add the rows of the duals of a similar problem, and start from these; v must be 0."""
        self.add(duals.rows)
        bounds = np.inf if self._store.is_squared else self._store.costs[duals.rows]
        self._state.alpha[duals.rows] = np.minimum(duals.values, bounds)
        for part, views in self._store.active_parts(duals.rows):
            self._check()
            kernel.add_rows(views, self._state, part)

    def duals(self) -> Duals:
        """Return a copy of the dual variables above 0."""
        rows = self.rows[self._state.alpha[self.rows] > 0.0]
        return Duals(rows, self._state.alpha[rows])

    def remove(self, rows: Int64) -> None:
        """Remove rows (ascending) from the problem, and their part from the weights."""
        moving = rows[self._state.alpha[rows] != 0.0]
        for part, views in self._store.active_parts(moving):
            kernel.drop_rows(views, self._state, part)
        self._deactivate(rows)

    def _deactivate(self, rows: Int64) -> None:
        """Remove rows from the set and from the store."""
        self._state.is_active[rows] = False
        self.rows = self.rows[self._state.is_active[self.rows]]
        self._store.keep(self.rows)

    def remove_idle(self) -> None:
        """Remove the rows with alpha = 0; those that violate the margin later return."""
        self.remove(self.rows[self._state.alpha[self.rows] == 0.0])

    def refresh(self, reference: OutlierRule, path: float) -> None:
        """Store the scores and the status of the active rows whose loss is not certain."""
        for part, views in self._store.active_parts(self.rows):
            self._check()
            kernel.refresh_rows(views, self._state, reference, path, part)

    @property
    def support(self) -> int:
        """Number of rows with a dual variable above 0."""
        return int((self._state.alpha[self.rows] > 0.0).sum())

    def dual(self) -> float:
        """Return the dual objective."""
        return self._dual_sum() - 0.5 * float(self._state.v @ self._state.v)

    def solve_block(self, chosen: Int64, sweeps: int) -> None:
        """Sweep over some active rows; the result is observed once, at the end."""
        for _ in range(sweeps):
            self.sweep(chosen)
        self._observe()

    def sweep(
        self, chosen: Int64, high: float = np.inf, low: float = -np.inf
    ) -> tuple[int, float, float]:
        """Sweep over rows in random order; reorder `chosen`; see `dual_hinge.sweep`.

        With several zones, a sweep visits random groups of them one after the other, so that rows
        on disk are read in large parts. A fixed partition would need many more sweeps.
        """
        self._counter = np.uint64(kernel.shuffle_rows(chosen, self._counter))
        if self._n_zones > 1:
            group = np.arange(self._n_zones)
            self._counter = np.uint64(kernel.shuffle_rows(group, self._counter))
            group = (group * GROUPS // self._n_zones).astype(np.uint8)
            chosen[:] = chosen[np.argsort(group[self._zones[chosen]], kind="stable")]
        remaining, shrunk = list[Int64](), list[Int64]()
        largest, smallest = -np.inf, np.inf
        for part, views in self._store.active_parts(chosen):
            self._check()
            kept, up, down = kernel.sweep(views, self._state, part, high, low)
            remaining, shrunk = [*remaining, part[:kept]], [*shrunk, part[kept:]]
            largest, smallest = max(largest, up), min(smallest, down)
        if len(remaining) > 1:
            chosen[:] = np.concatenate([*remaining, *shrunk])
        self.sweeps += 1
        return sum(map(len, remaining)), largest, smallest

    def polish(self, gap: float, last: int) -> None:
        """Sweep with shrinking until the gap of the active rows is a share of `gap`.

        Ends at the latest when the number of sweeps is `last`.
        """
        order, spread = self.rows.copy(), FIRST_SPREAD
        kept, high, low = len(order), np.inf, -np.inf
        while self.sweeps < last:
            kept, largest, smallest = self.sweep(order[:kept], high, low)
            self._observe()
            if largest - smallest > spread:
                if self._shrinking:
                    high = largest if largest > 0.0 else np.inf
                    low = smallest if smallest < 0.0 else -np.inf
            elif kept < len(order):  # check the rows that were left out, too
                kept, high, low = len(order), np.inf, -np.inf
            elif self._active_primal() - self.dual() <= GAP_SHARE * gap:
                return
            else:
                spread *= 0.25

    def _dual_sum(self) -> float:
        """Return the part of the dual objective that is a sum over rows."""
        store = self._store
        return float(kernel.dual_sum(self._state, store.costs, store.is_squared, self.rows))

    def _active_primal(self) -> float:
        """Return the primal objective of the problem of the active rows."""
        loss = 0.0
        for part, views in self._store.active_parts(self.rows):
            self._check()
            loss = kernel.hinge_sum(views, self._state, part, loss)
        return 0.5 * float(self._state.v @ self._state.v) + loss
