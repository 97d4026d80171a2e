"""Two settings of indexed block coordinate descent, compared on validation rows.

python -m benchmarks.indexed_bcd.settings --data DIR [--seeds 3] [--rows 300000]
    [--sets covtype-like,kddcup99_10pct,mnist:3,mnist:5,mnist:8,mnist:9]

One class (NAME:LABEL) against the rest. For each seed, a random fifth of the training rows is for
validation, and the others are for training; test rows are not read. For each strategy and each
least precision of the first queries (relative to the share of support vectors among random rows;
0: none but the limit of all queries): processor seconds, volumes read and support vectors when the
validation error first is, and remains, at most that of the full solution of the same rows + 0.2
and + 0.05 points, for every seed (null: not reached), and at the end. "auto leaves" is
`selection=auto` with rows on disk. lift: precision of the first query of the forest, relative to
the share of support vectors among random rows; random support: this share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.indexed_bcd.__main__ import (
    FULL_GAP,
    LIMITS,
    Curve,
    Point,
    Task,
    full,
    measure_sets,
    reach,
    some_rows,
    take_training_rows,
)
from xcray.arrays import csr
from xcray.kernels.sparse import take_rows
from xcray.solvers.indexed_bcd.label import (
    FIRST_PRECISION,
    MIN_PRECISION,
    LabelTraining,
    QueryResult,
    SweepProgress,
)
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.selection import ForestLeaves, make_leaf_selection
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver

SETS = "covtype-like,kddcup99_10pct,mnist:3,mnist:5,mnist:8,mnist:9"
ROWS = 300_000  # of covtype-like
VALIDATION_SHARE = 0.2
FIRST_PRECISIONS = (0.0, FIRST_PRECISION)  # that of revision 4, and the present one
LEAVES = {"forest": "forest", "random leaves": "pages", "auto leaves": "auto"}


class MeasuredTraining(LabelTraining):
    """A training whose first queries end at another precision. lift: of its first query."""

    first_precision, lift = 0.0, 0.0

    def query(self, n: int) -> QueryResult:
        """Return the result of the query; record the lift of the first one."""
        result = super().query(n)
        if self.queries == 1:
            precision = result.found / max(result.reads, 1)
            self.lift = precision / max(self._random_precision, 1e-9)
        return result

    def _grow(self, max_queries: int | None, min_precision: float) -> None:
        """Add rows by queries; the first ones, which have a number, end at the other precision."""
        if max_queries is not None:
            min_precision = max(MIN_PRECISION, self.first_precision * self._random_precision)
        super()._grow(max_queries, min_precision)


class Run(NamedTuple):
    """Result of a run.

    points: with validation errors relative to that of the full solution; lift: of the first query;
    random_support: share of support vectors among the first random rows.
    """

    points: list[Point]
    lift: float
    random_support: float


def hold_out(task: Task, seed: int) -> Task:
    """Return the task with a random part of its training rows in place of the test rows."""
    n = task.X.n_rows
    is_held_out = np.zeros(n, bool)
    chosen = np.random.default_rng(seed).choice(n, int(VALIDATION_SHARE * n), replace=False)
    is_held_out[chosen] = True
    rows = np.flatnonzero(is_held_out)
    y = np.where(np.isin(rows, task.YT.row(0)), 1, -1)
    X = take_rows(task.X, rows).to_scipy().astype(np.float64)
    kept = take_training_rows(task, np.flatnonzero(~is_held_out))
    return kept._replace(X_test=X, y_test=y)


def states(task: Task, solver: IndexedBCDSolver) -> dict[str, HingeState]:
    """Return the state of every strategy; those with leaves share a forest."""
    empty = csr([0], [], [], task.X.n_rows)
    pages = solver.load(task.X, empty, task.YT)
    forest = replace(solver, selection="forest").load(task.X, empty, task.YT)
    assert isinstance(forest.selection, ForestLeaves)
    indexed = forest.selection.indexed
    leaves = {
        title: replace(forest, selection=make_leaf_selection(name, indexed))
        for title, name in LEAVES.items()
    }
    return {"random pages": pages, **leaves}


def run(task: Task, solver: IndexedBCDSolver, local: HingeState, first_precision: float) -> Run:
    """Return the curve of a training."""
    curve = Curve(task)

    def observe(progress: SweepProgress) -> None:
        curve.add(progress.v, progress.reads / task.X.n_rows, progress.support)

    settings = solver.label_settings(local, 0)
    parts = (local.store, local.scratch, local.selection, local.positives(0))
    training = MeasuredTraining(*parts, 0, settings, observe=observe)
    training.first_precision = first_precision
    result, _ = training.train()
    curve.add(result.v, training.reads / task.X.n_rows, result.support)
    return Run(curve.points, training.lift, training._random_precision)


def full_error(task: Task, solver: IndexedBCDSolver, local: HingeState) -> float:
    """Return the validation error of the full solution in percent."""
    gap = FULL_GAP * solver.null_objective(local, 0)
    curve = Curve(task)
    full(task, curve, local, solver.label_settings(local, 0)._replace(gap=gap))
    return curve.points[-1].error


def runs_of_seed(task: Task, seed: int) -> dict[str, Run]:
    """Return the runs of all strategies and precisions on one split."""
    solver = IndexedBCDSolver(C=task.C, seed=seed, selection="pages")
    all_states = states(task, solver)
    best = full_error(task, solver, all_states["random pages"])
    runs = dict[str, Run]()
    for name, local in all_states.items():
        for first_precision in FIRST_PRECISIONS:
            result = run(task, solver, local, first_precision)
            relative = [point._replace(error=point.error - best) for point in result.points]
            runs[f"{name}, {first_precision:g}"] = result._replace(points=relative)
    return runs


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Return seconds, volumes and support vectors of every seed at the limits and at the end."""
    at: dict[str, list[Point | None]] = {
        f"+{limit}": [reach(each.points, limit) for each in runs] for limit in LIMITS
    }
    at["end"] = [each.points[-1] for each in runs]
    out: dict[str, Any] = {
        "lift": [round(each.lift, 2) for each in runs],
        "random support": [round(each.random_support, 3) for each in runs],
    }
    for limit, points in at.items():
        for name in Point._fields[limit != "end" :]:
            values = [None if p is None else round(getattr(p, name), 3) for p in points]
            out[f"{limit} {name}"] = values
    return out


def measure(task: Task, seeds: int) -> dict[str, Any]:
    """Return the summary of every strategy and precision on one data set."""
    runs_of_seed(hold_out(some_rows(task), 0), 0)  # compiles the kernels
    runs = dict[str, list[Run]]()
    for seed in range(seeds):
        for name, each in runs_of_seed(hold_out(task, seed), seed).items():
            runs.setdefault(name, []).append(each)
    return {name: summarise(each) for name, each in runs.items()}


if __name__ == "__main__":
    measure_sets(__doc__ or "", measure, SETS, ROWS)
