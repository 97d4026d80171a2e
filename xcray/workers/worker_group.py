"""Contract of worker groups: workers with state, whose methods exchange large objects.

The workers of a pool solve tasks that are all alike, and any worker can run any task. A worker of a
group holds state: a shard of the data, say, with what was computed for it. The driver calls its
methods. An object that a method creates (a block of weights) stays where it was created. The driver
passes it on to the next worker by its `ObjectHandle`, without ever holding it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from xcray.errors import ParameterError, Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost
from xcray.workers.contract import Workers

T = TypeVar("T")
R = TypeVar("R")
OBJECT_LOST: Final = "OBJECT_LOST"  # code of the Unavailable for a lost object


@dataclass(frozen=True)
class CallResult(Generic[T, R]):
    """A finished method call.

    ref: handle of the object that it created, None if none. result: the value for the driver.
    seconds: of work, from `started` on (since the group was opened), without waiting for its turn
    or its arguments. cpu_seconds: processor time of the thread that ran it.
    """

    ticket: int
    worker: str
    ref: ObjectHandle[T] | None
    result: R
    seconds: float
    started: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class CallFailed:
    """A method call that raised `error`; its worker goes on with the next call.

    Stopped: the call was interrupted. Unavailable with code OBJECT_LOST: an argument was on a lost
    node.
    """

    ticket: int
    worker: str
    error: BaseException


@dataclass(frozen=True)
class CallCancelled(CallFailed):
    """A cancelled call, with `seconds` of work from `started`, about 0 if it had not started."""

    started: float
    seconds: float


Reply: TypeAlias = CallResult[Any, Any] | CallFailed | Lost


class WorkerFactory(Protocol):
    """Creates worker objects. It is sent to other processes: small, its data is in files."""

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the worker object of `worker`, created where it will run.

        Its public methods can be called: they return (object or None, result) and raise Stopped
        soon after `stopped` returns True. Array arguments can be read-only and shared: a method
        copies what it changes and what it keeps.
        """

    def warm_up(self) -> None:
        """Compile or load the kernels."""


class WorkerGroup(Workers, Protocol):
    """Workers with state, named `worker-0` and so on.

    A worker runs its calls one after the other, in submission order. A lost worker is reported
    once, none of its tickets is reported later, and it gets no calls until it is replaced.
    `submit` raises ParameterError for a worker that is not here.
    """

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order; constant."""

    def open(self) -> None:
        """Start the workers and wait until all initial ones are ready.

        Raises Unavailable if they cannot be started, and what creating a worker object raised.
        """

    def wait(self, seconds: float) -> list[Reply]:
        """Return what happened since the last call, after at most about `seconds`; can be empty.

        Returns at once if no ticket is pending. Raises Unavailable if workers keep being lost.
        """

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of an object of the driver, for use by workers."""

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object of a handle, read-only. Raises Unavailable (OBJECT_LOST)."""

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """Start new workers in place of lost ones, and wait until they are ready, as `open`.

        at_once: raise Unavailable immediately if there is no place soon, because others can go on
        without them.
        """

    def poll_new_workers(self, seconds_left: float | None = None) -> list[str]:
        """Return missing workers that became available since the last call.

        Other missing workers are requested where there is room, and where the work of
        `seconds_left` with the present workers is worth the start of a node. The call does not wait
        for them; a later call returns them.
        """

    def draining_workers(self) -> dict[str, float]:
        """Return workers on machines that are about to go, with the seconds left (can be infinite).

        Slow sources are polled every second at most.
        """

    def release(self, *workers: str) -> None:
        """Release workers and their state, and objects that only they own.

        They are reported as missing, not as lost.
        """

    def interrupt(self) -> None:
        """Stop all calls submitted so far within a kernel slice.

        Each is reported as CallFailed with Stopped, or as the CallResult that came before. Later
        calls are run: after an interruption a driver can still save state.
        """

    def stop(self) -> None:
        """Stop all calls within a kernel slice, later ones too.

        Each is reported as CallFailed with Stopped, or as the CallResult that came before.
        """

    def close(self) -> None:
        """End what `open` started; idempotent. Objects of handles are freed."""


class RefSlot(NamedTuple):
    """The place of an object among the arguments of a call: its `number`."""

    number: int


def worker_names(workers: int) -> tuple[str, ...]:
    """Return `worker-0` and so on."""
    return tuple(f"worker-{number}" for number in range(workers))


def split_refs(
    call: Call[Any, Any], workers: Iterable[str]
) -> tuple[tuple[Any, ...], list[ObjectHandle[Any]]]:
    """Return the arguments of a call with a RefSlot for each ObjectHandle, and the handles.

    Objects are sent next to the arguments, not inside them. Raises ParameterError for a worker that
    is not in `workers`.
    """
    if call.worker not in workers:
        raise ParameterError(
            f"there is no worker {call.worker!r}: "
            "it is not of this group, or it was lost and not replaced"
        )
    handles: list[ObjectHandle[Any]] = []

    def slot(each: Any) -> Any:
        if not isinstance(each, ObjectHandle):
            return each
        handles.append(each)
        return RefSlot(len(handles) - 1)

    return tuple(_each(arg, slot) for arg in call.args), handles


def _each(arg: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to an argument, or to each element of a list or tuple.

    Named tuples are treated like other arguments.
    """
    return type(arg)(change(each) for each in arg) if type(arg) in (list, tuple) else change(arg)


