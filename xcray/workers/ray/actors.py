"""What workers that are Ray actors have in common, in pools and in teams: their start, their control thread, their deaths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import count
from math import inf
from typing import Any, Final

import ray
from ray.util.metrics import Counter

from xcray.errors import ParameterError, Unavailable, XcrayError
from xcray.schedule.autoscaling import Thrift
from xcray.schedule.placement import A_CPU, Need
from xcray.system.memory import Footprint, footprint
from xcray.workers.pool import StopFlag, WorkerStatus
from xcray.workers.ray.cluster_state import LOOK_SECONDS, Surroundings, Whereabouts

REPLACEMENTS: Final = 5  # actors that may take a lost one's place, for each worker
BUSY: Final = (
    "xcray_busy_seconds",
    "Seconds that this worker was at work, whether or not it counted",
)
BEAT_SECONDS: Final = 5.0  # between two looks at who still answers


class WorkerActor:
    """The part of a worker that is its process: one thread works, and beside it another answers `stop`, `pid` and the like.

    Metrics of a worker, in Ray's export under `ray_` and the name, with the tags job and worker: `counter` of what it did, and
    `xcray_busy_seconds`. Those of a batch, or a visit, are not told apart there: each name would be a series for ever.
    """

    def __init__(self, job: str, worker: str, counter: tuple[str, str], *tags: str) -> None:
        self._stop = StopFlag()
        self._is = f"{worker} of {job}"
        self._counter = _counter(job, worker, counter, *tags)
        self._busy = _counter(job, worker, BUSY)

    def __repr__(self) -> str:
        """As Ray's logs and its dashboard call it."""
        return self._is

    @ray.method(concurrency_group="control")
    def place(self) -> tuple[str, str]:
        """Where it is: the address and the identity of its node."""
        address: Any = ray.util.get_node_ip_address  # it has no types
        return address(), ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Let the work under way end at its next slice."""
        self._stop.set()

    @ray.method(concurrency_group="control")
    def pid(self) -> int:
        """The worker's process."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def footprint(self) -> tuple[int, ...] | None:
        """What the worker's process holds: see `memory.Footprint`."""
        return footprint()


def _counter(job: str, worker: str, counter: tuple[str, str], *tags: str) -> Any:
    """A metric of a worker, by name and description."""
    made = Counter(*counter, tag_keys=("job", "worker", *tags))
    made.set_default_tags({"job": job, "worker": worker})
    return made


def start_actor(
    kind: type[WorkerActor], job: str, worker: str, *args: Any, need: Need = A_CPU, **options: Any
) -> Any:
    """An actor named `xcray:JOB:WORKER`, `xcray:JOB:WORKER.2` and so on while dead ones still have the names before; it takes the
    CPUs and the memory that `need` says.

    It works in one thread, for what it works on is not made for two, and is controlled in another. It is neither started again
    nor are its calls repeated by Ray: who lost a worker decides what follows.
    """
    make: Any = ray.remote  # its types know no concurrency groups
    remote = make(concurrency_groups={"control": 1})(kind)
    for life in count(1):
        name = f"xcray:{job}:{worker}" + (f".{life}" if life > 1 else "")
        try:
            once = remote.options(
                name=name,
                num_cpus=need.cpus,
                memory=int(need.memory) or None,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=1,
                **options,
            )
            return once.remote(*args)
        except ray.exceptions.ActorAlreadyExistsError:
            continue
    raise AssertionError("count has no end")


def node_seconds() -> float:
    """How long a node takes to come, about: XCRAY_RAY_NODE_SECONDS of the environment, 60 without. Raises ParameterError."""
    return _seconds_of("XCRAY_RAY_NODE_SECONDS", Thrift().node)


def start_seconds() -> float:
    """When a job gives up that has no worker: XCRAY_RAY_START_SECONDS of the environment, 120 without. Raises ParameterError."""
    return _seconds_of("XCRAY_RAY_START_SECONDS", 120.0)


def _seconds_of(name: str, otherwise: float) -> float:
    """A length of time that the environment may name."""
    text = os.environ.get(name, "")
    try:
        seconds = float(text or otherwise)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < inf:
        raise ParameterError(f"{name} must be a number of seconds above 0, not {text!r}")
    return seconds


def not_ready(who: str, seconds: float, why: str = "") -> Unavailable:
    """The error when actors do not start in time: `who`, like "no Ray worker was"; why: what was waited for last, in words."""
    said = f" ({why})" if why else ""
    return Unavailable(
        f"{who} ready after {seconds:.0f} s{said}; does the cluster have a free CPU for each worker, and memory? see `ray status`",
        code="RAY_NO_CPU",
    )


def check_losses(lost: int, workers: int, why: object) -> None:
    """Raise Unavailable when so many actors were lost that no more are to take their places; `why` is said of the last."""
    if lost > REPLACEMENTS * workers:
        raise Unavailable(
            f"{lost} Ray workers were lost one after the other; look at their logs and memory, then resume",
            code="WORKERS_LOST",
            hint=f"the last one: {why}"[:1000],
        )


