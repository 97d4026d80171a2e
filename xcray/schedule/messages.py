"""What schedules are told and what they say. Workers and tasks are named by strings and numbers, nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A batch of labels for one worker. The same task, run again after a loss, has the next `attempt`."""

    id: int
    labels: tuple[int, ...]
    cost: float
    attempt: int = 1


@dataclass(frozen=True)
class Joined:
    """A worker is ready for tasks."""

    worker: str


@dataclass(frozen=True)
class Lost:
    """A worker is gone, with the tasks it had."""

    worker: str


@dataclass(frozen=True)
class Done:
    """A worker finished a task after `seconds` of work."""

    worker: str
    task_id: int
    seconds: float


@dataclass(frozen=True)
class Run:
    """Give `task` to `worker`."""

    worker: str
    task: Task


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do; or, with a `reason`, nothing more can be done."""

    reason: str | None = None


Event = Joined | Lost | Done
Command = Run | Finish
