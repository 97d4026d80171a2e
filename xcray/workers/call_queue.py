"""Calls on a worker group, from submission to result: flow control, losses, stops, timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost, Task
from xcray.workers.timeline import DONE, LOST, STOPPED, Span
from xcray.workers.worker_group import OBJECT_LOST, CallFailed, CallResult, WorkerGroup

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


class _Pending(NamedTuple):
    """A submitted call; since: its submission, on the group's clock."""

    key: Any
    worker: str
    since: float


class CallQueue:
    """Calls that were submitted to an open group, by a key each, and their results.

    Replies to calls of other queues are dropped, so only one queue works at a time. stopped:
    whether to stop. record: receives the span of each call, as a task without labels.
    """

    def __init__(
        self,
        group: WorkerGroup,
        stopped: Callable[[], bool] = lambda: False,
        record: Callable[[Span], None] = lambda span: None,
    ) -> None:
        self._group = group
        self._stopped = stopped
        self._record = record
        self._pending: dict[int, _Pending] = {}  # by ticket
        self._ends: dict[str, float] = {}  # worker -> end of its last call, on the group's clock
        self._ready: list[tuple[Any, CallResult[Any, Any]]] = []

    @property
    def keys(self) -> set[Hashable]:
        """Keys of the calls whose results were not returned yet."""
        return {call.key for call in self._pending.values()} | {key for key, _ in self._ready}

    def submit(self, key: Hashable, call: Call[Any, Any]) -> None:
        """Run a call."""
        since = self._group.now()
        self._pending[self._group.submit(call)] = _Pending(key, call.worker, since)

    def results(self, seconds: float = POLL_SECONDS) -> list[tuple[Any, CallResult[Any, Any]]]:
        """Return what is done after at most `seconds`; can be empty.

        Raises WorkerLost, Stopped after an interruption of all workers, and what a method raised.
        After WorkerLost the calls of other workers go on.
        """
        replies = self._group.wait(seconds)
        lost = [reply.worker for reply in replies if isinstance(reply, Lost)]
        gone: BaseException | None = None  # an argument of a call is lost with its node
        for reply in replies:
            if isinstance(reply, Lost) or reply.ticket not in self._pending:
                continue  # of calls that were interrupted
            key = self._pending.pop(reply.ticket).key
            if isinstance(reply, CallFailed):
                if not _is_object_lost(reply.error):
                    self._group.interrupt()
                    raise reply.error
                gone = reply.error
                continue
            self._ends[reply.worker] = reply.started + reply.seconds
            self._record(span_of(reply, Task(reply.ticket, (), 0.0)))
            self._ready.append((key, reply))
        if lost or gone is not None:
            self._record_running(LOST, lost)
            self._pending = {
                ticket: call for ticket, call in self._pending.items() if call.worker not in lost
            }
            # their objects can be gone, too
            self._ready = [each for each in self._ready if each[1].worker not in lost]
            raise WorkerLost(*lost) from gone
        if self._stopped():
            self.interrupt()
            raise Stopped("stopped on request; the next run goes on from the last checkpoint")
        ready, self._ready = self._ready, []
        return ready

    def interrupt(self) -> None:
        """Stop all calls, and record the running ones."""
        self._group.interrupt()
        self._record_running(STOPPED, {call.worker for call in self._pending.values()})

    def _record_running(self, outcome: str, workers: Collection[str]) -> None:
        """Record the first pending call of each of `workers`."""
        now, recorded = self._group.now(), set[str]()
        for ticket, call in self._pending.items():
            if call.worker in workers and call.worker not in recorded:
                recorded.add(call.worker)
                began = max(call.since, self._ends.get(call.worker, 0.0))
                seconds = max(0.0, now - began)
                self._record(Span(call.worker, Task(ticket, (), 0.0), began, seconds, outcome))


def span_of(result: CallResult[Any, Any], task: Task) -> Span:
    """Return a finished call as a span of the timeline."""
    at, cpu = (result.worker, task, result.started, result.seconds), result.cpu_seconds
    return Span(*at, DONE, cpu_seconds=cpu)


def call_many(
    group: WorkerGroup,
    calls: Sequence[Call[T, R]],
    stopped: Callable[[], bool] = lambda: False,
    record: Callable[[Span], None] = lambda span: None,
) -> Iterator[CallResult[T, R]]:
    """Run all `calls`, at most MAX_CALLS_AHEAD per worker at a time; yield results in order.

    Raises as `CallQueue.results`.
    """
    queue = CallQueue(group, stopped, record)
    waiting: dict[str, deque[int]] = {}
    for number, request in enumerate(calls):
        waiting.setdefault(request.worker, deque()).append(number)
    results: dict[int, CallResult[T, R]] = {}

    def send(worker: str) -> None:
        if waiting[worker]:
            number = waiting[worker].popleft()
            queue.submit(number, calls[number])

    for worker in waiting:
        for _ in range(MAX_CALLS_AHEAD):
            send(worker)
    for number in range(len(calls)):
        while number not in results:
            for key, result in queue.results():
                results[key] = result
                send(result.worker)
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
        if _is_object_lost(error):
            raise WorkerLost() from error
        raise


def _is_object_lost(error: BaseException) -> bool:
    """Return whether an object is gone with its node."""
    return isinstance(error, Unavailable) and error.code == OBJECT_LOST