def cause_of(error: ray.exceptions.RayTaskError) -> BaseException:
    """What the worker raised, as it was raised there: an error of xcray's as it was, any other with the trace of its process."""
    cause = error.cause
    return cause if isinstance(cause, XcrayError) else error


class Footprints:
    """Asks actors what they hold, and waits for nobody."""

    def __init__(self) -> None:
        self._asked: dict[Any, str] = {}  # reference -> worker

    def ask(self, actors: Mapping[str, Any]) -> dict[str, Footprint]:
        """What has been answered since the last call; who has not answered is not asked again."""
        out = {}
        for reference in answered(self._asked):
            worker = self._asked.pop(reference)
            try:
                held = ray.get(reference)
            except ray.exceptions.RayError:
                continue  # it died: who waits for its work hears of it and says so
            if held is not None:
                out[worker] = Footprint(*held)
        for worker in actors.keys() - self._asked.values():
            self._asked[actors[worker].footprint.remote()] = worker
        return out

    def clear(self) -> None:
        """Forget what was asked."""
        self._asked.clear()


class RayWorkers:
    """What pools and teams of actors are: actors by name, inside a session of Ray.

    session: a context manager inside which Ray is connected.
    """

    def __init__(self, session: AbstractContextManager[Any]) -> None:
        self._session = session
        self._is_open = False
        self._opened = 0.0
        self._actors: dict[str, Any] = {}
        self._footprints = Footprints()
        self._around = Surroundings()
        self._where = Whereabouts(self._around)

    def footprints(self) -> dict[str, Footprint]:
        """What the actors hold, as far as they have answered since the last call; those that have not are not asked again."""
        return self._footprints.ask(self._actors)

    def _mustered(self, wanted: int, present: int, lost: int) -> WorkerStatus:
        """These workers, with what the cluster they are on says of itself."""
        if self._is_open:
            self._around.look(LOOK_SECONDS)
        nodes_lost, with_nodes = self._around.nodes_lost, self._where.lost - self._where.crashes
        if not self._is_open:
            return WorkerStatus(wanted, 0, lost, nodes_lost, None, with_nodes)
        return WorkerStatus(wanted, present, lost, nodes_lost, self._around.stored, with_nodes)

    @property
    def nodes(self) -> dict[str, str]:
        """Address and identity of each worker's node; a lost worker's last."""
        return self._where.names

    def _check_losses(self, workers: int, why: object) -> None:
        """Raise Unavailable when too many died on nodes that live; those that went with their nodes are nobody's fault."""
        if self._where.crashes > REPLACEMENTS * workers:
            self._around.look()  # were some of them of a node that is dead by now?
        check_losses(self._where.crashes, workers, why)

    def stop(self) -> None:
        """Tell the actors to stop at their next slice."""
        if self._is_open:
            for actor in list(self._actors.values()):  # a copy: another thread may ask for the stop
                actor.stop.remote()

    def close(self) -> None:
        """Kill the actors and leave Ray."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            for actor in self._actors.values():
                ray.kill(actor)
        finally:
            self._forget_all()
            self._session.__exit__(None, None, None)

    def _connect(self) -> None:
        """Enter the session. Raises Unavailable when Ray can't be reached."""
        self._session.__enter__()
        self._is_open, self._opened = True, time.time()

    def _forget_all(self) -> None:
        """Drop all references to what is in Ray."""
        self._actors.clear()
        self._footprints.clear()


class Pulse:
    """Finds actors that died while nothing was asked of them, and those that say nothing for `seconds`: a process that is stopped,
    or a machine that is frozen, raises no error.

    An actor answers beside its work, but not while a thing it was asked with is on its way: `seconds` must be longer than that.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._asked: dict[str, tuple[Any, float]] = {}  # worker -> reference, and when it was asked

    def gone(self, actors: Mapping[str, Any]) -> dict[str, str]:
        """Workers to be given up, and why. They are asked every BEAT_SECONDS, however often this is called."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + BEAT_SECONDS
        out = {}
        for worker, actor in actors.items():
            reference, since = self._asked.get(worker, (None, now))
            if reference is None or answered([reference]):
                self._asked[worker] = (actor.pid.remote(), now)
                if reference is not None and (why := _death(reference)):
                    out[worker] = why
            elif now - since > self._seconds:
                out[worker] = f"it did not answer for {self._seconds:.0f} s"
        return out

    def forget(self, worker: str) -> None:
        """A worker is gone, or begins anew."""
        self._asked.pop(worker, None)


def answered(references: Iterable[Any], seconds: float = 0.0) -> list[Any]:
    """Those of some references that have their answer, or their error, after at most so many seconds; all that are there with
    the first of them. Nothing is fetched."""
    asked = list(references)
    if not asked:
        return []
    ready, _ = ray.wait(asked, num_returns=1, timeout=seconds, fetch_local=False)
    if ready:
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)
    return list(ready)


def _death(answer: Any) -> str:
    """What came instead of an answer: why its actor is dead; empty when it is not."""
    try:
        ray.get(answer)
    except ray.exceptions.RayError as error:
        return str(error)
    return ""
