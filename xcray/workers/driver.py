"""Driver loop: a schedule decides, a pool runs tasks, and finished blocks are committed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from threading import Timer
from typing import Any

import numpy as np

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call
from xcray.schedule.events import (
    Cancel,
    Cancelled,
    Command,
    Done,
    Drain,
    Joined,
    Left,
    Lost,
    Run,
    Task,
    Tick,
)
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import Pool, Report, Result, StopFlag, TaskWorker
from xcray.workers.timeline import DONE, DUPLICATE, LOST, STOPPED, Span
from xcray.workers.worker_group import CallCancelled, CallFailed, CallResult

POLL_SECONDS = 0.2  # between two checks of the stop flag
# between two forecasts, by which a pool grows and shrinks
FORECAST_SECONDS = 0.25
GRACE_SECONDS = 2.0  # that running batches have to end after the time limit


def run_schedule(
    schedule: LabelScheduler,
    pool: Pool,
    observer: RunObserver[Result],
    *,
    stop: StopFlag,
    seconds: float | None = None,
) -> None:
    """Run `schedule` on `pool` until it finishes.

    observer: receives each task's first result, the spans of all workers, and the progress in
    labels. seconds: time limit. Nothing new starts after it. Work that is still running
    GRACE_SECONDS later is stopped and not waited for, and the function returns as if everything was
    done.
    Raises Stopped if `stop` is set, Unavailable if workers keep being lost, and what a task or the
    observer raised. The pool is closed in every case, and committed results are kept.
    """
    loop = _DriverLoop(schedule, pool, observer)
    # Also stops a pool whose `wait` works in this thread.
    deadline_timer = Timer(GRACE_SECONDS + (seconds or 0.0), pool.stop)
    deadline_timer.daemon = True
    try:
        ends = None if seconds is None else time.monotonic() + seconds
        if ends is not None:
            deadline_timer.start()
        pool.open()
        loop.start_clock()
        loop.finished = schedule.total_labels == 0
        joined: Sequence[Report] = [Joined(worker) for worker in pool.available]
        while not loop.finished:
            loop.update_forecast()
            reports, joined = joined or pool.wait(POLL_SECONDS), []
            if stop.is_set():
                raise Stopped(
                    "stopped on request; finished batches are kept, the next run does the rest"
                )
            late = -math.inf if ends is None else time.monotonic() - ends
            loop.execute(schedule.on(Drain() if late >= 0.0 else Tick(), pool.now()))
            loop.handle(reports, overdue=late > GRACE_SECONDS)
            loop.report_progress()
    finally:
        deadline_timer.cancel()
        loop.record_running()
        pool.stop()
        try:
            observer.sync()
        finally:
            pool.close()


class _DriverLoop:
    """State of one `run_schedule` call."""

    def __init__(self, schedule: LabelScheduler, pool: Pool, observer: RunObserver[Result]) -> None:
        self._schedule = schedule
        self._pool = pool
        self._observer = observer
        self._began = time.monotonic()
        self._tasks: dict[int, tuple[str, Task]] = {}  # ticket -> worker and its task
        self.finished = False
        self._forecast_at = -math.inf

    def start_clock(self) -> None:
        """Count the seconds of work from now on: kernels are compiled when a pool opens."""
        self._began = time.monotonic()

    def report_progress(self) -> None:
        """Report the finished labels, and the remaining time by the finished share of the work."""
        schedule, elapsed = self._schedule, time.monotonic() - self._began
        share = schedule.done_cost / schedule.total_cost if schedule.total_cost else 1.0
        self._observer.report(
            RunProgress(
                schedule.done_labels,
                schedule.total_labels,
                elapsed,
                rate=schedule.done_labels / elapsed if elapsed > 0.0 else 0.0,
                eta=elapsed * (1.0 - share) / share if share > 0.0 else None,
            )
        )

    def update_forecast(self) -> None:
        """Pass the remaining work to the pool, and the number of workers to the schedule."""
        now = self._pool.now()
        if now - self._forecast_at >= FORECAST_SECONDS:
            self._forecast_at = now
            expected = self._pool.set_forecast(self._schedule.forecast())
            if expected is not None:
                self._schedule.expect_workers(expected)

    def handle(self, reports: Sequence[Report], overdue: bool) -> None:
        """Pass reports to the schedule, then execute its commands."""
        commands = [
            command for report in reports for command in self._handle_report(report, overdue)
        ]
        self._observer.sync(at_once=False)
        self.finished = self.finished or overdue
        self.execute(commands)

    def execute(self, commands: list[Command]) -> None:
        """Submit tasks, unless a later report cancelled them, and cancel duplicate runs."""
        for command in commands:
            if isinstance(command, Run):
                if self._schedule.is_expected(command.worker, command.task.id):
                    self._submit(command.worker, command.task)
            elif isinstance(command, Cancel):
                for ticket, (worker, task) in self._tasks.items():
                    if worker == command.worker and task.id == command.task_id:
                        self._pool.cancel(worker, ticket)
            elif command.reason is not None:
                raise Unavailable(
                    f"{command.reason}; check the workers' memory and logs, then resume",
                    code="WORKERS_LOST",
                )
            else:
                self.finished = True

    def _submit(self, worker: str, task: Task) -> None:
        """Give a task to a worker."""
        labels = np.array(task.labels, np.int32)
        self._tasks[self._pool.submit(Call(worker, TaskWorker.solve, labels))] = (worker, task)

    def record_running(self) -> None:
        """Record what the workers were doing when the loop ended."""
        for worker, task, since in self._schedule.running_tasks():
            self._observer.record(Span(worker, task, since, self._pool.now() - since, STOPPED))

    def _handle_report(self, report: Report, overdue: bool) -> list[Command]:
        """Convert one report to an event; an unneeded result only frees its worker."""
        now = self._pool.now()
        if isinstance(report, CallResult | CallCancelled):
            call = self._tasks.pop(report.ticket, None)
            return self._handle_end(report, call[1], now) if call else []  # of a lost worker
        if isinstance(report, CallFailed):
            if overdue and isinstance(report.error, Stopped):
                return []
            raise report.error
        if isinstance(report, Lost):
            self._record_lost(report.worker, now)
        if isinstance(report, Lost | Left):  # it answers no more
            self._tasks = {
                ticket: call for ticket, call in self._tasks.items() if call[0] != report.worker
            }
        return self._schedule.on(report, now)

    def _handle_end(
        self, reply: CallResult[Any, Any] | CallCancelled, task: Task, now: float
    ) -> list[Command]:
        """Commit and record a result, or record a cancelled task."""
        span = Span(reply.worker, task, reply.started, reply.seconds, STOPPED)
        if isinstance(reply, CallCancelled):
            self._observer.record(span)
            return self._schedule.on(Cancelled(reply.worker, task.id), now)
        expected = self._schedule.is_expected(reply.worker, task.id)
        if expected:
            self._observer.commit(
                Result(
                    reply.worker,
                    task,
                    reply.result,
                    reply.started,
                    reply.seconds,
                    reply.cpu_seconds,
                )
            )
        outcome = DONE if expected else DUPLICATE
        self._observer.record(span._replace(outcome=outcome, cpu_seconds=reply.cpu_seconds))
        return self._schedule.on(Done(reply.worker, task.id, reply.seconds), now)

    def _record_lost(self, lost: str, now: float) -> None:
        """Record the batch that a lost worker was running."""
        for worker, task, since in self._schedule.running_tasks():
            if worker == lost:
                self._observer.record(Span(worker, task, since, now - since, LOST))
