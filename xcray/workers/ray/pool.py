"""Pool of Ray actors. Each actor is one worker that opens its data and runs batches.

A training's X and its transpose exist once per node. Actors that see the data set directory map it
(the page cache is shared). On other nodes the arrays come from the object store: they are put there
once and mapped read-only by all actors of the node. So nodes are filled one after the other, see
`schedule.placement`. Results are sent back as arrays and the driver commits them to disk, so the
object store never holds the only copy of a result.

Failures: an actor that dies is reported Lost and its batches run again elsewhere (work is
deterministic, so a repeated batch gives the same bits). Another actor takes its place, up to
REPLACEMENTS_PER_WORKER times the number of workers. Actors and batches that were lost with their
whole node do not count. Actors of a draining node finish their batch and leave.

An actor joins when the cluster has a CPU for it. With fewer CPUs than workers the others wait, and
join later when the cluster grows: an autoscaler sees the waiting actors. With a scaling `policy` no
more of them wait than the remaining work can use, and near the end idle workers are released node
by node, see `schedule.autoscaling`. An actor that gets no place though a node has room is requested
again, and if no actor gets a place at all the pool gives up with the reason, see
`schedule.placement_timeouts`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

import ray

from xcray.schedule.autoscaling import (
    Forecast,
    ScalingPolicy,
    desired_workers,
    workers_to_release,
)
from xcray.schedule.calls import Call
from xcray.schedule.events import Left, NodeLost
from xcray.schedule.placement import ONE_CPU, ResourceRequest
from xcray.schedule.placement_timeouts import AVOID_SECONDS, PlacementWatchdog
from xcray.workers.contract import WorkerStatus
from xcray.workers.pool import RemoteTaskRunner, Report, TaskWorker
from xcray.workers.ray.actors import (
    WorkerActor,
    node_seconds,
    not_ready_error,
    ready_refs,
    start_seconds,
)
from xcray.workers.ray.cluster_state import REFRESH_SECONDS
from xcray.workers.ray.session import connect, local_ray
from xcray.workers.ray.workers import RayWorkers
from xcray.workers.worker_group import CallResult

LOG: Final = logging.getLogger(__name__)
MIN_STORE_BYTES: Final = 256 << 20
# A wait takes time in proportion to the calls in progress, at 1,000 workers 1.5 ms. It gathers
# results for this time per call, 40 ms there; each worker has a next batch meanwhile.
GATHER_SECONDS: Final = 2e-5
# default limit of a job's workers on a shared cluster
MAX_CLUSTER_WORKERS: Final = 256


@contextmanager
def training_session(
    address: str | None, workers: int, store: int = MIN_STORE_BYTES
) -> Iterator[None]:
    """Connect to Ray for the length of a training.

    The session uses the Ray that this process is in already, the cluster at `address`, or a Ray
    of its own with one CPU per worker and `store` bytes of object store, at least
    MIN_STORE_BYTES. Ray spills what does not fit to disk.
    """
    if ray.is_initialized():
        yield
    elif address is None:
        with local_ray(num_cpus=workers, object_store_memory=max(store, MIN_STORE_BYTES)):
            yield
    else:
        with connect(address):
            yield


def scaling_policy_for(address: str | None) -> ScalingPolicy | None:
    """Return the scaling policy at a shared cluster; None for an own Ray, whose CPUs are free."""
    return ScalingPolicy(node_seconds=node_seconds()) if address is not None else None


class TaskActor(WorkerActor):
    """The actor of a worker that solves tasks."""

    def __init__(self, work: RemoteTaskRunner, job: str, worker: str) -> None:
        super().__init__(work, job, worker, work.counter)

    def open(self) -> bool:
        """Map the data if this node has it; return False otherwise."""
        local = self._work.open()
        if local is None:
            return False
        self._set_state(local)
        return True

    def load(self, *shared: Any) -> None:
        """Load the arrays that the driver shares, from the object store."""
        self._set_state(self._work.load(*shared))

    def _set_state(self, local: Any) -> None:
        """Compile or load the kernels for the data, and get ready for tasks."""
        self._work.warm_up(local)
        self._calls.worker = TaskWorker(self._work, local, self._calls.stopped)

    def _count(self, method: str, args: tuple[Any, ...]) -> None:
        """Count the items of a task."""
        self._counter.inc(len(args[0]))


class RayPool(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`.

    session: a context manager inside which Ray is connected. request: resources of each actor.
    shared: returns the arrays for nodes that do not see the files, or raises Unavailable.
    workers: maximum number of workers; without a policy, the exact number.
    """

    actor_class = TaskActor

    def __init__(
        self,
        work: RemoteTaskRunner,
        workers: int,
        session: AbstractContextManager[Any],
        job: str,
        shared: Callable[[], tuple[Any, ...]],
        *,
        request: ResourceRequest = ONE_CPU,
        policy: ScalingPolicy | None = None,
    ) -> None:
        super().__init__(work, session, job, request)
        self._n_workers = workers
        self._get_shared = shared
        self._policy = policy
        self._desired = workers if policy is None else 1
        self._idle_since: dict[str, float] = {}  # worker -> since when it is idle
        self._reports: list[Report] = []
        self._leaving: set[str] = set()
        self._started = 0
        self._watchdog = PlacementWatchdog()
        self._checked_at = 0.0
        self._waiting_for = ""

    def _clear(self) -> None:
        """Drop all references to objects and actors in Ray."""
        super()._clear()
        self._shared: tuple[Any, ...] | None = None

    @property
    def _n_desired(self) -> int:
        """Desired number of workers."""
        return self._desired

    @property
    def _n_expected(self) -> int:
        """Number of workers that had a node at the same time."""
        return max(1, self._locations.peak)

    def status(self) -> WorkerStatus:
        """Return the ready actors and the desired number."""
        return super().status()._replace(waiting_for=self._waiting_for)

    def submit(self, call: Call[Any, Any]) -> int:
        """Run a call; a worker that is leaving, or is gone, returns its task by leaving."""
        if call.worker in self._actors and call.worker not in self._leaving:
            return super().submit(call)
        self._tickets += 1
        return self._tickets

    def set_forecast(self, forecast: Forecast) -> int | None:
        """Request as many workers as the remaining work can use, release the others.

        Returns the number of workers to expect.
        """
        if self._policy is None:
            return None
        self._cluster.refresh(REFRESH_SECONDS)
        now, staying = time.monotonic(), self._staying_workers()
        self._idle_since = {
            worker: self._idle_since.get(worker, now)
            for worker in forecast.idle
            if worker in staying
        }
        nodes = {
            worker: node for worker, node in self._locations.placed.items() if worker in staying
        }
        for worker in workers_to_release(forecast, self._idle_since, nodes, now):
            self._reports += self._release(worker)
        self._desired = desired_workers(
            forecast, self._worker_counts(staying, now), self._n_workers, self._policy
        )
        return self._desired

    def wait(self, seconds: float) -> list[Report]:
        """Return results and changes of workers.

        Raises Unavailable if no worker is ready for too long.
        """
        reports, self._reports = self._reports, []
        reports += self._find_lost(self._locations.placed)
        reports += [NodeLost(worker) for worker in self._locations.poll_node_losses()]
        for worker in self._locations.on_draining():
            reports += self._release(worker)
        reports += self._adjust_size()
        reports += self._check_placement()
        references = [*self._pending, *self._steps]
        if reports:
            return reports
        if not references:
            time.sleep(seconds)
        gather = GATHER_SECONDS * len(references)
        return [
            report
            for reference in ready_refs(references, seconds, gather)
            for report in self._receive(reference)
        ]

    def _receive(self, reference: Any) -> list[Report]:
        """Decode a result, and end its worker if it is leaving."""
        out = list[Report]()
        for report in super()._receive(reference):
            if isinstance(report, CallResult):
                report = replace(report, result=self._work.decode_result(report.result))
            out += [report, *self._end_when_idle(report.worker)]
        return out

    def _staying_workers(self) -> list[str]:
        """Return workers that are not leaving, the oldest first."""
        return [worker for worker in self._actors if worker not in self._leaving]

    def _adjust_size(self) -> list[Report]:
        """Request missing actors, and cancel requests that the remaining work does not need."""
        staying = self._staying_workers()
        missing = self._desired - len(staying)
        if missing > 0:
            numbers = range(self._started, self._started + missing)
            self._started += missing
            self._request_workers([f"worker-{number}" for number in numbers])
        if self._policy is None:
            return []
        n_surplus = self._watchdog.surplus_to_cancel(time.monotonic(), -missing)
        nowhere = [
            worker
            for worker in staying
            if worker in self._requested and worker not in self._reserved
        ]
        surplus = nowhere[-n_surplus:] if n_surplus else []
        return [report for worker in surplus for report in self._release(worker)]

    def _check_placement(self) -> list[Report]:
        """Check that requested workers get a place.

        What is waited for is logged, and requests are retried. Raises Unavailable if no worker
        has been ready for the start timeout.
        """
        now = time.monotonic()
        if now < self._checked_at + REFRESH_SECONDS:
            return []
        self._checked_at = now
        action = self._watchdog.check(
            now,
            self._requested,
            len(self.available),
            self._locations.nodes_with_room(self._request),
            start_seconds(),
        )
        if action.give_up:
            raise not_ready_error("no Ray worker was", start_seconds(), action.reason)
        if action.retry or bool(action.reason) != bool(self._waiting_for):
            LOG.warning(
                "%s%s",
                action.reason or "no worker waits for a place any more",
                "; requesting again" if action.retry else "",
            )
        self._waiting_for = action.reason
        self._locations.avoid_nodes(action.avoid, AVOID_SECONDS)
        return [report for worker in action.retry for report in self._release(worker)]

    def _release(self, worker: str) -> list[Report]:
        """Let a worker finish its task and leave; one that is idle or not ready leaves now."""
        if worker in self._leaving:
            return []
        self._leaving.add(worker)
        tickets = [call.ticket for call in self._pending.values() if call.worker == worker]
        for ticket in tickets[1:]:
            self.cancel(worker, ticket)
        return self._end_when_idle(worker)

    def _end_when_idle(self, worker: str) -> list[Report]:
        """End a leaving actor once it has answered for all its tasks."""
        if worker not in self._leaving or any(
            call.worker == worker for call in self._pending.values()
        ):
            return []
        self._forget(worker)
        return [Left(worker)]

    def _forget(self, worker: str) -> None:
        """Kill an actor and drop all its pending calls."""
        super()._forget(worker)
        self._leaving.discard(worker)

    def _shared_refs(self) -> tuple[Any, ...]:
        """Return references to the shared arrays, which are put into the object store once."""
        if self._shared is None:
            self._shared = tuple(ray.put(each) for each in self._get_shared())
        return self._shared
