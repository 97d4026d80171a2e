"""Runs of the methods of `benchmarks.multinomial` on threads.

The clock of a run stops while it is evaluated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize  # noqa: F401 - loaded before any clock starts
from threadpoolctl import threadpool_limits

from benchmarks.multinomial.data import Problem
from xcray.arrays import Float64, TopK, frozen
from xcray.errors import Stopped
from xcray.measures import f1, predicted_sets
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.group_contract import Round, TrainingRows
from xcray.solvers.held_out import top_k
from xcray.solvers.lbfgs.solver import LBFGSSolver
from xcray.solvers.lc.solver import LCSolver
from xcray.solvers.row_operator import RowOperator as Products
from xcray.solvers.row_shards import Shard, make_shard
from xcray.solvers.shard_contract import grid_of
from xcray.solvers.solved_labels import SolvedLabels, concatenate
from xcray.training.group_training import train_group
from xcray.training.group_workers import RowWorkerFactory
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.source import ShardSource, split_plan
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import ThreadGroup
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import Span

CHUNK = 1 << 20  # scores in memory when a model is evaluated
NEXT = 1.15  # ratio of the clock between two evaluations of held-out rows
ENDLESS = 10**6
EXACT = {
    "centre": "no",
    "inner": 0.1,
    "inner_steps": 10,
}  # LC as published: only solves classes

OPEN = {"epochs": ENDLESS, "tolerance": 0.0}  # the clock ends the run
MERGED = {"passes": 1, "sync_every": 4, **OPEN}  # an epoch takes 5/4 laps instead of two

SOLVERS: dict[str, Any] = {
    "DS-MLR, two laps": DSMLRSolver(passes=2, order="sync", **OPEN),
    "DS-MLR, merged": DSMLRSolver(order="sync", **MERGED),
    "DS-MLR, ring": DSMLRSolver(order="ring", **MERGED),
    "DS-MLR, NOMAD": DSMLRSolver(order="shortest", **MERGED),
    "LC as published": LCSolver(tolerance=1e-5, max_rounds=ENDLESS, eval_every=0, **EXACT),
    "LC, centred": LCSolver(tolerance=1e-5, max_rounds=ENDLESS, eval_every=0),
    "L-BFGS": LBFGSSolver(tolerance=1e-5, max_iterations=ENDLESS, eval_every=0),
}
ASYNC = (
    "DS-MLR, ring",
    "DS-MLR, NOMAD",
)  # these differ only in the order of work; with one worker they equal the merged form
EVALUATED: dict[Any, dict[int, tuple[float, float]]] = {}  # F1 by epoch of evaluated runs


class Point(NamedTuple):
    """A moment of a run: seconds and objective, and F1 of held-out rows if evaluated.

    micro, macro: micro- and macro-F1.
    """

    seconds: float
    objective: float
    micro: float | None
    macro: float | None


class Clock:
    """Points of a run against its working time, which excludes evaluations.

    looks: whether held-out rows are evaluated during the run.
    """

    def __init__(self, problem: Problem, budget: float, target: float, looks: bool) -> None:
        self._problem = problem
        self._budget = budget
        self._target = target
        self.looks = looks
        self.points: list[Point] = []
        self.running = False
        self._seconds = 0.0
        self._began = 0.0
        self._looked = 0.0

    def go(self, ago: float = 0.0) -> None:
        """Start the clock now, or `ago` seconds ago."""
        self._began, self.running = time.perf_counter() - ago, True

    def record(self, objective: float, weights: Callable[[], Float64] | None) -> bool:
        """Record the objective and return whether the run should end.

        weights: returns W (D, K), for an evaluation.
        """
        over = self.late() or objective <= self._target
        micro = macro = None
        if weights is not None and self.looks and (over or self._seconds >= NEXT * self._looked):
            self._looked = self._seconds
            micro, macro = held_out(self._problem, weights())
        self.points.append(Point(self._seconds, objective, micro, macro))
        self.go()
        return over

    def late(self) -> bool:
        """Return whether the budget is used up."""
        now = time.perf_counter()
        self._seconds += now - self._began
        self._began = now
        return self._seconds >= self._budget

    def end(self, weights: Callable[[], Float64]) -> None:
        """Evaluate the last point of a run that ended by itself."""
        if self.looks and self.points[-1].micro is None:
            self.points[-1] = Point(*self.points[-1][:2], *held_out(self._problem, weights()))


@contextmanager
def cores(n: int) -> Iterator[None]:
    """Run on the first n cores this process can use, with one thread per matrix product."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(mine)[:n]))  # inherited by threads that start later
    try:
        with threadpool_limits(1):
            yield
    finally:
        os.sched_setaffinity(0, mine)


def run(
    name: str, problem: Problem, workers: int, budget: float, target: float, looks: bool = True
) -> list[Point]:
    """Run one method until the clock reaches `budget` or the objective is at most `target`.

    looks: whether held-out rows are evaluated during the run.
    """
    solver, clock = replace(SOLVERS[name], lam=problem.lam), Clock(problem, budget, target, looks)
    with cores(workers):
        if not isinstance(solver, DSMLRSolver):
            run_rounds(solver, problem, workers, clock)
        else:
            run_circulating(solver, problem, workers, clock)
    return clock.points


