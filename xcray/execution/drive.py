"""The one loop: a schedule decides, a pool runs, finished blocks are committed."""

from __future__ import annotations

from collections.abc import Callable

from xcray.errors import Stopped, Unavailable
from xcray.execution.pool import Failed, Pool, Report, Result, StopFlag
from xcray.schedule.messages import Command, Done, Finish, Run
from xcray.schedule.scatter import Scatter

PATIENCE = 0.2  # seconds between two looks at the stop flag


def drive(schedule: Scatter, pool: Pool, *, commit: Callable[[Result], None], stop: StopFlag, tick: Callable[[], None]) -> None:
    """Run `schedule` on `pool` until it finishes.

    commit: called once for every task, with its first result, before the schedule hears of it. tick: called after every
    wait, for progress. Raises Stopped when `stop` is set, Unavailable when workers keep being lost, and whatever a task
    raised. The pool is closed in every case; what was committed stays.
    """
    try:
        pool.open()
        commands = _finish_if_empty(schedule)
        while not _carry_out(commands, pool):
            reports = pool.wait(PATIENCE)
            if stop.is_set():
                raise Stopped("stopped on request; finished batches are kept, the next run does the rest")
            commands = [command for report in reports for command in _hear(schedule, report, commit)]
            tick()
    finally:
        pool.stop()
        pool.close()


def _finish_if_empty(schedule: Scatter) -> list[Command]:
    """A schedule without labels finishes before any worker joins."""
    return [Finish()] if schedule.total_labels == 0 else []


def _carry_out(commands: list[Command], pool: Pool) -> bool:
    """Submit what is to run; True when the schedule has finished."""
    for command in commands:
        if isinstance(command, Run):
            pool.submit(command.worker, command.task)
        elif command.reason is not None:
            raise Unavailable(f"{command.reason}; look at the workers' memory and logs, then resume", code="WORKERS_LOST")
        else:
            return True
    return False


def _hear(schedule: Scatter, report: Report, commit: Callable[[Result], None]) -> list[Command]:
    """Tell the schedule what a pool reported; late results are dropped."""
    if isinstance(report, Failed):
        raise report.error
    if not isinstance(report, Result):
        return schedule.on(report)
    if not schedule.expects(report.worker, report.task.id):
        return []
    commit(report)
    return schedule.on(Done(report.worker, report.task.id, report.seconds))
