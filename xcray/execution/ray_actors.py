"""What workers that are Ray actors have in common, in pools and in teams: their start, their control thread, their deaths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Final

import ray
from ray.util.metrics import Counter

from xcray.errors import Unavailable, XcrayError
from xcray.execution.memory import Footprint, footprint
from xcray.execution.pool import Muster, StopFlag

REPLACEMENTS: Final = 5  # actors that may take a lost one's place, for each worker
START_SECONDS: Final = 120.0  # an actor must have its process by then
LOOK_SECONDS: Final = 2.0  # between two looks at the cluster
PLANNED_DEATHS: Final = frozenset({1, 4})  # of nodes, by Ray's NodeDeathInfo: told to end, or idle for the autoscaler
BEAT_SECONDS: Final = 5.0  # between two looks at who still answers


class WorkerActor:
    """The part of a worker that is its process: one thread works, and beside it another answers `stop`, `pid` and `footprint`."""

    def __init__(self, job: str, counter: tuple[str, str], *tags: str) -> None:
        name, description = counter
        self._stop = StopFlag()
        self._counter = Counter(name, description, tag_keys=("job", *tags))
        self._counter.set_default_tags({"job": job})

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


def start_actor(kind: type[WorkerActor], job: str, worker: str, *args: Any, **options: Any) -> Any:
    """An actor of one CPU named `xcray:JOB:WORKER`, `xcray:JOB:WORKER.2` and so on while dead ones still have the names before.

    It works in one thread, for what it works on is not made for two, and is controlled in another. It is neither started again
    nor are its calls repeated by Ray: who lost a worker decides what follows.
    """
    make: Any = ray.remote  # its types know no concurrency groups
    remote = make(concurrency_groups={"control": 1})(kind)
    for life in count(1):
        name = f"xcray:{job}:{worker}" + (f".{life}" if life > 1 else "")
        try:
            once = remote.options(name=name, num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=1, **options)
            return once.remote(*args)
        except ray.exceptions.ActorAlreadyExistsError:
            continue
    raise AssertionError("count has no end")


def not_ready(who: str) -> Unavailable:
    """The error when actors do not start in time: `who`, like "no Ray worker was"."""
    return Unavailable(
        f"{who} ready after {START_SECONDS:.0f} s; does the cluster have a free CPU for each worker? see `ray status`",
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


class Surroundings:
    """The cluster that workers are on, as it told at the last `look`. stored: bytes in its object stores; nodes_lost: machines that
    were there at an earlier look and went without being asked to: crashed, unreachable, or taken back by whoever lends them."""

    def __init__(self) -> None:
        self.stored, self.nodes_lost = 0, 0
        self._alive: set[str] = set()

    def look(self) -> None:
        """Ask the head."""
        name = "object_store_memory"
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        self.stored = int(there.get(name, 0.0) - free.get(name, 0.0))
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        gone = [each for each in nodes if not each["Alive"] and each["NodeID"] in self._alive]
        self.nodes_lost += sum(each.get("DeathReason", 0) not in PLANNED_DEATHS for each in gone)
        self._alive = {each["NodeID"] for each in nodes if each["Alive"]}


class RayWorkers:
    """What pools and teams of actors are: actors by name, inside a session of Ray.

    session: a context manager inside which Ray is connected.
    """

    def __init__(self, session: AbstractContextManager[Any]) -> None:
        self._session, self._is_open, self._opened = session, False, 0.0
        self._actors: dict[str, Any] = {}
        self._footprints = Footprints()
        self._surroundings, self._look_next = Surroundings(), 0.0

    def footprints(self) -> dict[str, Footprint]:
        """What the actors hold, as far as they have answered since the last call; those that have not are not asked again."""
        return self._footprints.ask(self._actors)

    def _mustered(self, wanted: int, present: int, lost: int) -> Muster:
        """These workers, with what the cluster they are on says of itself."""
        if not self._is_open:
            return Muster(wanted, 0, lost)
        if time.monotonic() >= self._look_next:
            self._look_next = time.monotonic() + LOOK_SECONDS
            self._surroundings.look()
        return Muster(wanted, present, lost, self._surroundings.nodes_lost, self._surroundings.stored)

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
        self._seconds, self._next = seconds, 0.0
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
