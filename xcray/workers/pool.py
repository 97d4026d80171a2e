"""Pools: workers whose method is `solve`, and the contract of the tasks that they solve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from xcray.arrays import Int32
from xcray.schedule.autoscaling import Forecast
from xcray.schedule.events import Joined, Left, NodeLost, Task
from xcray.workers.contract import Workers
from xcray.workers.worker_group import Reply


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


class TaskWorker:
    """A worker of a pool: solves tasks with its own state until `stopped` returns True."""

    def __init__(self, work: TaskRunner, local: Any, stopped: Callable[[], bool]) -> None:
        self._work = work
        self._local = local
        self._stopped = stopped

    def solve(self, labels: Int32) -> tuple[None, Any]:
        """Return the result of items (n,) int32."""
        return None, self._work.solve(self._local, np.array(labels, np.int32), self._stopped)


Report: TypeAlias = Reply | Joined | Left | NodeLost


class Pool(Workers, Protocol):
    """Workers of class `TaskWorker` that come and go; any of them can solve any task.

    A worker that is leaving or gone gives no reply to a call: its end is reported.
    """

    def cancel(self, worker: str, ticket: int) -> None:
        """Cancel a call, not its worker.

        CallCancelled is reported within a kernel slice, or the CallResult that came before.
        """

    def set_forecast(self, forecast: Forecast) -> int | None:
        """Set the remaining work, before the first `wait` and then a few times per second.

        Returns the number of workers that the pool will have for it; None if it does not depend
        on it.
        """

    def wait(self, seconds: float) -> Sequence[Report]:
        """Return what happened since the last call, after at most about `seconds`; can be empty.

        Workers that were not available after `open` are reported as Joined. Raises Unavailable if
        no worker is ready for too long or workers keep being lost.
        """