def run_rounds(solver: Any, problem: Problem, workers: int, clock: Clock) -> None:
    """Run L-BFGS or LC."""
    rows, positives = TrainingRows(problem.X, problem.Y), np.zeros(problem.Y.n_cols, np.int64)
    layout = solver.layout(workers, False, rows)
    group = ThreadGroup(RowWorkerFactory(solver, rows, layout), layout.workers)

    def whole(done: Round) -> Float64:
        labels = concatenate(list(solver.export(GroupCalls(group), done.state, positives)))
        return labels.W.to_scipy().toarray().T.astype(np.float64)

    try:
        group.open()
        clock.go()
        for done in solver.program(GroupCalls(group), rows):
            last = done
            if clock.record(done.entry["objective"], partial(whole, done)):
                break
        clock.end(partial(whole, last))
    finally:
        group.close()


def run_circulating(solver: DSMLRSolver, problem: Problem, workers: int, clock: Clock) -> None:
    """Run DS-MLR as a training does, without checkpoints.

    Evaluating held-out rows would use the run's own time. Therefore it runs without, and, if F1 is
    needed, a second time with it: the F1 after an epoch is reported at the time at which the first
    run ended that epoch.
    """
    first = SyncPoints(clock)
    rested(solver, problem, workers, first, watch=0)
    if clock.looks:
        values = watched(solver, problem, workers, first.epochs)
        for number, epoch in enumerate(first.epochs):
            clock.points[number] = Point(
                *clock.points[number][:2], *values.get(epoch, (None, None))
            )


def watched(
    solver: DSMLRSolver, problem: Problem, workers: int, epochs: list[int]
) -> dict[int, tuple[float, float]]:
    """Return micro- and macro-F1 by epoch, including the last of `epochs`.

    "sync" and "ring" give the same weights, so only one of them is run.
    """
    order = "ring" if solver.order == "sync" else solver.order
    key = problem.name, problem.X.n_rows, workers, replace(solver, order=order)
    if max(epochs) not in EVALUATED.get(key, {}):
        again = SyncPoints(None, max(epochs))
        rested(solver, problem, workers, again, watch=problem.X_held.n_rows)
        EVALUATED[key] = {
            entry["epoch"]: (entry["micro-F1"], entry["macro-F1"]) for entry in again.entries
        }
    return EVALUATED[key]


class SyncPoints(RunObserver[SolvedLabels]):
    """Observer of the synchronisations of a training, which stops it at the end of the budget."""

    def __init__(self, clock: Clock | None, epochs: int = ENDLESS) -> None:
        self._clock = clock
        self._last = epochs
        self._newest = None
        self.entries: list[Any] = []
        self.epochs: list[int] = []
        self.stop = StopFlag()

    def record(self, span: Span) -> None:
        """Record the first visit, which starts the clock."""
        if self._clock is not None and not self._clock.running:
            self._clock.go(span.seconds)

    def report(self, progress: RunProgress) -> None:
        """Record a progress report if it belongs to a synchronisation."""
        entry = progress.newest
        if entry and entry is not self._newest and not entry["back"]:
            self.entries.append(entry)
            self.epochs.append(entry["epoch"])
            enough = self._clock is not None and self._clock.record(entry["objective"], None)
        else:
            enough = self._clock is not None and self._clock.running and self._clock.late()
        self._newest = entry
        if enough or (self.epochs and self.epochs[-1] >= self._last):
            self.stop.set()


def rested(
    solver: DSMLRSolver, problem: Problem, workers: int, sync_points: SyncPoints, watch: int
) -> None:
    """Run one training. watch: number of held-out rows evaluated after each stretch."""
    held_out = (problem.X_held, problem.Y_held, None) if watch else None
    rows = TrainingRows(problem.X, problem.Y, held_out=held_out)
    layout = solver.layout(workers, False, rows)
    grid = grid_of(layout)
    source = ShardSource(grid, split_plan(rows, grid, solver.seed, 0.0, watch), rows)
    factory = RowWorkerFactory(solver, rows, layout, source.split)
    parts = ShardAssignment(ThreadGroup(factory, workers), source, grid)
    try:
        train_group(
            solver,
            rows,
            layout,
            parts,
            sync_points,
            positives=np.bincount(problem.Y.indices, minlength=problem.Y.n_cols),
            truth=problem.Y_held if watch else None,
            stop=sync_points.stop,
        )
    except Stopped:
        assert sync_points.stop.is_set()


def scored(part: Shard, W: Float64) -> Iterator[tuple[int, int, Float64]]:
    """Yield the scores of some rows at a time."""
    rows, n = Products(part), max(1, CHUNK // W.shape[1])
    for lo in range(0, rows.n_rows, n):
        hi = min(lo + n, rows.n_rows)
        yield lo, hi, rows.scores(W, lo, hi)


def held_out(problem: Problem, W: Float64) -> tuple[float, float]:
    """Return micro- and macro-F1 of the first label of each held-out row."""
    part = make_shard(problem.X_held, problem.Y_held, np.arange(problem.X_held.n_rows), total=1.0)
    labels = np.concatenate([top_k(S, 0, 1).labels for _, _, S in scored(part, W)])
    result = f1(
        predicted_sets(
            TopK(frozen(labels, np.int32), np.zeros(labels.shape)), problem.Y_held.n_cols, k=1
        ),
        problem.Y_held,
    )
    return result["micro-F1"], result["macro-F1"]
