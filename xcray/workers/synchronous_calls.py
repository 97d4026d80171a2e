"""Synchronous calls: one method on all workers at a time, for solvers of family "group"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost, Task
from xcray.workers.rpc import span_of
from xcray.workers.timeline import LOST, Span
from xcray.workers.worker_group import CallFailed, CallResult, WorkerGroup

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
POLL_SECONDS: Final = 0.2  # between two checks of the stop flag
MAX_LOSSES_PER_WORKER: Final = 5  # in one round


class SynchronousCalls:
    """Rounds of calls on an open worker group; the contract is in `solvers.group_contract`.

    Results are in worker order, so sums of them do not depend on the order of arrival. The
    methods of these solvers are pure functions of their arguments and of the worker's rows. A
    lost worker is replaced and the new one gets the same call. Objects of a lost worker can be
    gone with its node. Then the method that needs them raises Unavailable (OBJECT_LOST), and the
    training goes back to the last saved weights.

    Example:
        >>> SynchronousCalls.__name__
        'SynchronousCalls'
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
        self.seconds = dict.fromkeys(group.workers, 0.0)  # of work per worker, for the report

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
                self.seconds[reply.worker] += reply.seconds
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
