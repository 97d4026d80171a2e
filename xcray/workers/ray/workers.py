"""Workers that are Ray actors: placement, start, calls, losses and end, for pools and groups.

An object that a method creates is put into the store of the worker's node. The driver owns the
reference and never reads the object. The reference is an argument of the next call, and Ray fetches
the object to that worker's node while the call before still runs there. Within a node nothing is
copied: arrays are mapped read-only. An object outlives the worker that created it, but not the node
that holds it.

An actor that dies, does not answer for long or is on a dead node is lost with all its tickets. It
is killed, so that it neither answers late nor holds its CPU.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NamedTuple

import ray

from xcray.errors import Unavailable
from xcray.schedule.autoscaling import WorkerCounts
from xcray.schedule.calls import Call, ObjectHandle
from xcray.schedule.events import Joined, Lost
from xcray.schedule.placement import ResourceRequest, free_slots
from xcray.telemetry.progress import Progress
from xcray.workers.contract import WorkerStatus
from xcray.workers.pool import Report
from xcray.workers.ray.actors import (
    LivenessProbe,
    MemoryProbe,
    WorkerActor,
    cause_of,
    start_actor,
)
from xcray.workers.ray.cluster_state import (
    ANYWHERE,
    REFRESH_SECONDS,
    ClusterView,
    WorkerLocations,
)
from xcray.workers.ray.gauges import TrainingGauges
from xcray.workers.worker_group import CallFailed, CallOutcome, make_reply, object_lost, split_refs

REPLACEMENTS_PER_WORKER: Final = 5  # replacements of lost actors, per worker
SILENT_SECONDS: Final = 300.0  # longer than any object takes to cross a network
# After this a worker with a reserved place that is not placed counts as waiting.
RESERVATION_SECONDS: Final = 15.0


class _SubmittedCall(NamedTuple):
    """A running or waiting call; ref: of the object that it will create; since: its submission."""

    ticket: int
    worker: str
    ref: Any
    since: float


class RayWorkers:
    """Actors by name, inside a session of Ray.

    work: what the actors of class `actor_class` work with; its `warm_up` compiles the kernels.
    session: a context manager inside which Ray is connected. request: resources of each actor.
    silent_seconds: when a worker that does not answer is given up.
    """

    actor_class: ClassVar[type[WorkerActor]]

    def __init__(
        self,
        work: Any,
        session: AbstractContextManager[Any],
        job: str,
        request: ResourceRequest,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._work = work
        self._session = session
        self._job = job
        self._request = request
        self._silent_seconds = silent_seconds
        self._is_open = self._stopped = False
        self._opened = self._opened_at = 0.0  # on the wall clock, on a monotonic clock
        self._cluster = ClusterView()
        self._locations = WorkerLocations(self._cluster)
        self._gauges = TrainingGauges(job)
        self._tickets = 0
        self._peak = 0
        self._clear()

    def _clear(self) -> None:
        """Drop all references to objects and actors in Ray."""
        self._actors: dict[str, Any] = {}
        self._steps: dict[Any, str] = {}  # reference of its current step of starting -> worker
        # workers without a node -> time of the request
        self._requested: dict[str, float] = {}
        self._reserved: set[str] = set()  # of these, those with a reserved place
        # reference of the outcome -> call
        self._pending: dict[Any, _SubmittedCall] = {}
        self._memory_probe = MemoryProbe()
        self._liveness = LivenessProbe(self._silent_seconds)

    @property
    def available(self) -> tuple[str, ...]:
        """Workers that are ready."""
        starting = set(self._steps.values())
        return tuple(worker for worker in self._actors if worker not in starting)

    @property
    def nodes(self) -> dict[str, str]:
        """Address and id of each worker's node; for a lost worker its last one."""
        return self._locations.names

    @property
    def _n_desired(self) -> int:
        """Desired number of workers."""
        raise NotImplementedError

    @property
    def _n_expected(self) -> int:
        """Number of workers to which the number of lost ones is compared."""
        raise NotImplementedError

    def now(self) -> float:
        """Return the seconds since `open`."""
        return time.monotonic() - self._opened_at

    def memory_usage(self) -> dict[str, int]:
        """Return the anonymous bytes of actors that replied since the last call."""
        return self._memory_probe.poll(self._actors)

    def status(self) -> WorkerStatus:
        """Return the ready actors and the desired number."""
        if self._is_open:
            self._cluster.refresh(REFRESH_SECONDS)
        lost, present, now = self._locations.lost, len(self.available), self.now()
        oldest = next(iter(self._pending.values()), None)
        return WorkerStatus(
            desired=self._n_desired,
            present=present,
            lost=lost,
            nodes_lost=self._cluster.nodes_lost,
            stored_bytes=self._cluster.stored_bytes if self._is_open else None,
            lost_with_nodes=lost - self._locations.crashes,
            peak=self._peak,
            calls_waiting=max(0, len(self._pending) - present),
            oldest_call_seconds=now - oldest.since if oldest else 0.0,
        )

    def export(self, step: Progress) -> None:
        """Export the progress of a training as gauges."""
        if self._is_open:
            self._gauges.export(step)

    def open(self) -> None:
        """Compile the kernels and connect to Ray. Raises Unavailable if it cannot be reached."""
        self._work.warm_up()  # one process fills numba's disk cache before many read it
        self._session.__enter__()
        self._is_open, self._opened, self._opened_at = True, time.time(), time.monotonic()

    def submit(self, call: Call[Any, Any]) -> int:
        """Run a call; its objects are sent as references and fetched to the worker's node."""
        arguments, handles = split_refs(call, self._actors)
        self._tickets += 1
        # in Ray's list of tasks: named after the job, the method, and the block or share, if any
        name = f"xcray:{self._job}:{call.method}" + (call.part and f" {call.part}")
        ref, outcome = (
            self._actors[call.worker]
            .call.options(name=name)
            .remote(self._tickets, call.method, arguments, *(handle.ref for handle in handles))
        )
        self._pending[outcome] = _SubmittedCall(self._tickets, call.worker, ref, self.now())
        return self._tickets

    def cancel(self, worker: str, ticket: int) -> None:
        """Cancel a call; the actor goes on with its next one."""
        if worker in self._actors:
            self._actors[worker].cancel.remote(ticket)

    def stop(self) -> None:
        """Stop the actors at their next slice, and those that start later."""
        self._stopped = True
        for actor in list(self._actors.values()):  # copy: another thread can request the stop
            actor.stop.remote()

    def close(self) -> None:
        """Kill the actors and leave Ray."""
        if not self._is_open:
            return
        self._is_open = False
        self._gauges.clear()
        try:
            for actor in self._actors.values():
                ray.kill(actor)
        finally:
            self._clear()
            self._session.__exit__(None, None, None)

    def _request_workers(self, workers: Sequence[str]) -> None:
        """Request actors, on as few nodes as possible; each is Joined once it is ready."""
        strategies = self._locations.placement_strategies(self._request, len(workers))
        for worker, strategy in zip(workers, strategies, strict=True):
            actor = start_actor(
                self.actor_class, self._work, self._job, worker, self._request, strategy
            )
            self._actors[worker], self._requested[worker] = actor, time.monotonic()
            if strategy != ANYWHERE:
                self._reserved.add(worker)
            if self._stopped:
                actor.stop.remote()
            self._steps[actor.location.remote()] = worker

    def _worker_counts(self, staying: Collection[str], now: float) -> WorkerCounts:
        """Return the numbers of those that stay; with a reserved place they count as ready."""
        free = sum(free_slots(node, self._request) for node in self._locations.free_nodes())
        fresh = [
            worker
            for worker in self._reserved & self._requested.keys()
            if now - self._requested[worker] < RESERVATION_SECONDS
        ]
        waiting = self._requested.keys() - fresh
        waited = now - min((self._requested[worker] for worker in waiting), default=now)
        return WorkerCounts(len(staying) - len(waiting), len(waiting), free, waited)

    def _shared_refs(self) -> tuple[Any, ...]:
        """Return references to the arrays for workers whose `open` returned False."""
        raise NotImplementedError

    def _receive(self, reference: Any) -> list[Report]:
        """Convert one ready reference to reports."""
        if reference in self._steps:
            return self._advance_start(self._steps.pop(reference), reference)
        call = self._pending.pop(reference, None)
        if call is None:
            return []  # of a worker that was lost a moment ago
        try:
            outcome: CallOutcome = ray.get(reference, timeout=self._silent_seconds)
        except ray.exceptions.RayTaskError as error:
            lost = isinstance(error.cause, ray.exceptions.ObjectLostError)
            why = object_lost(error.cause) if lost else cause_of(error)
            return [CallFailed(call.ticket, call.worker, why)]
        except ray.exceptions.RayError as error:
            return self._on_lost(call.worker, error)
        handle: ObjectHandle[Any] | None = ObjectHandle(call.ref) if outcome.has_object else None
        return [make_reply(call.ticket, call.worker, handle, outcome, self._opened)]

    def _advance_start(self, worker: str, reference: Any) -> list[Report]:
        """Take the next step of starting an actor: placed, opened, shared arrays loaded."""
        actor = self._actors[worker]
        try:
            value = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return [CallFailed(-1, worker, cause_of(error))]
        except ray.exceptions.RayError as error:
            return self._on_lost(worker, error)
        if worker in self._requested:
            self._locations.set_node(worker, *value)
            del self._requested[worker]
            self._reserved.discard(worker)
            opened = actor.open.options(name=f"xcray:{self._job}:open").remote()
        elif value is False:
            opened = actor.load.remote(*self._shared_refs())
        else:
            self._peak = max(self._peak, len(self.available))
            return [Joined(worker)]
        self._steps[opened] = worker
        return []

    def _find_lost(self, workers: Iterable[str]) -> list[Report]:
        """Report those of `workers` whose node is dead or that do not answer."""
        self._cluster.refresh(REFRESH_SECONDS)
        actors = {worker: self._actors[worker] for worker in workers}
        reasons = dict.fromkeys(self._locations.on_dead_nodes(), "its node is gone")
        reasons |= self._liveness.poll_dead(actors)
        return [
            report
            for worker, reason in reasons.items()
            if worker in actors
            for report in self._on_lost(worker, reason)
        ]

    def _on_lost(self, worker: str, reason: object) -> list[Report]:
        """Forget a lost actor. Raises Unavailable if too many were lost on live nodes."""
        if worker not in self._actors:
            return []
        self._locations.mark_lost(worker)
        self._forget(worker)
        allowed = REPLACEMENTS_PER_WORKER * self._n_expected
        if self._locations.crashes > allowed:
            self._cluster.refresh()  # some losses can be of a node that is dead by now
        if self._locations.crashes > allowed:
            raise Unavailable(
                f"{self._locations.crashes} Ray workers were lost one after the other; "
                "check their logs and memory, then resume",
                code="WORKERS_LOST",
                hint=f"the last one: {reason}"[:1000],
            )
        return [Lost(worker)]

    def _forget(self, worker: str) -> None:
        """Kill an actor and drop all its pending calls.

        It is killed even if it is dead: if only its message was lost, it lives and holds its CPU.
        """
        if worker in self._actors:
            ray.kill(self._actors.pop(worker))
        self._locations.remove(worker)
        self._liveness.forget(worker)
        self._requested.pop(worker, None)
        self._reserved.discard(worker)
        self._steps = {ref: name for ref, name in self._steps.items() if name != worker}
        self._pending = {ref: call for ref, call in self._pending.items() if call.worker != worker}
