"""Common parts of workers that are Ray actors: start, control thread, liveness and metrics."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping
from itertools import count
from math import inf
from typing import Any, Final, cast

import ray
from ray.util.metrics import Counter

from xcray.errors import ParameterError, Unavailable, XcrayError
from xcray.schedule.autoscaling import ScalingPolicy
from xcray.schedule.placement import ResourceRequest
from xcray.system.memory import anonymous_bytes
from xcray.workers.worker_group import CallOutcome, CallRunner

BUSY_COUNTER: Final = (
    "xcray_busy_seconds",
    "Seconds of work of this worker, whether or not it counted",
)
PROBE_SECONDS: Final = 5.0  # between two probes


class WorkerActor:
    """The process of a worker: one thread works, another one answers control calls such as `stop`.

    A subclass defines `open`, which creates the worker object. Ray exports two metrics of each
    worker, prefixed with `ray_` and with the tags run and worker: the `counter` of its work, and
    `xcray_busy_seconds`. There are no metrics per batch or pass, because each name would remain a
    time series forever.
    """

    def __init__(
        self, work: Any, job: str, worker: str, counter: tuple[str, str], *tags: str
    ) -> None:
        self._work = work
        self._worker = worker
        self._label = f"{worker} of {job}"
        self._calls = CallRunner()
        self._counter = _counter(job, worker, counter, *tags)
        self._busy = _counter(job, worker, BUSY_COUNTER)

    def __repr__(self) -> str:
        """Return the name that Ray's logs and its dashboard show."""
        return self._label

    def open(self) -> bool:
        """Create the worker object; return False if it needs the arrays that the driver shares."""
        raise NotImplementedError

    @ray.method(num_returns=2)
    def call(
        self, ticket: int, method: str, args: tuple[Any, ...], *objects: Any
    ) -> tuple[Any, CallOutcome]:
        """Run a method; return the created object and the outcome."""
        value, outcome = self._calls.run(ticket, method, args, objects, time.time)
        if outcome.cancelled is None:
            self._count(method, args)
        self._busy.inc(outcome.seconds)
        return value, outcome

    def _count(self, method: str, args: tuple[Any, ...]) -> None:
        """Count the work of a finished call."""
        raise NotImplementedError

    @ray.method(concurrency_group="control")
    def location(self) -> tuple[str, str]:
        """Return the address and the id of the worker's node."""
        address: Any = ray.util.get_node_ip_address  # it has no type annotations
        return address(), ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Stop the current work at its next slice, and all later work."""
        self._calls.stop()

    @ray.method(concurrency_group="control")
    def interrupt(self, ticket: int) -> None:
        """Stop all calls up to this ticket."""
        self._calls.interrupt(ticket)

    @ray.method(concurrency_group="control")
    def cancel(self, ticket: int) -> None:
        """Stop one call at its next slice, or when its turn comes."""
        self._calls.cancel(ticket)

    @ray.method(concurrency_group="control")
    def pid(self) -> int:
        """Return the process id of the worker."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def memory_usage(self) -> int | None:
        """Return the anonymous bytes of the worker's process."""
        return anonymous_bytes()


def _counter(job: str, worker: str, counter: tuple[str, str], *tags: str) -> Any:
    """Return a metric of a worker, by name and description."""
    metric = Counter(*counter, tag_keys=("run", "worker", *tags))
    metric.set_default_tags({"run": job, "worker": worker})
    return metric


@functools.cache
def _remote_class(kind: Any, name: str) -> Any:
    """Return a class of actors under a name of its own, which Ray's dashboard shows."""
    make: Any = ray.remote  # its type annotations lack concurrency groups
    return make(concurrency_groups={"control": 1})(type(name, (kind,), {}))


def start_actor(
    kind: type[WorkerActor],
    work: Any,
    job: str,
    worker: str,
    request: ResourceRequest,
    scheduling_strategy: Any,
) -> Any:
    """Start an actor named `xcray:JOB:WORKER` that takes the resources of `request`.

    Its class is named after the solver that `work` has, such as `PPDSparseWorker`, or else after
    the class of `work`. While dead actors still have that name, it is `xcray:JOB:WORKER.2` and so
    on. The actor works in one thread, because its state is not thread-safe, and is controlled in
    another one. Ray neither restarts it nor repeats its calls: the driver decides what follows a
    loss.
    """
    named_after = type(getattr(work, "solver", work)).__name__.removesuffix("Solver")
    remote = _remote_class(cast("Any", kind), f"{named_after}Worker")
    for life in count(1):
        name = f"xcray:{job}:{worker}" + (f".{life}" if life > 1 else "")
        try:
            once = remote.options(
                name=name,
                num_cpus=request.cpus,
                memory=int(request.memory) or None,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=1,
                scheduling_strategy=scheduling_strategy,
            )
            return once.remote(work, job, worker)
        except ray.exceptions.ActorAlreadyExistsError:
            continue
    raise AssertionError("count has no end")


