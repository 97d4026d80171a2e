"""The one loop: a schedule decides, a pool runs, finished blocks are committed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Timer

from xcray.errors import Stopped, Unavailable
from xcray.schedule.events import Cancel, Command, Done, Drain, GivenUp, Lost, Run, Tick
from xcray.schedule.label_scheduler import Scatter
from xcray.workers.pool import Failed, GaveUp, Pool, Report, Result, StopFlag
from xcray.workers.timeline import DONE, DUPLICATE, LOST, STOPPED, Span

PATIENCE = 0.2  # seconds between two looks at the stop flag
LOOK = 0.25  # seconds between two looks at what is left, by which a pool grows and shrinks
GRACE = 2.0  # seconds that batches under way have to end when the time is up


def drive(
    schedule: Scatter,
    pool: Pool,
    *,
    commit: Callable[[Result], None],
    stop: StopFlag,
    tick: Callable[[], None],
    seconds: float | None = None,
    record: Callable[[Span], None] = lambda _: None,
    sync: Callable[[], None] = lambda: None,
) -> None:
    """Run `schedule` on `pool` until it finishes.

    commit: called once for every task, with its first result, before the schedule hears of it. tick: called after every
    wait, for progress. seconds: after so many, nothing more is begun; what is still running GRACE seconds later is stopped
    and not waited for, and drive returns as it does when all is done. record: told what each worker did, useful or not. sync:
    called once for all that one wait brought, after their commits and before anything new begins: with a thousand workers,
    one write makes many results durable.
    Raises Stopped when `stop` is set, Unavailable when workers keep being lost, and whatever a task raised. The pool is
    closed in every case; what was committed stays.
    """
    loop = _Loop(schedule, pool, commit, record, sync)
    bell = Timer(
        GRACE + (seconds or 0.0), pool.stop
    )  # also for a pool whose `wait` works in this thread
    bell.daemon = True
    try:
        ends = None if seconds is None else time.monotonic() + seconds
        if ends is not None:
            bell.start()
        pool.open()
        loop.finished = schedule.total_labels == 0
        while not loop.finished:
            loop.look_ahead()
            reports = pool.wait(PATIENCE)
            if stop.is_set():
                raise Stopped(
                    "stopped on request; finished batches are kept, the next run does the rest"
                )
            late = -math.inf if ends is None else time.monotonic() - ends
            loop.obey(schedule.on(Drain() if late >= 0.0 else Tick(), pool.now()))
            loop.hear(reports, overdue=late > GRACE)
            tick()
    finally:
        bell.cancel()
        loop.record_under_way()
        pool.stop()
        pool.close()


class _Loop:
    """What one drive holds: who is told what."""

    def __init__(
        self,
        schedule: Scatter,
        pool: Pool,
        commit: Callable[[Result], None],
        record: Callable[[Span], None],
        sync: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._pool = pool
        self._commit = commit
        self._record = record
        self._sync = sync
        self.finished = False
        self._looked = -math.inf

    def look_ahead(self) -> None:
        """Tell the pool what is left, now and then, and the schedule how many workers there will be for it."""
        now = self._pool.now()
        if now - self._looked >= LOOK:
            self._looked = now
            expected = self._pool.foresee(self._schedule.outlook())
            if expected is not None:
                self._schedule.expect(expected)

    def hear(self, reports: list[Report], overdue: bool) -> None:
        """Tell the schedule what a pool reported, and do what it says once all is heard."""
        try:
            commands = [command for report in reports for command in self._hear(report, overdue)]
        finally:
            self._sync()  # also when one of the reports ends it all
        self.finished = self.finished or overdue
        self.obey(commands)

    def obey(self, commands: list[Command]) -> None:
        """Submit what is to run, but for what a later report made void; call off what lost its race."""
        for command in commands:
            if isinstance(command, Run):
                if self._schedule.expects(command.worker, command.task.id):
                    self._pool.submit(command.worker, command.task)
            elif isinstance(command, Cancel):
                self._pool.cancel(command.worker, command.task_id)
            elif command.reason is not None:
                raise Unavailable(
                    f"{command.reason}; look at the workers' memory and logs, then resume",
                    code="WORKERS_LOST",
                )
            else:
                self.finished = True

    def record_under_way(self) -> None:
        """What workers were at when the loop ended."""
        for worker, task, since in self._schedule.under_way():
            self._record(Span(worker, task, since, self._pool.now() - since, STOPPED))

    def _hear(self, report: Report, overdue: bool) -> list[Command]:
        """One report as an event; a result that is not wanted frees its worker and no more."""
        now = self._pool.now()
        if isinstance(report, Failed):
            if overdue and isinstance(report.error, Stopped):
                return []
            raise report.error
        if isinstance(report, GaveUp):
            self._record(Span(report.worker, report.task, report.started, report.seconds, STOPPED))
            return self._schedule.on(GivenUp(report.worker, report.task.id), now)
        if isinstance(report, Result):
            wanted = self._schedule.expects(report.worker, report.task.id)
            if wanted:
                self._commit(report)
            self._record(
                Span(
                    report.worker,
                    report.task,
                    report.started,
                    report.seconds,
                    DONE if wanted else DUPLICATE,
                )
            )
            return self._schedule.on(Done(report.worker, report.task.id, report.seconds), now)
        if isinstance(report, Lost):
            self._record_lost(report.worker, now)
        return self._schedule.on(report, now)

    def _record_lost(self, lost: str, now: float) -> None:
        """The batch that a lost worker was at."""
        for worker, task, since in self._schedule.under_way():
            if worker == lost:
                self._record(Span(worker, task, since, now - since, LOST))
