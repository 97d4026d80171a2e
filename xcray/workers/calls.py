"""Method calls on a worker group: on all workers at a time, or a list of calls of single ones.

`GroupCalls` replaces lost workers and calls them again; `call_many` raises WorkerLost, for workers
whose state has to be restored first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost, Task
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import DONE, LOST, Span
from xcray.workers.worker_group import (
    OBJECT_LOST,
    CallFailed,
    CallResult,
    Reply,
    WorkerGroup,
)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
POLL_SECONDS: Final = 0.2  # between two checks of the stop flag
MAX_CALLS_AHEAD: Final = 2  # pending calls per worker, so that the next one is there in time
MAX_LOSSES_PER_WORKER: Final = 5  # in one call of `GroupCalls`


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


class GroupCalls:
    """Calls of a method on all workers of an open group, see `solvers.group_contract.WorkerCalls`.

    Results are in worker order, so sums of them do not depend on the order of arrival. The
    methods of these solvers are pure functions of their arguments and of the worker's rows. A
    lost worker is replaced and the new one gets the same call. Objects of a lost worker can be
    gone with its node. Then the method that needs them raises Unavailable (OBJECT_LOST), and the
    training goes back to the last saved weights.
    """

    def __init__(
        self,
        group: WorkerGroup,
        stopped: Callable[[], bool] = lambda: False,
        record: Callable[[Span], None] = lambda span: None,
    ) -> None:
        """Initialise. record: receives the span of each call, as a task without labels."""
        self._group = group
        self._stopped = stopped
        self._record = record
        # worker -> start of its running call, on the group's clock
        self._submitted: dict[str, float] = {}
        # the same moment on the group's clock and on the local one
        self._seen = (0.0, time.monotonic())
        self.lost = 0  # number of lost and replaced workers

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._group.workers)

    def call(
        self, method: Callable[Concatenate[Any, P], tuple[T, R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Run a method on every worker and return (handle, result) of each, in worker order.

        Raises Stopped if `stopped` returns True, what a method raised, and Unavailable if workers
        keep being lost.
        """
        return self._run([Call(worker, method, *args, **kwargs) for worker in self._group.workers])

    def call_each(
        self,
        method: Callable[Concatenate[Any, A, P], tuple[T, R]],
        each: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Do the same with a first argument for each worker, in worker order."""
        pairs = zip(self._group.workers, each, strict=True)
        return self._run([Call(worker, method, own, *args, **kwargs) for worker, own in pairs])

    def _run(self, calls: Sequence[Call[T, R]]) -> list[tuple[ObjectHandle[T], R]]:
        """Run one call per worker and return (handle, result) of each, in worker order."""
        pending: dict[str, int] = {}  # worker -> ticket
        results: dict[str, CallResult[T, R]] = {}
        self._submitted.clear()
        lost_before = self.lost
        # workers lost since the last round
        self._replace(self._collect(0.0, pending, results), lost_before)
        targets = list(self._group.workers)
        while len(results) < self.size:
            for call in calls:
                if call.worker in targets:
                    self._submitted[call.worker] = self._now()
                    results.pop(call.worker, None)  # its object can be gone with the lost worker
                    pending[call.worker] = self._group.submit(call)
            self._check()
            targets = self._collect(POLL_SECONDS, pending, results)
            self._replace(targets, lost_before)
        # A method without an object has no handle; T is None then.
        replies = (results[worker] for worker in self._group.workers)
        return [(cast("ObjectHandle[T]", reply.ref), reply.result) for reply in replies]

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of `value`."""
        return self._group.put(value)

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object of a handle, read-only."""
        return self._group.fetch(handle)

    def _check(self) -> None:
        """Raise Stopped if a stop was requested, after interrupting the workers."""
        if self._stopped():
            self._group.interrupt()
            raise Stopped("stopped between two rounds; the last saved weights are kept")

    def _collect(
        self, seconds: float, pending: dict[str, int], results: dict[str, CallResult[T, R]]
    ) -> list[str]:
        """Add replies of this round to `results` and return the lost workers.

        Raises what a method raised.
        """
        lost = []
        for reply in self._group.wait(seconds):
            if isinstance(reply, Lost):
                lost.append(reply.worker)
                self._record_lost(reply.worker, pending)
            elif pending.get(reply.worker) != reply.ticket:
                continue  # of a round that ended with an error
            elif isinstance(reply, CallFailed):
                self._group.interrupt()
                raise reply.error
            else:
                results[reply.worker] = reply
                self._submitted.pop(reply.worker, None)
                self._seen = reply.started + reply.seconds, time.monotonic()
                task = Task(reply.ticket, (), 0.0)
                self._record(span_of(reply, task))
        return lost

    def _record_lost(self, worker: str, pending: Mapping[str, int]) -> None:
        """Record the call that a lost worker was busy with, if any."""
        started = self._submitted.pop(worker, None)
        if started is not None:
            seconds = max(0.0, self._now() - started)
            self._record(Span(worker, Task(pending[worker], (), 0.0), started, seconds, LOST))

    def _now(self) -> float:
        """Return the time on the group's clock, from the end of the last call."""
        then, moment = self._seen
        return then + time.monotonic() - moment

    def _replace(self, lost: list[str], lost_before: int) -> None:
        """Replace lost workers. Raises Unavailable if that happens too often in one round."""
        if not lost:
            return
        self.lost += len(lost)
        if self.lost - lost_before > MAX_LOSSES_PER_WORKER * self.size:
            raise Unavailable(
                f"{self.lost - lost_before} workers were lost in one round; "
                "see the logs of the workers"
            )
        self._group.replace(*lost)
