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
from functools import partial
from typing import Any, Final

import numpy as np
import ray

from xcray.errors import ParameterError, Stopped
from xcray.schedule.autoscaling import (
    Forecast,
    ScalingPolicy,
    WorkerCounts,
    desired_workers,
    workers_to_release,
)
from xcray.schedule.events import Joined, Left, Lost, NodeLost, Task
from xcray.schedule.placement import ONE_CPU, ResourceRequest, free_slots
from xcray.schedule.placement_timeouts import AVOID_SECONDS, PlacementWatchdog
from xcray.workers.contract import WorkerStatus
from xcray.workers.pool import Failed, RemoteTaskRunner, Report, Result, TaskCancelled
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
from xcray.workers.ray.cluster_state import ANYWHERE, REFRESH_SECONDS
from xcray.workers.ray.session import connect, local_ray

LOG: Final = logging.getLogger(__name__)
MIN_STORE_BYTES: Final = 256 << 20
# default limit of a job's workers on a shared cluster
MAX_CLUSTER_WORKERS: Final = 256
# After this a worker with a reserved place that is not placed counts as waiting.
RESERVATION_SECONDS: Final = 15.0
# of silence, before workers are probed
QUIET_SECONDS_BEFORE_PROBE: Final = 30.0
SILENT_SECONDS: Final = 300.0  # until a worker that does not answer is given up


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
    """The actor of one worker: `open` its files, then `solve` batches one after the other."""

    def __init__(self, work: RemoteTaskRunner, job: str, worker: str) -> None:
        super().__init__(job, worker, work.counter)
        self._work = work
        self._leaving = False
        self._cancelled: set[int] = set()  # cancelled tasks

    def open(self) -> bool:
        """Map the data if this node has it; return False otherwise."""
        self._local = self._work.open()
        if self._local is None:
            return False
        self._work.warm_up(self._local)
        return True

    def load(self, *shared: Any) -> None:
        """Load the arrays that the driver shares, from the object store."""
        self._local = self._work.load(*shared)
        self._work.warm_up(self._local)

    def solve(self, task: int, labels: list[int]) -> tuple[Any, float, float, float]:
        """Solve a batch; return its value, None if it was cancelled, and its times.

        The times are the wall clock at its start, its seconds, and its processor seconds.
        """
        began, started, cpu = time.time(), time.monotonic(), time.thread_time()
        value = None
        if not self._leaving:
            try:
                called_off = partial(self._is_cancelled, task)
                value = self._work.solve(self._local, np.array(labels, np.int32), called_off)
                self._counter.inc(len(labels))
            except Stopped:
                if task not in self._cancelled:
                    raise
        self._cancelled.discard(task)
        seconds = time.monotonic() - started
        self._busy.inc(seconds)
        return value, began, seconds, time.thread_time() - cpu

    def _is_cancelled(self, task: int) -> bool:
        """Return whether a batch must stop."""
        return self._stop.is_set() or task in self._cancelled

    @ray.method(concurrency_group="control")
    def cancel(self, task: int) -> None:
        """Cancel a batch at its next slice, or when its turn comes."""
        self._cancelled.add(task)

    @ray.method(concurrency_group="control")
    def release(self) -> None:
        """Finish the current batch and start none of the waiting ones."""
        self._leaving = True


