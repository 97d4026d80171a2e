"""What schedules are told and what they say. Workers and tasks are named by strings and numbers, nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A batch of labels for one worker; `cost` in estimated seconds. The same task, run again or beside, has the next `attempt`;
    copy: it was begun beside another that was late."""

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
    """A worker is gone, with the tasks it had; the first of them may be to blame."""

    worker: str


@dataclass(frozen=True)
class Cleared:
    """A worker that was lost went with its whole node: its tasks are not to blame."""

    worker: str


@dataclass(frozen=True)
class Left:
    """A worker is gone as planned; the tasks it still had were not begun, and go to others."""

    worker: str


@dataclass(frozen=True)
class Done:
    """A worker finished a task after `seconds` of work."""

    worker: str
    task_id: int
    seconds: float


@dataclass(frozen=True)
class GivenUp:
    """A worker gave a task up, as it was asked to, and goes on with its next."""

    worker: str
    task_id: int


@dataclass(frozen=True)
class Drain:
    """Nothing more is to be begun: the schedule finishes when nothing is in flight."""


@dataclass(frozen=True)
class Tick:
    """Time passed, and nothing else: a task may be overdue by now."""


@dataclass(frozen=True)
class Run:
    """Give `task` to `worker`."""

    worker: str
    task: Task


@dataclass(frozen=True)
class Cancel:
    """Make `worker` give up a task that another has finished; it answers GivenUp, or Done when it was as quick."""

    worker: str
    task_id: int


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do; or, with a `reason`, nothing more can be done."""

    reason: str | None = None


Event = Joined | Lost | Cleared | Left | Done | GivenUp | Drain | Tick
Command = Run | Cancel | Finish