class CallOutcome(NamedTuple):
    """Outcome of a call at its worker.

    has_object: whether it created an object. cancelled: why it ended early, None if it did not.
    began: start on the clock of the caller.
    """

    result: Any
    has_object: bool
    cancelled: Stopped | None
    began: float
    seconds: float
    cpu_seconds: float


class CallRunner:
    """Runs the calls of one worker, one after the other; other threads can stop them.

    stop_all: returns whether the group was stopped. worker: the worker object, once it is created.
    """

    def __init__(self, stop_all: Callable[[], bool] = lambda: False) -> None:
        self.worker: Any = None
        self._stop_all = stop_all
        self._ended = False
        self._ticket = 0
        self._interrupted = -1  # tickets up to this one are interrupted
        self._cancelled: set[int] = set()

    def stopped(self) -> bool:
        """Return whether the current call must stop."""
        ticket = self._ticket
        return (
            self._ended
            or ticket <= self._interrupted
            or ticket in self._cancelled
            or self._stop_all()
        )

    def stop(self) -> None:
        """Stop all calls."""
        self._ended = True

    def interrupt(self, ticket: int) -> None:
        """Stop all calls up to this ticket."""
        self._interrupted = ticket

    def cancel(self, ticket: int) -> None:
        """Stop one call, when its turn comes if it has not started."""
        if ticket >= self._ticket:
            self._cancelled.add(ticket)

    def run(
        self,
        ticket: int,
        method: str,
        args: Sequence[Any],
        objects: Sequence[Any],
        clock: Callable[[], float],
    ) -> tuple[Any, CallOutcome]:
        """Call a method with the objects in their slots; return the created object and the outcome.

        Raises Stopped if the call was stopped and not cancelled, and what the method raises.
        """
        began, started, cpu = clock(), time.monotonic(), time.thread_time()
        self._ticket = ticket
        value = result = cancelled = None
        try:
            value, result = self._call(method, args, objects)
        except Stopped as error:
            if ticket not in self._cancelled:
                raise
            cancelled = error
        finally:
            self._cancelled.discard(ticket)
        seconds, cpu = time.monotonic() - started, time.thread_time() - cpu
        return value, CallOutcome(result, value is not None, cancelled, began, seconds, cpu)

    def _call(self, method: str, args: Sequence[Any], objects: Sequence[Any]) -> tuple[Any, Any]:
        """Call a method unless it was stopped before; return (object, result)."""
        if self.stopped():
            raise Stopped("stopped on request; this call was not started")
        function = getattr(self.worker, method)
        arguments = [
            _each(arg, lambda each: objects[each.number] if isinstance(each, RefSlot) else each)
            for arg in args
        ]
        value, result = function(*arguments)
        return value, result


def make_reply(
    ticket: int, worker: str, handle: ObjectHandle[Any] | None, outcome: CallOutcome, opened: float
) -> CallResult[Any, Any] | CallCancelled:
    """Return the reply for a call that ended without an error.

    handle: of the object, if it created one. opened: start of the group, on the clock of the
    outcome.
    """
    started, seconds = outcome.began - opened, outcome.seconds
    if outcome.cancelled is not None:
        return CallCancelled(ticket, worker, outcome.cancelled, started, seconds)
    return CallResult(ticket, worker, handle, outcome.result, seconds, started, outcome.cpu_seconds)


def object_lost(reason: object = "") -> Unavailable:
    """Return the error for a handle whose object is gone."""
    detail = str(reason).strip().splitlines()
    return Unavailable(
        f"a block is gone with the node that held it{': ' + detail[0] if detail else ''}; "
        "go back to the last checkpoint",
        code=OBJECT_LOST,
    )