class RayPool(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`.

    session: a context manager inside which Ray is connected. request: resources of each actor.
    shared: returns the arrays for nodes that do not see the files, or raises Unavailable.
    workers: maximum number of workers; without a policy, the exact number.
    Any thread may call `resize` while the pool runs.
    """

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
        super().__init__(session)
        self._work = work
        self._n_workers = workers
        self._job = job
        self._get_shared = shared
        self._request = request
        self._policy = policy
        self._desired = workers if policy is None else 1
        self._solve: dict[str, Any] = {}  # worker -> its method, under a readable name
        # reference -> (worker, task); without a task the worker is starting
        self._pending: dict[Any, tuple[str, Task | None]] = {}
        self._locating: dict[Any, str] = {}  # reference of its location -> worker
        # workers without a node -> time of the request
        self._requested: dict[str, float] = {}
        self._reserved: set[str] = set()  # of these, those with a reserved place
        self._idle_since: dict[str, float] = {}  # worker -> since when it is idle
        self._reports: list[Report] = []
        self._shared: tuple[Any, ...] | None = None
        self._leaving: set[str] = set()
        self._started = 0
        self._peak = 0
        self._seen_refresh = 0
        self._watchdog = PlacementWatchdog()
        self._liveness = LivenessProbe(SILENT_SECONDS)
        # on a monotonic clock
        self._opened_at = self._last_reply_at = self._checked_at = 0.0
        self._waiting_for = ""

    def open(self) -> None:
        """Connect to Ray and start the actors. Raises Unavailable if Ray cannot be reached."""
        self._work.warm_up()  # one process fills numba's disk cache before many read it
        self._connect()
        self._opened_at = self._last_reply_at = time.monotonic()

    def resize(self, workers: int) -> None:
        """Set the maximum number of workers, from the next `wait` on.

        New actors join as the cluster has CPUs for them. If there are too many, the youngest
        finish their batch and leave. Raises ParameterError if `workers` is less than 1.
        """
        if workers < 1:
            raise ParameterError(f"a pool needs at least 1 worker, not {workers}")
        self._n_workers = workers

    def submit(self, worker: str, task: Task) -> None:
        """Send a task to an actor; one that is leaving, or is gone, returns it by leaving."""
        if worker in self._actors and worker not in self._leaving:
            self._pending[self._solve[worker].remote(task.id, list(task.labels))] = (worker, task)

    def cancel(self, worker: str, task_id: int) -> None:
        """Cancel a task; the actor goes on with its next one."""
        if worker in self._actors:
            self._actors[worker].cancel.remote(task_id)

    def now(self) -> float:
        """Return the seconds since the pool was opened."""
        return time.monotonic() - self._opened_at

    def status(self) -> WorkerStatus:
        """Return the ready actors and the desired number."""
        return self._make_status(self._target, self._n_ready(), self._locations.lost)._replace(
            peak=self._peak, waiting_for=self._waiting_for
        )

    def _n_ready(self) -> int:
        """Return how many actors have loaded their data."""
        return len(
            self._actors.keys()
            - {pending[0] for pending in self._pending.values() if pending[1] is None}
        )

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
            forecast, self._worker_counts(now), self._n_workers, self._policy
        )
        return self._target

    def wait(self, seconds: float) -> list[Report]:
        """Return results and changes of workers.

        Raises Unavailable if no worker is ready for too long.
        """
        reports, self._reports = (
            self._reports + self._poll_cluster() + self._adjust_size() + self._check_placement(),
            [],
        )
        if reports:
            return reports
        if not self._pending:
            time.sleep(seconds)
            return []
        references = [*self._pending, *self._locating]
        ready = ready_refs(references, seconds)
        if ready:
            self._last_reply_at = time.monotonic()
        return [report for reference in ready for report in self._receive(reference)]

    @property
    def _target(self) -> int:
        """Desired number of workers."""
        return min(self._desired, self._n_workers) if self._policy is not None else self._n_workers

    def _drop_references(self) -> None:
        """Drop all references to objects and actors in Ray."""
        super()._drop_references()
        for pending in (self._pending, self._locating, self._solve, self._requested):
            pending.clear()
        self._shared = None

    def _staying_workers(self) -> list[str]:
        """Return workers that are not leaving, the oldest first."""
        return [worker for worker in self._actors if worker not in self._leaving]

    def _worker_counts(self, now: float) -> WorkerCounts:
        """Return the current workers; those with a reserved place count as ready."""
        free = sum(free_slots(node, self._request) for node in self._locations.free_nodes())
        fresh = [
            worker
            for worker in self._reserved & self._requested.keys()
            if now - self._requested[worker] < RESERVATION_SECONDS
        ]
        references = self._requested.keys() - fresh
        waited = now - min((self._requested[worker] for worker in references), default=now)
        return WorkerCounts(
            len(self._staying_workers()) - len(references), len(references), free, waited
        )

    def _poll_cluster(self) -> list[Report]:
        """Report workers lost with their node, and release workers of draining nodes."""
        self._cluster.refresh(REFRESH_SECONDS)
        if self._cluster.n_refreshes == self._seen_refresh:
            return []
        self._seen_refresh = self._cluster.n_refreshes
        out = [
            report
            for worker in self._locations.on_dead_nodes()
            for report in self._on_lost(worker, "its node is gone")
        ]
        out += [NodeLost(worker) for worker in self._locations.poll_node_losses()]
        draining = [
            worker for worker in self._locations.on_draining() if worker not in self._leaving
        ]
        return out + [report for worker in draining for report in self._release(worker)]

    def _adjust_size(self) -> list[Report]:
        """Start missing actors and release surplus ones; report idle ones as Left."""
        staying, out = self._staying_workers(), list[Report]()
        if len(staying) < self._target:
            for strategy in self._locations.placement_strategies(
                self._request, self._target - len(staying)
            ):
                self._start_actor(strategy)
        surplus = staying[self._n_workers :]
        too_many = (
            self._watchdog.surplus_to_cancel(time.monotonic(), len(staying) - self._target)
            if self._policy is not None
            else 0
        )
        if too_many:
            nowhere = [
                worker
                for worker in staying
                if worker in self._requested and worker not in self._reserved
            ]
            surplus = list(dict.fromkeys([*surplus, *nowhere[-too_many:]]))
        for worker in surplus:
            out += self._release(worker)
        return out

    def _check_placement(self) -> list[Report]:
        """Check that requested workers get a place and that placed workers live.

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
            self._n_ready(),
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
        return [
            report for worker in action.retry for report in self._release(worker)
        ] + self._find_silent(now)

    def _find_silent(self, now: float) -> list[Report]:
        """Report workers that do not answer: a stopped process raises no error."""
        if now < self._last_reply_at + QUIET_SECONDS_BEFORE_PROBE:
            return []
        out = list[Report]()
        for worker, reason in self._liveness.poll_dead(
            {worker: self._actors[worker] for worker in self._locations.placed}
        ).items():
            out += self._on_lost(worker, reason)
        return out

    def _release(self, worker: str) -> list[Report]:
        """Let a worker finish its batch and leave; an idle worker leaves now."""
        self._leaving.add(worker)
        if (worker, None) in self._pending.values():  # not ready yet: the cluster is too small
            self._forget_requests(worker)
        else:
            self._actors[worker].release.remote()
        return self._end_when_idle(worker)

    def _end_when_idle(self, worker: str) -> list[Report]:
        """End a leaving actor once it has answered for all its batches."""
        if worker not in self._leaving or any(
            pending[0] == worker for pending in self._pending.values()
        ):
            return []
        self._leaving.discard(worker)
        self._liveness.forget(worker)
        self._forget_requests(worker)
        self._locations.remove(worker)
        ray.kill(self._actors.pop(worker))
        return [Left(worker)]

    def _forget_requests(self, worker: str) -> None:
        """Forget pending calls of a worker."""
        self._solve.pop(worker, None)
        self._pending = {
            reference: pending
            for reference, pending in self._pending.items()
            if pending[0] != worker
        }
        self._locating = {
            reference: name for reference, name in self._locating.items() if name != worker
        }
        self._requested.pop(worker, None)
        self._reserved.discard(worker)

    def _start_actor(self, strategy: Any) -> None:
        """Start one more actor; it is reported as Joined once its data is loaded."""
        worker = f"worker-{self._started}"
        self._started += 1
        actor = start_actor(
            TaskActor,
            self._job,
            worker,
            self._work,
            self._job,
            worker,
            request=self._request,
            scheduling_strategy=strategy,
        )
        self._actors[worker], self._requested[worker] = actor, time.monotonic()
        if strategy != ANYWHERE:
            self._reserved.add(worker)
        self._solve[worker] = actor.solve.options(name=f"xcray:{self._job}:batch")
        self._locating[actor.location.remote()] = worker
        self._pending[actor.open.options(name=f"xcray:{self._job}:open").remote()] = (worker, None)

    def _receive(self, reference: Any) -> list[Report]:
        """Convert one ready reference to reports."""
        if reference in self._locating:
            return self._on_located(self._locating.pop(reference), reference)
        worker, task = self._pending.pop(reference, (None, None))
        if worker is None or worker not in self._actors:
            return []
        try:
            value = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return [Failed(worker, task or Task(-1, (), 0.0), cause_of(error))]
        except ray.exceptions.RayError as error:
            return self._on_lost(worker, error)
        if task is not None:
            block, began, seconds, cpu = value
            started = began - self._opened
            if block is None:
                return [TaskCancelled(worker, task, started, seconds), *self._end_when_idle(worker)]
            return [
                Result(worker, task, self._work.decode_result(block), started, seconds, cpu),
                *self._end_when_idle(worker),
            ]
        if value is False:
            self._pending[self._actors[worker].load.remote(*self._shared_refs())] = (worker, None)
            return []
        self._peak = max(self._peak, self._n_ready())
        return [Joined(worker)]

    def _on_located(self, worker: str, reference: Any) -> list[Report]:
        """Record the node of a worker."""
        try:
            self._locations.set_node(worker, *ray.get(reference))
        except ray.exceptions.RayError as error:
            return self._on_lost(worker, error)
        self._requested.pop(worker, None)
        self._reserved.discard(worker)
        return []

    def _on_lost(self, worker: str, reason: object) -> list[Report]:
        """Forget a lost actor; another one takes its place at the next wait.

        It is killed too: if only its message was lost, the actor lives and holds its CPU.
        """
        if worker not in self._actors:
            return []
        ray.kill(self._actors.pop(worker))
        self._leaving.discard(worker)
        self._liveness.forget(worker)
        self._forget_requests(worker)
        self._locations.mark_lost(worker)
        self._check_losses(
            min(self._n_workers, max(1, self._started - self._locations.lost)), reason
        )
        return [Lost(worker)]

    def _shared_refs(self) -> tuple[Any, ...]:
        """Return references to the shared arrays, which are put into the object store once."""
        if self._shared is None:
            self._shared = tuple(ray.put(each) for each in self._get_shared())
        return self._shared
