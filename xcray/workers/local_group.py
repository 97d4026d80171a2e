"""Worker groups in this process: serial, and one thread per worker (kernels release the GIL)."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakSet

import numpy as np

from xcray.schedule.autoscaling import Forecast
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost
from xcray.solvers.contract import SolverState
from xcray.telemetry.progress import Progress
from xcray.workers.contract import WorkerStatus
from xcray.workers.pool import StopFlag, TaskRunner, TaskWorker
from xcray.workers.worker_group import (
    CallFailed,
    CallResult,
    CallRunner,
    Reply,
    WorkerFactory,
    make_reply,
    object_lost,
    split_refs,
    worker_names,
)

T = TypeVar("T")
LOCAL_NODE: Final = "local"  # the only node
_Outcome: TypeAlias = CallResult[Any, Any] | CallFailed
LOST_OBJECT: Final = object()  # value of a handle whose object was lost in a simulation


class _PendingCall(NamedTuple):
    """A method call that waits for its turn."""

    ticket: int
    worker: str
    method: str
    args: tuple[Any, ...]
    handles: list[ObjectHandle[Any]]


class _LocalWorker:
    """One worker from start to end; a replacement of the same name is another object."""

    def __init__(self, worker: str, work: WorkerFactory, stop: StopFlag) -> None:
        self.worker = worker
        self._factory = work
        self.calls = CallRunner(stop.is_set)

    def create_state(self) -> None:
        """Create the worker object, in the thread that will use it."""
        self.calls.worker = self._factory.create_worker(self.worker, self.calls.stopped)

    def run_call(self, call: _PendingCall, clock: Callable[[], float]) -> _Outcome:
        """Run a call in this thread; any exception becomes a CallFailed."""
        try:
            objects = [_deref(handle) for handle in call.handles]
            value, outcome = self.calls.run(call.ticket, call.method, call.args, objects, clock)
        except Exception as error:
            return CallFailed(call.ticket, self.worker, error)
        handle: ObjectHandle[Any] | None = ObjectHandle(value) if outcome.has_object else None
        return make_reply(call.ticket, self.worker, handle, outcome, 0.0)


class _LocalGroup(ABC):
    """Base of groups whose workers are this process; objects are passed by reference."""

    def __init__(self, work: WorkerFactory, workers: int) -> None:
        self._factory = work
        self._names = worker_names(workers)
        self._stop = StopFlag()
        self._live: dict[str, _LocalWorker] = {}
        self._pending: dict[int, str] = {}  # ticket -> worker
        self._lost: list[Reply] = []
        self._created: dict[str, WeakSet[ObjectHandle[Any]]] = {}
        self._tickets = 0
        self._opened = 0.0

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._names

    @property
    def available(self) -> tuple[str, ...]:
        """Workers without a simulated loss."""
        return tuple(worker for worker in self._names if worker in self._live)

    @property
    def nodes(self) -> dict[str, str]:
        """One node for all workers: this process."""
        return dict.fromkeys(self._names, LOCAL_NODE)

    def open(self) -> None:
        """Compile the kernels once, and create the worker objects."""
        self._opened = time.monotonic()
        self._factory.warm_up()
        self._start(self._names)

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """Create new workers of the same names."""
        self._start(lost)

    def poll_new_workers(self, seconds_left: float | None = None) -> list[str]:
        """Return no workers: lost threads are only replaced."""
        return []

    def draining_workers(self) -> dict[str, float]:
        """Return no workers: this process stays."""
        return {}

    def release(self, *workers: str) -> None:
        """End the workers."""
        for worker in workers:
            self._end(worker)

    def _end(self, worker: str) -> None:
        """End a worker; its tickets are not reported."""
        self._live.pop(worker).calls.stop()
        self._pending = {ticket: call for ticket, call in self._pending.items() if call != worker}

    def _start(self, workers: tuple[str, ...]) -> None:
        """Start new workers."""
        new_workers = [_LocalWorker(worker, self._factory, self._stop) for worker in workers]
        self._create_states(new_workers)
        self._live |= {worker_thread.worker: worker_thread for worker_thread in new_workers}

    @abstractmethod
    def _create_states(self, new_workers: list[_LocalWorker]) -> None:
        """Create the worker objects; an exception of one of them is raised."""

    @abstractmethod
    def _enqueue(self, call: _PendingCall) -> None:
        """Queue a call for its worker."""

    def submit(self, call: Call[Any, Any]) -> int:
        """See `WorkerGroup.submit`."""
        plain, handles = split_refs(call, self._live)
        self._tickets += 1
        self._pending[self._tickets] = call.worker
        self._enqueue(_PendingCall(self._tickets, call.worker, call.method, plain, handles))
        return self._tickets

    def _replies(self, results: list[_Outcome]) -> list[Reply]:
        """Return the replies to report, without late results of lost workers."""
        out, self._lost = self._lost, []
        for reply in results:
            if self._pending.pop(reply.ticket, None) is not None:
                if isinstance(reply, CallResult) and reply.ref is not None:
                    self._created.setdefault(reply.worker, WeakSet()).add(reply.ref)
                out.append(reply)
        return out

    def now(self) -> float:
        """Return the seconds since the group was opened."""
        return time.monotonic() - self._opened

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of this very value."""
        return ObjectHandle(value)

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the very value, with views of its arrays that are read-only as on Ray."""
        return cast("T", _read_only(_deref(handle)))

    def memory_usage(self) -> dict[str, int]:
        """Return no entries: the workers are this process."""
        return {}

    def export(self, step: Progress) -> None:
        """Export nothing: there is no cluster."""
        return

    def status(self) -> WorkerStatus:
        """Return the live workers; threads are lost only in simulations."""
        return WorkerStatus(len(self._names), len(self._live))

    def simulate_loss(self, worker: str, *, with_objects: bool = False) -> None:
        """Behave as if the worker's process died, for tests of recovery.

        with_objects: behave as if its node died, with all objects that its calls created.
        """
        self._end(worker)
        for handle in self._created.pop(worker, ()) if with_objects else ():
            handle.ref = LOST_OBJECT
        self._lost.append(Lost(worker))

    def cancel(self, worker: str, ticket: int) -> None:
        """Stop one call, when its turn comes if it has not started."""
        if worker in self._live:
            self._live[worker].calls.cancel(ticket)

    def set_forecast(self, forecast: Forecast) -> int | None:
        """Ignore the forecast and return None: idle threads cost nothing."""
        return None

    def interrupt(self) -> None:
        """Stop running calls at their next slice and drop waiting ones; later calls are run."""
        for worker_thread in list(self._live.values()):
            worker_thread.calls.interrupt(self._tickets)

    def stop(self) -> None:
        """Stop running calls at their next slice and drop waiting ones."""
        self._stop.set()

    def close(self) -> None:
        """Release the worker objects."""
        for worker_thread in self._live.values():
            worker_thread.calls.stop()
        self._live.clear()
        self._pending.clear()


class SerialGroup(_LocalGroup):
    """Group in the calling thread, for tests and debuggers.

    `wait` runs one call, in submission order.
    """

    def __init__(self, work: WorkerFactory, workers: int) -> None:
        super().__init__(work, workers)
        self._calls: deque[_PendingCall] = deque()

    def _create_states(self, new_workers: list[_LocalWorker]) -> None:
        """Create the worker objects in this thread."""
        for worker_thread in new_workers:
            worker_thread.create_state()

    def _enqueue(self, call: _PendingCall) -> None:
        """Queue a call for a later `wait`."""
        self._calls.append(call)

    def wait(self, seconds: float) -> list[Reply]:
        """Run the next call; `seconds` is not used, because nothing happens elsewhere."""
        while self._calls and not self._lost:
            call = self._calls.popleft()
            if call.ticket in self._pending:  # not of a lost worker
                return self._replies([self._live[call.worker].run_call(call, self.now)])
        return self._replies([])


class ThreadGroup(_LocalGroup):
    """Group with one thread per worker."""

    def __init__(self, work: WorkerFactory, workers: int) -> None:
        super().__init__(work, workers)
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._results: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()

    def _create_states(self, new_workers: list[_LocalWorker]) -> None:
        """Start a thread per worker, and wait until all worker objects exist."""
        states = list[Future[None]]()
        for new in new_workers:
            thread = self._threads[new.worker] = ThreadPoolExecutor(1, f"xcray-{new.worker}")
            states.append(thread.submit(new.create_state))
        try:
            for state in states:
                state.result()
        except BaseException:
            self.close()
            raise

    def _enqueue(self, call: _PendingCall) -> None:
        """Queue a call for its thread."""
        self._threads[call.worker].submit(self._run_call, self._live[call.worker], call)

    def _run_call(self, worker: _LocalWorker, call: _PendingCall) -> None:
        """Run a call in the thread of its worker."""
        self._results.put(worker.run_call(call, self.now))

    def wait(self, seconds: float) -> list[Reply]:
        """Return the first reply within `seconds`, and all others that are ready with it."""
        results: list[_Outcome] = []
        try:
            if self._pending and not self._lost:
                results.append(self._results.get(timeout=seconds))
            while True:
                results.append(self._results.get_nowait())
        except queue.Empty:
            return self._replies(results)

    def _end(self, worker: str) -> None:
        """End the thread at its next slice; its later results are not reported."""
        super()._end(worker)
        self._threads.pop(worker).shutdown(wait=False)

    def close(self) -> None:
        """Stop and join the threads."""
        super().close()
        for thread in self._threads.values():
            thread.shutdown()
        self._threads.clear()


class TaskFactory:
    """Creates the workers of a pool, each with its own scratch memory for the same state."""

    def __init__(self, work: TaskRunner, local: SolverState) -> None:
        self._work = work
        self._local = local

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> TaskWorker:
        """Return a worker."""
        return TaskWorker(self._work, self._local.clone_for_thread(), stopped)

    def warm_up(self) -> None:
        """Compile the kernels once, not in every thread."""
        self._work.warm_up(self._local)


def local_pool(
    work: TaskRunner, local: SolverState, threads: int | None
) -> SerialGroup | ThreadGroup:
    """Return a pool of `threads` threads, or of the calling thread if it is None.

    local: state of the data, which all workers share.
    """
    factory = TaskFactory(work, local)
    return SerialGroup(factory, 1) if threads is None else ThreadGroup(factory, threads)


def _deref(handle: ObjectHandle[T]) -> T:
    """Return the object of a handle. Raises Unavailable if a simulation lost it."""
    if handle.ref is LOST_OBJECT:
        raise object_lost()
    value: T = handle.ref
    return value


def _read_only(value: Any) -> Any:
    """Return an array, or the arrays of a dictionary or a (named) tuple, as read-only views."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if type(value) is dict:
        return {name: _read_only(each) for name, each in value.items()}
    if isinstance(value, tuple):
        parts = [_read_only(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
