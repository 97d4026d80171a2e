"""Solving some labels on a pool: what full trainings, relabelling and paths share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern
from xcray.errors import ParameterError
from xcray.schedule.label_scheduler import Scatter
from xcray.solvers.contract import Local, Solver
from xcray.workers.driver import drive
from xcray.workers.local_pool import SerialPool, ThreadPool
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.timeline import Span

LOCAL_POOLS = ("serial", "threads")


class Rows(NamedTuple):
    """What is learnt from: X (N x D), XT (D x N) its transpose, YT (K x N) the rows of each label, (N,) weights of rows or None."""

    X: CSR
    XT: CSR
    YT: Pattern
    weights: Float32 | None = None

    def terms(self, solver: Solver) -> Float64:
        """What the cost of each label is made of: (K, T); see `Solver.cost_terms`."""
        return solver.cost_terms(self.X, self.XT, self.YT)


def labels_are_alone(solver: Solver) -> bool:
    """Whether each label is solved without regard to the others."""
    return solver.family == "scatter" and not solver.joint


def check_local(pool: str) -> None:
    """Raise ParameterError for a pool that is not of this process."""
    if pool not in LOCAL_POOLS:
        raise ParameterError(
            f"pool must be one of {', '.join(LOCAL_POOLS)} here, not {str(pool)[:80]!r}"
        )


def local_pool(pool: str, solver: Solver, local: Local, workers: int) -> Pool:
    """The pool of this process called `pool`. One task that holds all labels gets a thread, so that a stop is heard meanwhile."""
    return (
        SerialPool(solver, local)
        if pool == "serial" and not solver.joint
        else ThreadPool(solver, local, workers)
    )


def solve_labels(
    solver: Solver,
    terms: Float64,
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
    """Solve `labels` (n,) int32 on `pool`; `commit` gets each finished batch, `record` what each worker did.

    terms: (K, T) of all labels, see `Rows.terms`; values: (K,), with them the most valuable labels go first. tick: told after
    every wait how many labels are done, and which share of the estimated work. seconds, sync and what is raised: see `drive`.
    """
    if not len(labels):
        return
    worth = None if values is None else values[labels]
    schedule = Scatter(
        labels, terms[labels], solver.cost_rates, values=worth, workers=workers, joint=solver.joint
    )

    def told() -> None:
        tick(
            schedule.done_labels,
            schedule.done_cost / schedule.total_cost if schedule.total_cost else 1.0,
        )

    drive(
        schedule,
        pool,
        commit=commit,
        stop=stop,
        tick=told,
        record=record,
        seconds=seconds,
        sync=sync,
    )
