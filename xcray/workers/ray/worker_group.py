"""Worker group on Ray: actors with state that pass objects through the object store.

An object that a method creates is put into the store of the worker's node. The driver owns the
reference and never reads the object. The reference is an argument of the next call, and Ray fetches
the object to that worker's node while the call before still runs there. Within a node nothing is
copied: arrays are mapped read-only. An object outlives the worker that created it, but not the node
that holds it.

Failures: an actor that dies or does not answer for long is reported Lost with all its tickets, and
killed, so that it cannot answer late. Its state is gone; `replace` starts another one. A call whose
argument was lost with its node is reported as CallFailed with OBJECT_LOST.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import ray

from xcray.errors import Unavailable
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Lost
from xcray.schedule.placement import ONE_CPU, ResourceRequest, free_slots
from xcray.workers.contract import WorkerStatus
from xcray.workers.ray.actors import (
    LivenessProbe,
    RayWorkers,
    WorkerActor,
    cause_of,
    node_seconds,
    not_ready_error,
    ready_refs,
    start_actor,
    start_seconds,
)
from xcray.workers.ray.cluster_state import REFRESH_SECONDS
from xcray.workers.worker_group import (
    CallFailed,
    CallResult,
    Reply,
    WorkerFactory,
    call_method,
    check_replacements,
    object_lost,
    split_refs,
    worker_names,
)

T = TypeVar("T")
LOG: Final = logging.getLogger(__name__)
PLACE_SECONDS: Final = 15.0  # that placing an actor takes if there is room
SILENT_SECONDS: Final = 300.0  # longer than any block takes to cross a network
CALL_COUNTER: Final = (
    "xcray_worker_calls",
    "Remote methods executed by this worker, block passes included.",
)


class _CallOutcome(NamedTuple):
    """Outcome of a call: result, whether it created an object, and the wall clock at its start."""

    result: Any
    has_ref: bool
    began: float
    seconds: float
    cpu_seconds: float


class _SubmittedCall(NamedTuple):
    """A running or waiting call; ref: reference of the object that it will create."""

    ticket: int
    worker: str
    ref: Any


class GroupActor(WorkerActor):
    """The actor of one worker: `open` creates its worker object, `call` runs methods in order."""

    def __init__(self, work: WorkerFactory, worker: str, job: str) -> None:
        super().__init__(job, worker, CALL_COUNTER, "method")
        self._factory = work
        self._worker = worker
        self._ticket = 0
        self._interrupted = -1  # tickets up to this one are interrupted

    def open(self) -> None:
        """Create the worker object."""
        self._factory.warm_up()
        self._state = self._factory.create_worker(self._worker, self._stopped)

    @ray.method(num_returns=2)
    def call(
        self, ticket: int, method: str, args: tuple[Any, ...], *objects: Any
    ) -> tuple[Any, _CallOutcome]:
        """Run a method; return the created object and the outcome."""
        began, started, cpu = time.time(), time.monotonic(), time.thread_time()
        self._ticket = ticket
        value, result = call_method(self._state, method, args, objects, self._stopped)
        seconds = time.monotonic() - started
        self._counter.inc(1.0, {"method": method})
        self._busy.inc(seconds)
        cpu = time.thread_time() - cpu
        return value, _CallOutcome(result, value is not None, began, seconds, cpu)

    @ray.method(concurrency_group="control")
    def interrupt(self, ticket: int) -> None:
        """Stop all calls up to this ticket."""
        self._interrupted = ticket

    def _stopped(self) -> bool:
        """Return whether the current call must stop."""
        return self._stop.is_set() or self._ticket <= self._interrupted


class RayWorkerGroup(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`, on as few nodes as possible.

    Blocks that move within a node are not copied. session: a context manager inside which Ray is
    connected; its object store must hold all created objects and those in transit, or Ray spills
    them to disk. request: resources of each actor. silent_seconds: when a worker that does not
    answer is given up, and the timeout of `fetch`. initial: number of workers at `open`, all by
    default; the others are requested later. min_ready: number of initial workers that `open`
    waits for, all by default; the others are requested later if there is no room.
    """

    def __init__(
        self,
        work: WorkerFactory,
        workers: int,
        session: AbstractContextManager[Any],
        job: str,
        *,
        silent_seconds: float = SILENT_SECONDS,
        request: ResourceRequest = ONE_CPU,
        initial: int | None = None,
        min_ready: int | None = None,
    ) -> None:
        super().__init__(session)
        self._request = request
        self._factory = work
        self._names = worker_names(workers)
        self._job = job
        self._initial = self._names[: initial or workers]
        self._min_ready = min_ready or len(self._initial)
        self._joining: dict[Any, str] = {}  # reference of its current start step -> worker
        self._located: set[str] = set()  # of these, those with a node
        self._requested_at = 0.0  # time of the last request; inf: request no more
        self._silent_seconds = silent_seconds
        self._liveness = LivenessProbe(silent_seconds)
        # (worker, method) -> the actor's method, under a readable name
        self._methods: dict[tuple[str, str], Any] = {}
        # reference of the outcome -> call
        self._pending: dict[Any, _SubmittedCall] = {}
        self._tickets = 0
        self._losses = 0
        self._stopped = False

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._names

    @property
    def available(self) -> tuple[str, ...]:
        """Workers that are ready, in order."""
        coming = set(self._joining.values())
        return tuple(
            worker for worker in self._names if worker in self._actors and worker not in coming
        )

    def status(self) -> WorkerStatus:
        """Return the ready actors, of all initial and joined ones."""
        live = len(self.available)
        return self._make_status(max(live, len(self._initial)), live, self._losses)

    def open(self) -> None:
        """Connect to Ray, start the actors and create their worker objects.

        Raises Unavailable if Ray or CPUs are not available.
        """
        self._factory.warm_up()  # one process fills numba's disk cache before many read it
        self._connect()
        try:
            self._cluster.refresh()
            self._start(
                self._initial[: max(self._min_ready, self._n_free_slots())], start_seconds()
            )
        except BaseException:
            self.close()
            raise

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """Start actors in place of lost ones, where there is a CPU.

        They are waited for as long as a node takes to start; with at_once, as long as an actor
        takes to be placed where there is room or will be soon.
        """
        check_replacements(lost, self._names, self.available)
        for worker in lost:
            self._forget(worker)  # it can be a joining one
        self._start(lost, self._replacement_timeout(lost) if at_once else node_seconds())

    def _replacement_timeout(self, lost: Sequence[str]) -> float:
        """Return how long the other workers can wait for replacements of `lost`.

        If the blocks do not fit into the remaining object stores, it is the start time of a node.
        If a node has room, or a lost worker was on a live node, it is PLACE_SECONDS. Otherwise
        Unavailable is raised.
        """
        self._cluster.refresh()
        left = set(self._locations.placed.values())
        if self._cluster.store_capacity(left) < self._request.store * len(self._initial):
            return node_seconds()
        if self._locations.died_on_live_node(lost) or self._n_free_slots():
            return PLACE_SECONDS
        raise not_ready_error(f"{', '.join(lost)}: no node has room, so none was", 0.0)

    def poll_new_workers(self) -> list[str]:
        """See `WorkerGroup`; requests without a place after PLACE_SECONDS are cancelled."""
        self._cluster.refresh(REFRESH_SECONDS)
        ready, now = self._poll_joining(), time.monotonic()
        if now > self._requested_at + PLACE_SECONDS:
            for worker in set(self._joining.values()) - self._located:
                self._forget(worker)
        missing = [worker for worker in self._names if worker not in self._actors]
        rooms = self._n_free_slots()
        if missing and rooms and self._requested_at < inf:
            self._joining |= self._start_actors(missing[:rooms])
            self._requested_at = now
        return ready

    def _n_free_slots(self) -> int:
        """Return how many workers fit, as of the last refresh.

        Object stores do not count, because more workers do not hold more data.
        """
        return sum(
            free_slots(node, self._request._replace(store=0.0))
            for node in self._locations.free_nodes()
        )

    def _poll_joining(self) -> list[str]:
        """Return requested workers that have become ready.

        If one of them failed no more are requested: the others can go on without them.
        """
        before = set(self._joining.values())
        try:
            self._advance_starts(self._joining, self._located, 0.0)
        except Exception as error:
            LOG.warning("a requested worker did not get ready; no more are requested: %s", error)
            self._requested_at = inf
            for worker in before:
                self._forget(worker)
        self._located &= set(self._joining.values())
        return [worker for worker in self._names if worker in before and worker in self.available]

    def draining_workers(self) -> dict[str, float]:
        """Return workers on draining nodes."""
        self._cluster.refresh(REFRESH_SECONDS)
        present = self.available
        return {
            worker: seconds
            for worker, seconds in self._locations.on_draining().items()
            if worker in present
        }

    def release(self, *workers: str) -> None:
        """End their actors; they do not count as lost."""
        for worker in workers:
            self._forget(worker)
            self._locations.remove(worker)

    def submit(self, call: Call[Any, Any]) -> int:
        """See `WorkerGroup`; objects are sent as references and fetched to the worker's node."""
        arguments, handles = split_refs(call, self._actors)
        self._tickets += 1
        ref, outcome = self._actor_method(call.worker, call.method).remote(
            self._tickets, call.method, arguments, *(handle.ref for handle in handles)
        )
        self._pending[outcome] = _SubmittedCall(self._tickets, call.worker, ref)
        return self._tickets

    def wait(self, seconds: float) -> list[Reply]:
        """Return results, errors, and lost workers. Raises Unavailable after too many losses."""
        replies = [
            reply
            for reference in ready_refs(self._pending, seconds)
            for reply in self._receive(reference)
        ]
        live = {worker: self._actors[worker] for worker in self.available}
        return replies + [
            reply
            for worker, reason in self._liveness.poll_dead(live).items()
            for reply in self._on_lost(worker, reason)
        ]

    def put(self, value: T) -> ObjectHandle[T]:
        """Put a value into the object store of the driver's node."""
        return ObjectHandle(ray.put(value))

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object, with arrays mapped from the object store of the driver's node.

        The arrays occupy the store while they live.
        """
        try:
            value: T = ray.get(handle.ref, timeout=self._silent_seconds)
            return value
        except ray.exceptions.ObjectLostError as error:
            raise object_lost(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise Unavailable(
                f"a block did not arrive in {self._silent_seconds:.0f} s; "
                "check the network, and the nodes with `ray status`, then resume"
            ) from error

    def interrupt(self) -> None:
        """Stop all calls submitted so far."""
        for actor in self._actors.values():
            actor.interrupt.remote(self._tickets)

    def stop(self) -> None:
        """Stop the actors at their next slice, and later replacements too."""
        self._stopped = True
        super().stop()

    def _drop_references(self) -> None:
        """Drop all references to objects and actors in Ray."""
        super()._drop_references()
        for held in (self._pending, self._methods, self._joining):
            held.clear()

    def _start(self, workers: Iterable[str], seconds: float) -> None:
        """Start actors, which must be placed within `seconds`, and create their worker objects.

        An actor that dies meanwhile is replaced. Raises what creating a worker object raised;
        then none of the actors is left.
        """
        waiting = self._start_actors(list(workers))  # reference -> starting worker
        placed: set[str] = set()  # starting workers with a node
        ends = time.monotonic() + seconds
        try:
            while waiting:
                died = self._advance_starts(waiting, placed, 1.0)
                placed.difference_update(died)
                waiting |= self._start_actors(died)
                missing = sorted(set(waiting.values()) - placed)
                if missing and time.monotonic() > ends:
                    names = ", ".join(missing[:3])
                    subject = (
                        f"{len(missing)} of {len(self._initial)} Ray workers ({names}) were not"
                    )
                    raise not_ready_error(subject, seconds)
        except BaseException:
            for worker in workers:
                self._forget(worker)
            raise

    def _advance_starts(
        self, waiting: dict[Any, str], placed: set[str], seconds: float
    ) -> list[str]:
        """Advance actors whose step is done within `seconds`; return those that died.

        Dead workers are removed from `waiting`.
        """
        lost = self._liveness.poll_dead(
            {worker: self._actors[worker] for worker in placed & set(waiting.values())}
        )
        for reference in ready_refs(waiting, seconds):
            worker = waiting.pop(reference)
            try:
                place = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise cause_of(error) from None
            except ray.exceptions.RayError as error:
                lost[worker] = str(error)
                continue
            if worker not in placed:
                placed.add(worker)
                self._locations.set_node(worker, *place)
                waiting[self._actors[worker].open.remote()] = worker
        for worker, reason in lost.items():
            self._on_lost(worker, reason)
        for reference in [reference for reference, worker in waiting.items() if worker in lost]:
            del waiting[reference]
        return list(lost)

    def _start_actors(self, workers: Sequence[str]) -> dict[Any, str]:
        """Start actors for these workers; return references of their locations."""
        if workers:
            self._cluster.refresh()
        out = {}
        for worker, strategy in zip(
            workers, self._locations.placement_strategies(self._request, len(workers)), strict=True
        ):
            actor = start_actor(
                GroupActor,
                self._job,
                worker,
                self._factory,
                worker,
                self._job,
                request=self._request,
                scheduling_strategy=strategy,
            )
            self._actors[worker] = actor
            if self._stopped:
                actor.stop.remote()
            out[actor.location.remote()] = worker
        return out

    def _receive(self, reference: Any) -> list[Reply]:
        """Convert one ready reference to replies."""
        call = self._pending.pop(reference, None)
        if call is None:
            return []  # of a worker that was lost a moment ago
        try:
            outcome: _CallOutcome = ray.get(reference, timeout=self._silent_seconds)
        except ray.exceptions.RayTaskError as error:
            return [CallFailed(call.ticket, call.worker, _call_error(error))]
        except ray.exceptions.RayError as error:
            return self._on_lost(call.worker, error)
        handle: ObjectHandle[Any] | None = ObjectHandle(call.ref) if outcome.has_ref else None
        return [
            CallResult(
                call.ticket,
                call.worker,
                handle,
                outcome.result,
                outcome.seconds,
                outcome.began - self._opened,
                outcome.cpu_seconds,
            )
        ]

    def _on_lost(self, worker: str, reason: object) -> list[Reply]:
        """Forget an actor that died or does not answer."""
        if worker not in self._actors:
            return []
        self._forget(worker)
        self._losses += 1
        self._locations.mark_lost(worker, self._losses)
        self._check_losses(len(self._names), reason)
        return [Lost(worker)]

    def _actor_method(self, worker: str, method: str) -> Any:
        """Return an actor's method, named after the job and the method in Ray's list of tasks."""
        key = (worker, method)
        if key not in self._methods:
            self._methods[key] = self._actors[worker].call.options(
                name=f"xcray:{self._job}:{method}"
            )
        return self._methods[key]

    def _forget(self, worker: str) -> None:
        """Kill an actor and drop all its pending calls."""
        self._methods = {key: method for key, method in self._methods.items() if key[0] != worker}
        if worker in self._actors:
            ray.kill(self._actors.pop(worker))
        self._liveness.forget(worker)
        self._located.discard(worker)
        for reference in [reference for reference, name in self._joining.items() if name == worker]:
            del self._joining[reference]
        self._pending = {
            reference: call for reference, call in self._pending.items() if call.worker != worker
        }


def _call_error(error: ray.exceptions.RayTaskError) -> BaseException:
    """Return what a method raised, or the error for an argument that is gone."""
    cause = error.cause
    return (
        object_lost(cause) if isinstance(cause, ray.exceptions.ObjectLostError) else cause_of(error)
    )
