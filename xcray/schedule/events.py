"""Events and commands of schedules. Workers are identified by strings and tasks by numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A batch of labels for one worker, with its `cost` in estimated seconds.

    attempt: number of this run of the task, from 1. copy: whether the run was started while another
    worker was late with the same task.
    """

    id: int
    labels: tuple[int, ...]
    cost: float
    attempt: int = 1
    copy: bool = False


@dataclass(frozen=True)
class Joined:
    """A worker is ready for tasks."""

    worker: str


@dataclass(frozen=True)
class Lost:
    """A worker was lost with its tasks; the first of them may be the cause."""

    worker: str


@dataclass(frozen=True)
class NodeLost:
    """A lost worker went down with its whole node, so its tasks are not the cause."""

    worker: str


@dataclass(frozen=True)
class Left:
    """A worker left as planned; its tasks that were not started go to other workers."""

    worker: str


@dataclass(frozen=True)
class Done:
    """A worker finished a task after `seconds` of work."""

    worker: str
    task_id: int
    seconds: float


@dataclass(frozen=True)
class Cancelled:
    """A worker stopped a task because it was cancelled, and goes on with its next task."""

    worker: str
    task_id: int


@dataclass(frozen=True)
class Drain:
    """No new task may start; the schedule finishes when no task is in flight."""


@dataclass(frozen=True)
class Tick:
    """Time passed; a task can be overdue now."""


@dataclass(frozen=True)
class Run:
    """Give `task` to `worker`."""

    worker: str
    task: Task


@dataclass(frozen=True)
class Cancel:
    """Make `worker` stop a task that another one has finished; Cancelled or Done follows."""

    worker: str
    task_id: int


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do or, with a `reason`, the job cannot go on."""

    reason: str | None = None


Event = Joined | Lost | NodeLost | Left | Done | Cancelled | Drain | Tick
Command = Run | Cancel | Finish