def node_seconds() -> float:
    """Return about how long a node takes to start: XCRAY_RAY_NODE_SECONDS, 60 by default.

    Raises ParameterError if the value is invalid.
    """
    return _seconds_of("XCRAY_RAY_NODE_SECONDS", ScalingPolicy().node_seconds)


def start_seconds() -> float:
    """Return when a job without a worker gives up: XCRAY_RAY_START_SECONDS, 120 by default.

    Raises ParameterError if the value is invalid.
    """
    return _seconds_of("XCRAY_RAY_START_SECONDS", 120.0)


def _seconds_of(name: str, otherwise: float) -> float:
    """Return a duration from the environment."""
    value = os.environ.get(name, "")
    try:
        seconds = float(value or otherwise)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < inf:
        raise ParameterError(f"{name} must be a number of seconds above 0, not {value!r}")
    return seconds


def not_ready_error(subject: str, seconds: float, reason: str = "") -> Unavailable:
    """Return the error for actors that do not start in time.

    subject: for example "no Ray worker was". reason: what was waited for last.
    """
    detail = f" ({reason})" if reason else ""
    return Unavailable(
        f"{subject} ready after {seconds:.0f} s{detail}; "
        "does the cluster have a free CPU for each worker, and memory? see `ray status`",
        code="RAY_NO_CPU",
    )


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """Return what the worker raised; errors that are not xcray's keep their remote trace."""
    cause = error.cause
    return cause if isinstance(cause, XcrayError) else error


class MemoryProbe:
    """Polls the memory usage of actors without waiting."""

    def __init__(self) -> None:
        self._pending: dict[Any, str] = {}  # reference -> worker

    def poll(self, actors: Mapping[str, Any]) -> dict[str, int]:
        """Return the replies since the last call; actors with a pending request get no new one."""
        out = {}
        for reference in ready_refs(self._pending):
            worker = self._pending.pop(reference)
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError:
                continue  # it died, which the callers of its work report
            if outcome is not None:
                out[worker] = outcome
        for worker in actors.keys() - self._pending.values():
            self._pending[actors[worker].memory_usage.remote()] = worker
        return out


class LivenessProbe:
    """Finds actors that died while they had no call, and actors that do not answer for `seconds`.

    A stopped process or a frozen machine raises no error. An actor answers during its work, but not
    while an argument of a call is on its way: `seconds` must be longer than that.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0
        # worker -> (reference, time of the probe)
        self._pending: dict[str, tuple[Any, float]] = {}

    def poll_dead(self, actors: Mapping[str, Any]) -> dict[str, str]:
        """Return workers to give up, with the reason; probes at most every PROBE_SECONDS."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + PROBE_SECONDS
        out = {}
        for worker, actor in actors.items():
            reference, since = self._pending.get(worker, (None, now))
            if reference is None or ready_refs([reference]):
                self._pending[worker] = (actor.pid.remote(), now)
                if reference is not None and (reason := _death_reason(reference)):
                    out[worker] = reason
            elif now - since > self._seconds:
                out[worker] = f"it did not answer for {self._seconds:.0f} s"
        return out

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone or starts again."""
        self._pending.pop(worker, None)


def ready_refs(references: Iterable[Any], seconds: float = 0.0, gather: float = 0.0) -> list[Any]:
    """Return the references that are ready after at most `seconds`, without fetching them.

    All that are ready at most `gather` seconds after the first one are returned. A reference is
    ready with a result or an error.
    """
    pending = list(references)
    if not pending:
        return []
    ready, _ = ray.wait(pending, num_returns=1, timeout=seconds, fetch_local=False)
    if ready:
        ready, _ = ray.wait(pending, num_returns=len(pending), timeout=gather, fetch_local=False)
    return list(ready)


def _death_reason(answer: Any) -> str:
    """Return why an actor is dead, from the reply of a probe; empty if it is alive."""
    try:
        ray.get(answer)
    except ray.exceptions.RayError as error:
        return str(error)
    return ""
