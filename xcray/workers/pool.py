"""Contract of pools and of the tasks they run, and their reports besides schedule events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from xcray.arrays import Int32
from xcray.schedule.autoscaling import Forecast
from xcray.schedule.events import Event, Task
from xcray.workers.contract import Workers


class TaskRunner(Protocol):
    """Solves tasks, whose `labels` are numbers of items: labels to solve, or chunks of rows.

    An item gives the same result in any task, on any worker, at any time. This makes lost and
    copied tasks harmless.
    """

    def solve(self, local: Any, labels: Int32, stopped: Callable[[], bool] = ..., /) -> Any:
        """Return the result of items (n,) int32.

        local: state of the worker. Raises Stopped soon after `stopped` returns True. Other
        exceptions are raised by the driver of the pool.
        """

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels.

        local: the state that they will be used with; None if there is none yet.
        """


class RemoteTaskRunner(TaskRunner, Protocol):
    """Task runner that is sent to other processes: small, its data is in files."""

    @property
    def counter(self) -> tuple[str, str]:
        """Name and description of the metric that counts items done by a worker."""

    def open(self) -> Any | None:
        """Return the worker's state from files; None if its node does not see them."""

    def load(self, *shared: Any) -> Any:
        """Return the worker's state from arrays that the driver shares."""

    def decode_result(self, result: Any) -> Any:
        """Convert a result for use in the driver's process."""


@dataclass(frozen=True)
class Result:
    """A finished task with its value and `seconds` of work from `started` (since the pool open).

    cpu_seconds: processor time of the thread that solved it.
    """

    worker: str
    task: Task
    value: Any
    started: float
    seconds: float
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Failed:
    """A task that raised an exception; solvers are deterministic, so it is not retried."""

    worker: str
    task: Task
    error: BaseException


@dataclass(frozen=True)
class TaskCancelled:
    """A cancelled task, with `seconds` of work from `started`, 0 if it had not started."""

    worker: str
    task: Task
    started: float
    seconds: float


Report = Event | Result | Failed | TaskCancelled


class StopFlag:
    """A flag that many threads can set and read; once set it stays set."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Request a stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        return self._event.is_set()


class Pool(Workers, Protocol):
    """Workers that solve tasks. Only `wait` blocks: `open` returns before the workers are ready."""

    def open(self) -> None:
        """Start workers; `wait` reports each as Joined when it is ready.

        Raises Unavailable if no worker can be started.
        """

    def submit(self, worker: str, task: Task) -> None:
        """Give a task to a worker that has joined; `wait` reports the outcome.

        The outcome is a Result, Failed, TaskCancelled, or the end of the worker.
        """

    def cancel(self, worker: str, task_id: int) -> None:
        """Cancel a task, not its worker.

        TaskCancelled is reported within a kernel slice, or the Result that came before.
        """

    def now(self) -> float:
        """Return the seconds since the pool was opened: the clock of `started`."""

    def set_forecast(self, forecast: Forecast) -> int | None:
        """Set the remaining work, before the first `wait` and then a few times per second.

        Returns the number of workers that the pool will have for it; None if it does not depend
        on it.
        """

    def wait(self, seconds: float) -> list[Report]:
        """Return what happened since the last call, after at most about `seconds`; can be empty.

        Nothing is reported of tasks that `stop` ended.
        """
