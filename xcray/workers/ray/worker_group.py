"""Worker group on Ray: actors with state that pass objects through the object store.

A lost worker's state is gone; `replace` starts another one. A call whose argument was lost with its
node is reported as CallFailed with OBJECT_LOST.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final, TypeVar, cast

import ray

from xcray.errors import Unavailable
from xcray.schedule.autoscaling import Forecast, ScalingPolicy, desired_workers
from xcray.schedule.calls import ObjectHandle
from xcray.schedule.events import Joined, Lost
from xcray.schedule.placement import ONE_CPU, ResourceRequest, free_slots
from xcray.workers.pool import Report
from xcray.workers.ray.actors import (
    WorkerActor,
    node_seconds,
    not_ready_error,
    ready_refs,
    start_seconds,
)
from xcray.workers.ray.cluster_state import REFRESH_SECONDS
from xcray.workers.ray.workers import SILENT_SECONDS, RayWorkers
from xcray.workers.worker_group import (
    CallFailed,
    Reply,
    WorkerFactory,
    object_lost,
    worker_names,
)

T = TypeVar("T")
LOG: Final = logging.getLogger(__name__)
PLACE_SECONDS: Final = 15.0  # that placing an actor takes if there is room
CALL_COUNTER: Final = (
    "xcray_worker_calls",
    "Remote methods executed by this worker, block passes included.",
)


class GroupActor(WorkerActor):
    """The actor of a worker that a `WorkerFactory` creates."""

    def __init__(self, work: WorkerFactory, job: str, worker: str) -> None:
        super().__init__(work, job, worker, CALL_COUNTER, "method")

    def open(self) -> bool:
        """Create the worker object; return True."""
        self._work.warm_up()
        self._calls.worker = self._work.create_worker(self._worker, self._calls.stopped)
        return True

    def _count(self, method: str, args: tuple[Any, ...]) -> None:
        """Count a call."""
        self._counter.inc(1.0, {"method": method})


class RayWorkerGroup(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`, on as few nodes as possible.

    Blocks that move within a node are not copied. session: a context manager inside which Ray is
    connected; its object store must hold all created objects and those in transit, or Ray spills
    them to disk. request: resources of each actor. silent_seconds: when a worker that does not
    answer is given up, and the timeout of `fetch`. initial: number of workers at `open`, all by
    default; the others are requested later. min_ready: number of initial workers that `open`
    waits for, all by default; the others are requested later if there is no room. policy: when a
    worker without a place is requested, None for never.
    """

    actor_class = GroupActor

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
        policy: ScalingPolicy | None = None,
    ) -> None:
        super().__init__(work, session, job, request, silent_seconds)
        self._names = worker_names(workers)
        self._initial = self._names[: initial or workers]
        self._min_ready = min_ready or len(self._initial)
        self._policy = policy
        self._requested_at = 0.0  # time of the last request; inf: request no more

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._names

    @property
    def available(self) -> tuple[str, ...]:
        """Workers that are ready, in order."""
        ready = super().available
        return tuple(worker for worker in self._names if worker in ready)

    @property
    def _n_desired(self) -> int:
        """All initial and joined workers."""
        return max(len(self.available), len(self._initial))

    @property
    def _n_expected(self) -> int:
        """All workers."""
        return len(self._names)

    def open(self) -> None:
        """Connect to Ray, start the actors and create their worker objects.

        Raises Unavailable if Ray or CPUs are not available.
        """
        super().open()
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

    def poll_new_workers(self, seconds_left: float | None = None) -> list[str]:
        """See `WorkerGroup`; requests without a place after PLACE_SECONDS are cancelled.

        The policy keeps those for which a node is worth its start: an autoscaler sees them. If a
        requested worker fails no more are requested: the others can go on without them.
        """
        joined = list[str]()
        try:
            joined += [each.worker for each in self._poll_starts(0.0) if isinstance(each, Joined)]
        except Exception as error:
            LOG.warning("a requested worker did not get ready; no more are requested: %s", error)
            self._requested_at = inf
            self._cancel_starts()
        now = time.monotonic()
        demand = self._demand(seconds_left, now)
        if now > self._requested_at + PLACE_SECONDS:
            for worker in list(self._requested)[demand:]:
                self._forget(worker)
        missing = [worker for worker in self._names if worker not in self._actors]
        n = max(self._n_free_slots(), demand - len(self._requested))
        if missing and n and self._requested_at < inf:
            self._cluster.refresh()
            self._request_workers(missing[:n])
            self._requested_at = now
        return joined

    def _demand(self, seconds_left: float | None, now: float) -> int:
        """Return how many workers without a place the remaining work can use."""
        if self._policy is None or seconds_left is None:
            return 0
        counts = self._worker_counts(self._actors, now)
        parts = len(self._names) - counts.ready  # that can get a worker of their own
        work = Forecast(seconds_left * len(self.available), parts, 0, ())
        return desired_workers(work, counts, len(self._names), self._policy) - counts.ready

    def _n_free_slots(self) -> int:
        """Return how many workers fit, as of the last refresh.

        Object stores do not count, because more workers do not hold more data.
        """
        return sum(
            free_slots(node, self._request._replace(store=0.0))
            for node in self._locations.free_nodes()
        )

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

    def wait(self, seconds: float) -> list[Reply]:
        """Return results, errors, and lost workers. Raises Unavailable after too many losses."""
        reports = [
            report
            for reference in ready_refs(self._pending, seconds)
            for report in self._receive(reference)
        ]
        reports += self._find_lost(self.available)
        return cast("list[Reply]", reports)

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

    def _start(self, workers: Sequence[str], seconds: float) -> None:
        """Start actors, which must be placed within `seconds`, and create their worker objects.

        An actor that dies meanwhile is replaced. Raises what creating a worker object raised;
        then none of the actors is left.
        """
        self._cancel_starts()  # those of `poll_new_workers`, which requests them again
        missing, ends = list(workers), time.monotonic() + seconds
        try:
            while missing or self._steps:
                if missing:
                    self._cluster.refresh()
                    self._request_workers(missing)
                missing = [each.worker for each in self._poll_starts(1.0) if isinstance(each, Lost)]
                waiting = sorted(self._requested)
                if waiting and time.monotonic() > ends:
                    names = ", ".join(waiting[:3])
                    subject = (
                        f"{len(waiting)} of {len(self._initial)} Ray workers ({names}) were not"
                    )
                    raise not_ready_error(subject, seconds)
        except BaseException:
            for worker in workers:
                self._forget(worker)
            raise

    def _poll_starts(self, seconds: float) -> list[Report]:
        """Take the steps of starting actors that are ready within `seconds`; return the reports.

        Raises what creating a worker object raised.
        """
        placed = [worker for worker in self._steps.values() if worker not in self._requested]
        reports = self._find_lost(placed)
        for reference in ready_refs(self._steps, seconds):
            reports += self._receive(reference)
        for report in reports:
            if isinstance(report, CallFailed):
                raise report.error
        return reports

    def _cancel_starts(self) -> None:
        """End the actors that are not ready yet."""
        for worker in set(self._steps.values()):
            self._forget(worker)
