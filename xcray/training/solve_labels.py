"""Solve a set of labels on a pool. Full trainings, label edits and tuning share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern
from xcray.errors import ParameterError
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.contract import IndependentSolver, SolverState
from xcray.training.block_store import BlockStore
from xcray.workers.driver import run_schedule
from xcray.workers.local_group import local_pool
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import Pool, Result, StopFlag, TaskRunner
from xcray.workers.timeline import Span, Timeline

LOCAL_POOLS = ("serial", "threads")


class TrainingData(NamedTuple):
    """Input of independent labels.

    X (N x D); XT (D x N), its transpose; YT (K x N), the rows of each label; weights (N,) of rows,
    or None.
    """

    X: CSR
    XT: CSR
    YT: Pattern
    weights: Float32 | None = None

    def cost_terms(self, solver: IndependentSolver) -> Float64:
        """Return the cost terms of each label: (K, T); see `IndependentSolver.cost_terms`."""
        return solver.cost_terms(self.X, self.XT, self.YT)


def check_local_pool(pool: str) -> None:
    """Raise ParameterError if the pool is not local to this process."""
    if pool not in LOCAL_POOLS:
        raise ParameterError(
            f"pool must be one of {', '.join(LOCAL_POOLS)} here, not {str(pool)[:80]!r}"
        )


def make_local_pool(
    pool: str,
    solver: IndependentSolver,
    state: SolverState,
    workers: int,
    runner: TaskRunner | None = None,
) -> Pool:
    """Return the local pool of the given kind.

    runner: solves the tasks, by default the solver.
    """
    return local_pool(runner or solver, state, None if pool == "serial" else workers)


class LabelsToSolve(NamedTuple):
    """Labels (n,) int32 to solve.

    cost_terms: (K, T) of all labels, see `TrainingData.cost_terms`. values: (K,), solves labels
    with the highest values first; None for the order that takes least time.
    """

    solver: IndependentSolver
    labels: Int32
    cost_terms: Float64
    values: Any = None


class StoreObserver(RunObserver[Result]):
    """Commits each batch to a block store, records its span, and reports the finished labels."""

    def __init__(
        self, parts: BlockStore, timeline: Timeline, on_labels: Callable[[int], None]
    ) -> None:
        self._parts = parts
        self._timeline = timeline
        self._on_labels = on_labels

    def record(self, span: Span) -> None:
        """Add a span to the timeline."""
        self._timeline.add(span)

    def commit(self, result: Result) -> None:
        """Add a batch to the next write."""
        self._parts.add(result.value)

    def sync(self, *, at_once: bool = True) -> None:
        """Make all committed batches durable."""
        self._parts.sync(at_once=at_once)

    def report(self, progress: RunProgress) -> None:
        """Report the number of finished labels."""
        self._on_labels(int(progress.done))


def solve_labels(
    work: LabelsToSolve,
    pool: Pool,
    observer: RunObserver[Result],
    *,
    workers: int,
    stop: StopFlag,
    seconds: float | None = None,
) -> None:
    """Solve labels on `pool`; seconds and errors as of `run_schedule`."""
    if not len(work.labels):
        return
    schedule = LabelScheduler(
        work.labels,
        work.cost_terms[work.labels],
        work.solver.cost_rates,
        values=None if work.values is None else work.values[work.labels],
        workers=workers,
    )
    run_schedule(schedule, pool, observer, stop=stop, seconds=seconds)
