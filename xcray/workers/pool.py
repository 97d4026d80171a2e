"""The contract of pools and of the work they do, and what they report beside schedule events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from xcray.arrays import Int32
from xcray.schedule.autoscaling import Forecast
from xcray.schedule.events import Event, Task
from xcray.system.memory import Footprint

POOLS: Final = ("serial", "threads", "ray")


class Work(Protocol):
    """What tasks are made of. The `labels` of a task are numbers of items: labels that a solver solves, chunks of rows to answer.

    An item gives the same result in any task, at any worker, at any time: that is what makes lost and copied tasks harmless.
    """

    def solve(self, local: Any, labels: Int32, stopped: Callable[[], bool] = ..., /) -> Any:
        """The result of items (n,) int32. local: what stays at a worker, it has a `sibling` for each other thread. Raises Stopped
        soon after `stopped` says True; what else it raises is raised by whoever drives the pool."""

    def warm_up(self) -> None:
        """Compile or load the kernels."""


class RemoteWork(Work, Protocol):
    """Work that travels to other processes: small, its bulk is in files."""

    @property
    def counter(self) -> tuple[str, str]:
        """Name and description of the metric that counts items done by a worker."""

    def open(self) -> Any | None:
        """What stays at a worker, from files; None where its node does not see them."""

    def load(self, *shared: Any) -> Any:
        """The same from what the driver shares with nodes that do not see the files."""

    def received(self, result: Any) -> Any:
        """A result as the driver's process uses it."""


@dataclass(frozen=True)
class Result:
    """A finished task with what the work made, a solver's is a Block; `seconds` of work from `started` (since the pool opened)."""

    worker: str
    task: Task
    block: Any
    started: float
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A task that raised: solvers are deterministic, so it is not tried again."""

    worker: str
    task: Task
    error: BaseException


@dataclass(frozen=True)
class GaveUp:
    """A task that was called off; its worker spent `seconds` on it from `started`, 0 when it had not begun."""

    worker: str
    task: Task
    started: float
    seconds: float


Report = Event | Result | Failed | GaveUp


class StopFlag:
    """A flag that many threads may set and read; once set it stays set."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask for a stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._event.is_set()


class WorkerStatus(NamedTuple):
    """Who is there of a pool or a team. wanted, present: workers; lost, nodes_lost: workers and machines that went without being
    told to, so far; stored: bytes in the object stores of the cluster that the workers are on, None where there is none;
    lost_with_nodes: of the workers lost, those that went with their whole node, which is not their fault; most: workers that were
    ready at a time, where they come and go by themselves; awaits: what is waited for, in words, empty when nothing is."""

    wanted: int
    present: int
    lost: int = 0
    nodes_lost: int = 0
    stored: int | None = None
    lost_with_nodes: int = 0
    most: int = 0
    awaits: str = ""


class Pool(Protocol):
    """Workers that solve tasks. One thread calls it; `wait` is the only call that blocks, `stop` the one others may make."""

    def open(self) -> None:
        """Start workers; each is reported by `wait` as Joined when it is ready. Raises Unavailable when none can be had."""

    def submit(self, worker: str, task: Task) -> None:
        """Give a task to a worker that has joined; its Result, Failed, GaveUp or the worker's end is reported by `wait`."""

    def cancel(self, worker: str, task_id: int) -> None:
        """Call a task off, not its worker: GaveUp is reported within a kernel slice, or the Result that came before."""

    def now(self) -> float:
        """Seconds since the pool opened: the clock of `started`."""

    def footprints(self) -> dict[str, Footprint]:
        """What workers in processes of their own hold, as far as they have answered; asks them anew, and waits for nobody."""

    def muster(self) -> WorkerStatus:
        """Who is there now; asks nobody that could be slow more often than every few seconds."""

    def foresee(self, outlook: Forecast) -> int | None:
        """Hear what is left to do, before the first `wait` and a few times a second from then on. How many workers it will have
        for that; None where that does not depend on it."""

    @property
    def nodes(self) -> dict[str, str]:
        """Address and identity of each worker's node, also of those that are gone; none in this process."""

    def wait(self, seconds: float) -> list[Report]:
        """What happened since the last call; waits at most about `seconds` for something. May be empty."""

    def stop(self) -> None:
        """Ask workers to give up their tasks within a kernel slice; nothing more is reported of them."""

    def close(self) -> None:
        """End what `open` started; idempotent."""
