"""Solve a set of labels on a pool. Full trainings, label edits and tuning share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern
from xcray.errors import ParameterError
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.contract import Solver, SolverState
from xcray.workers.driver import run_schedule
from xcray.workers.local_pool import SerialPool, ThreadPool
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.timeline import Span

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

    def cost_terms(self, solver: Solver) -> Float64:
        """Return the cost terms of each label: (K, T); see `Solver.cost_terms`."""
        return solver.cost_terms(self.X, self.XT, self.YT)


def has_independent_labels(solver: Solver) -> bool:
    """Return whether the solver solves each label independently of the others."""
    return solver.family == "independent" and not solver.joint


def check_local_pool(pool: str) -> None:
    """Raise ParameterError if the pool is not local to this process."""
    if pool not in LOCAL_POOLS:
        raise ParameterError(
            f"pool must be one of {', '.join(LOCAL_POOLS)} here, not {str(pool)[:80]!r}"
        )


def make_local_pool(pool: str, solver: Solver, state: SolverState, workers: int) -> Pool:
    """Return the local pool of the given kind.

    A joint solver's single task always runs in a thread, so that a stop request is noticed
    meanwhile.
    """
    return (
        SerialPool(solver, state)
        if pool == "serial" and not solver.joint
        else ThreadPool(solver, state, workers)
    )


def solve_labels(
    solver: Solver,
    cost_terms: Float64,
    labels: Int32,
    pool: Pool,
    *,
    workers: int,
    commit: Callable[[Result], None],
    stop: StopFlag,
    tick: Callable[[int, float], None] = lambda done, share: None,
    record: Callable[[Span], None] = lambda _: None,
    values: Any = None,
    seconds: float | None = None,
    sync: Callable[[], None] = lambda: None,
) -> None:
    """Solve `labels` (n,) int32 on `pool`.

    commit: receives each finished batch. record: receives the span of each batch. cost_terms: (K,
    T) of all labels, see `TrainingData.cost_terms`. values: (K,), solves labels with the highest
    values first. tick: called after every wait with the number of finished labels and the finished
    share of the estimated work. seconds, sync and errors: see `run_schedule`.
    """
    if not len(labels):
        return
    label_values = None if values is None else values[labels]
    schedule = LabelScheduler(
        labels,
        cost_terms[labels],
        solver.cost_rates,
        values=label_values,
        workers=workers,
        joint=solver.joint,
    )

    def report_tick() -> None:
        tick(
            schedule.done_labels,
            schedule.done_cost / schedule.total_cost if schedule.total_cost else 1.0,
        )

    run_schedule(
        schedule,
        pool,
        commit=commit,
        stop=stop,
        tick=report_tick,
        record=record,
        seconds=seconds,
        sync=sync,
    )
