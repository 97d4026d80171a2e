"""Precision and recall of boundary rows, for every selection strategy of the solver.

python -m benchmarks.indexed_bcd.queries --data DIR [--sets covtype-like,kddcup99_10pct,mnist]
    [--seeds 3] [--rows 581012]

A boundary row violates the margin, is not active and is not an outlier: a row that an exact scan
would add under the same weights (eq. 10 of the paper). Two tables:

- queries of a training with the strategy: precision, boundary rows among the rows of the pages that
  were read; recall, those found of all boundary rows; share of boundary rows among all inactive
  rows, the precision of random reads. Medians over all queries of all seeds. lift: precision of the
  first query relative to the share of support vectors among the first random rows, by which
  selection=auto decides on the order of leaves.
- the strategies under the same weights, those before the queries of a training with random pages:
  boundary rows in the first 5 % and 20 % of the rows in the order of the strategy, relative to all.
  "densest leaves" orders the leaves of the forest by their number of boundary rows: no order of
  these leaves finds more.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

from benchmarks.indexed_bcd.__main__ import Task, measure_sets
from xcray.arrays import Float64, csr
from xcray.kernels.training.dual_hinge import OUTLIER, UNKNOWN
from xcray.solvers.indexed_bcd.label import LabelTraining, QueryResult
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.selection import RowSelection
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver

SHARES = (0.05, 0.2)  # of the rows
DENSEST = "densest leaves"


class QueryFigures(NamedTuple):
    """Figures of one query: boundary rows, those found, rows read, and inactive rows."""

    boundary: int
    found: int
    reads: int
    inactive: int

    @property
    def precision(self) -> float:
        """Boundary rows per row read."""
        return self.found / max(self.reads, 1)

    @property
    def recall(self) -> float:
        """Share of the boundary rows that was found."""
        return self.found / max(self.boundary, 1)

    @property
    def base(self) -> float:
        """Share of boundary rows among the inactive rows."""
        return self.boundary / max(self.inactive, 1)


class RecordedTraining(LabelTraining):
    """A training that records its queries. X: (N, D) scipy matrix of the rows of the data.

    snapshots: weights and boundary rows (N,) by row of the data, before each query.
    """

    def __init__(self, X: Any, local: HingeState, solver: IndexedBCDSolver) -> None:
        settings = solver.label_settings(local, 0)
        parts = (local.store, local.scratch, local.selection, local.positives(0))
        super().__init__(*parts, 0, settings)
        self._X, self.figures = X, list[QueryFigures]()
        self.snapshots: list[tuple[Float64, np.ndarray]] = []

    def query(self, n: int) -> QueryResult:
        """Return the result of the query, and record it."""
        boundary = self.boundary_rows()
        by_row = np.empty_like(boundary)
        by_row[self._selection.pages.rows] = boundary
        self.snapshots.append((self._state.v.copy(), by_row))
        inactive = int((~self._state.is_active).sum())
        result = super().query(n)
        counts = (int(boundary.sum()), result.found, result.reads, inactive)
        self.figures.append(QueryFigures(*counts))
        return result

    @property
    def lift(self) -> float:
        """Precision of the first query, relative to the share of support vectors before it."""
        return self.figures[0].precision / max(self._random_precision, 1e-9)

    def boundary_rows(self) -> np.ndarray:
        """Return which rows are boundary rows: (N,) bool by position."""
        state, s = self._state, self._reference.s
        is_unknown = state.status == UNKNOWN
        is_outlier = is_unknown & (self._margins(self._reference.v) < -s)
        is_outlier |= state.status == OUTLIER
        boundary: np.ndarray = (self._margins(state.v) < 1.0) & ~is_outlier & ~state.is_active
        return boundary

    def _margins(self, v: Float64) -> Float64:
        """Return y_i v.x_i of all rows: (N,) by position."""
        scores = (self._X @ v[:-1] + v[-1])[self._selection.pages.rows]
        margins: Float64 = self._state.y * scores
        return margins


def record(task: Task, selection: str, seed: int) -> RecordedTraining:
    """Return a finished training with a strategy."""
    solver = IndexedBCDSolver(C=task.C, seed=seed, selection=selection)
    local = solver.load(task.X, csr([0], [], [], task.X.n_rows), task.YT)
    training = RecordedTraining(task.X.to_scipy().astype(np.float64), local, solver)
    training.train()
    return training


def medians(figures: list[QueryFigures]) -> dict[str, float]:
    """Return the medians of the figures of queries, and their number."""
    names = ("precision", "recall", "base")
    values = {name: statistics.median(getattr(each, name) for each in figures) for name in names}
    return {name: round(value, 4) for name, value in values.items()} | {"queries": len(figures)}


def found_within(boundary: np.ndarray, selection: RowSelection, order: Any, share: float) -> float:
    """Return the share of boundary rows in the first pages of an order.

    boundary: (N,) bool by row of the data. share: of all rows, in these pages.
    """
    indptr, rows = selection.pages.indptr, selection.pages.rows
    per_page = np.add.reduceat(boundary[rows].astype(np.int64), indptr[:-1])
    ends = np.cumsum(np.diff(indptr)[order])
    n_pages = int(np.searchsorted(ends, share * len(rows), "right"))
    return float(per_page[order[:n_pages]].sum() / max(per_page.sum(), 1))


def compare_orders(task: Task, training: RecordedTraining) -> dict[str, dict[str, float]]:
    """Return the shares of boundary rows in the first pages, by strategy, as medians."""
    rng, empty = np.random.default_rng(0), csr([0], [], [], task.X.n_rows)
    strategies = {
        name: IndexedBCDSolver(selection=name).load(task.X, empty, task.YT).selection
        for name in SELECTIONS
    }
    shares: dict[str, dict[float, list[float]]] = {}
    for v, boundary in training.snapshots:
        orders = {name: each.order(v, rng) for name, each in strategies.items()}
        leaves = strategies["forest"].pages
        counts = np.add.reduceat(boundary[leaves.rows].astype(np.int64), leaves.indptr[:-1])
        orders[DENSEST] = np.argsort(-counts / np.diff(leaves.indptr), kind="stable")
        for name, order in orders.items():
            selection = strategies.get(name, strategies["forest"])
            for share in SHARES:
                found = found_within(boundary, selection, order, share)
                shares.setdefault(name, {}).setdefault(share, []).append(found)
    return {
        name: {f"{share:.0%}": round(statistics.median(values), 3) for share, values in by.items()}
        for name, by in shares.items()
    }


def measure(task: Task, seeds: int) -> dict[str, Any]:
    """Return the figures of a data set, by table and strategy."""
    out = dict[str, Any]()
    for name in SELECTIONS:
        trainings = [record(task, name, seed) for seed in range(seeds)]
        figures = medians([each for training in trainings for each in training.figures])
        figures["lift"] = round(statistics.median(each.lift for each in trainings), 2)
        out[f"queries, {name}"] = figures
        if name == "pages":
            orders = compare_orders(task, trainings[0])
    return out | {f"same weights, {name}": shares for name, shares in orders.items()}


def main() -> None:
    """Compare all strategies and print the JSON."""
    measure_sets(__doc__, measure)


if __name__ == "__main__":
    main()
