"""Method calls on a worker group outside of a schedule, such as opening, saving and loading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost, Task
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import DONE, Span
from xcray.workers.worker_group import (
    OBJECT_LOST,
    CallFailed,
    CallResult,
    Reply,
    WorkerGroup,
)

T = TypeVar("T")
R = TypeVar("R")
POLL_SECONDS: Final = 0.2  # between two checks of the stop flag
MAX_CALLS_AHEAD: Final = 2  # pending calls per worker, so that the next one is there in time


class WorkerLost(Unavailable):
    """Workers or a node with their objects were lost; training goes back to a checkpoint or starts.

    workers: names of the lost workers, can be empty.
    """

    code = "WORKERS_LOST"

    def __init__(self, *workers: str) -> None:
        super().__init__(f"{', '.join(workers) or 'a node'} was lost")
        self.workers = workers


def span_of(result: CallResult[Any, Any], task: Task) -> Span:
    """Return a finished call as a span of the timeline."""
    at, cpu = (result.worker, task, result.started, result.seconds), result.cpu_seconds
    return Span(*at, DONE, cpu_seconds=cpu)


class CallingGroup(Protocol):
    """What `call_many` needs of a worker group."""

    def submit(self, call: Call[Any, Any]) -> int:
        """See `WorkerGroup`."""

    def wait(self, seconds: float) -> list[Reply]:
        """See `WorkerGroup`."""


class RecordedGroup:
    """A worker group whose finished calls are recorded as spans."""

    def __init__(self, group: WorkerGroup, record: Callable[[Span], None]) -> None:
        self._group = group
        self._record = record

    def submit(self, call: Call[Any, Any]) -> int:
        """Run a call; return its ticket."""
        return self._group.submit(call)

    def wait(self, seconds: float) -> list[Reply]:
        """Return what happened since the last call, and record the results."""
        replies = self._group.wait(seconds)
        for reply in replies:
            if isinstance(reply, CallResult):
                self._record(span_of(reply, Task(reply.ticket, (), 0.0)))
        return replies


def call_many(
    group: CallingGroup, calls: Sequence[Call[T, R]], stop: StopFlag | None = None
) -> Iterator[CallResult[T, R]]:
    """Run all `calls`, at most MAX_CALLS_AHEAD per worker at a time; yield results in order.

    Replies to other calls are dropped, so only one list of calls can run at a time. Raises
    WorkerLost, what a method raised, and Stopped if `stop` is set.
    """
    waiting: dict[str, deque[int]] = {}
    for number, request in enumerate(calls):
        waiting.setdefault(request.worker, deque()).append(number)
    pending: dict[int, int] = {}  # ticket -> number of the call
    results: dict[int, CallResult[T, R]] = {}

    def send(worker: str) -> None:
        number = waiting[worker].popleft()
        pending[group.submit(calls[number])] = number

    for worker, numbers in waiting.items():
        for _ in range(min(MAX_CALLS_AHEAD, len(numbers))):
            send(worker)
    for number in range(len(calls)):
        while number not in results:
            for reply in results_of(group.wait(POLL_SECONDS), pending):
                results[pending.pop(reply.ticket)] = reply
                if waiting[reply.worker]:
                    send(reply.worker)
            if stop is not None and stop.is_set():
                raise Stopped("stopped on request; the next run goes on from the last checkpoint")
        yield results.pop(number)


def call(group: WorkerGroup, request: Call[T, R]) -> CallResult[T, R]:
    """Run one call and wait for its result. Raises as `call_many`."""
    (result,) = call_many(group, [request])
    return result


def require_ref(handle: ObjectHandle[T | None] | None) -> ObjectHandle[T]:
    """Return a handle that a method must have returned. Raises ValueError if it is missing."""
    if handle is None:
        raise ValueError("a method that must create an object created none")
    return cast("ObjectHandle[T]", handle)


def fetch(group: WorkerGroup, handle: ObjectHandle[T | None] | None) -> T:
    """Return the object of a handle. Raises WorkerLost if it is gone with its node."""
    try:
        return group.fetch(require_ref(handle))
    except Unavailable as error:
        if error.code == OBJECT_LOST:
            raise WorkerLost() from error
        raise


def results_of(replies: Sequence[Reply], tickets: Any) -> list[CallResult[Any, Any]]:
    """Return the results of `tickets`. Raises WorkerLost, and what a method of them raised."""
    lost = [reply.worker for reply in replies if isinstance(reply, Lost)]
    if lost:
        raise WorkerLost(*lost)
    results: list[CallResult[Any, Any]] = []
    for reply in replies:
        if isinstance(reply, Lost) or reply.ticket not in tickets:
            continue  # of an interval that was interrupted
        if isinstance(reply, CallFailed):
            object_lost = isinstance(reply.error, Unavailable) and reply.error.code == OBJECT_LOST
            raise WorkerLost() if object_lost else reply.error
        results.append(reply)
    return results
