"""A team of Ray actors: each has a hand in its own process, and takes things made by others from the object store.

What a verb makes is put in the store of the worker's node. The driver owns the reference and never reads it; it goes along as an
argument of the next verb, and Ray fetches it to that worker's node while the verb before is still at work there. On one node
nothing is copied: arrays are mapped read-only. A thing outlives the worker that made it, but not the node that holds it.

Failure story: an actor that dies, or says nothing for long, is reported Lost with all its tickets, and killed, so that it can't
answer late. What it held is gone; `replace` starts another. A verb whose argument went with its node is Raised as THING_LOST.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final, NamedTuple

import ray

from xcray.errors import Unavailable
from xcray.schedule.events import Lost
from xcray.schedule.placement import A_CPU, Need, room
from xcray.workers.pool import WorkerStatus
from xcray.workers.ray.actors import (
    Pulse,
    RayWorkers,
    WorkerActor,
    answered,
    cause_of,
    node_seconds,
    not_ready,
    start_actor,
    start_seconds,
)
from xcray.workers.ray.cluster_state import LOOK_SECONDS
from xcray.workers.worker_group import (
    Answer,
    Handle,
    HandWork,
    Raised,
    Reply,
    check_replace,
    do,
    taken_apart,
    team_names,
    thing_lost,
)

LOG: Final = logging.getLogger(__name__)
PLACE_SECONDS: Final = 15.0  # that an actor takes, at most, to get to where there is room for it
SILENT_SECONDS: Final = 300.0  # longer than any block takes to cross a network
COUNTER: Final = ("xcray_verbs_done", "Visits of blocks, and other verbs, done by this worker")


class _Told(NamedTuple):
    """What a verb tells beside the thing it made: whether it made one, and the wall clock at its start."""

    told: Any
    made: bool
    began: float
    seconds: float


class _Asked(NamedTuple):
    """A verb under way, or waiting for its turn; bulk: the reference of what it will have made."""

    ticket: int
    worker: str
    bulk: Any


class TeamActor(WorkerActor):
    """The life of one worker: `open` makes its hand, `perform` does verbs one after the other."""

    def __init__(self, work: HandWork, worker: str, job: str) -> None:
        super().__init__(job, worker, COUNTER, "verb")
        self._work = work
        self._worker = worker
        self._ticket = 0
        self._off = -1  # what it is at; tickets up to this one are to end

    def open(self) -> None:
        """Make the hand."""
        self._work.warm_up()
        self._hand = self._work.hand(self._worker, self._stopped)

    @ray.method(num_returns=2)
    def perform(
        self, ticket: int, verb: str, args: tuple[Any, ...], *things: Any
    ) -> tuple[Any, _Told]:
        """Do a verb: the thing it makes, and what it tells."""
        began, started = time.time(), time.monotonic()
        self._ticket = ticket
        bulk, told = do(self._hand, verb, args, things, self._stopped)
        seconds = time.monotonic() - started
        self._counter.inc(1.0, {"verb": verb})
        self._busy.inc(seconds)
        return bulk, _Told(told, bulk is not None, began, seconds)

    @ray.method(concurrency_group="control")
    def interrupt(self, ticket: int) -> None:
        """End what was asked up to this ticket."""
        self._off = ticket

    def _stopped(self) -> bool:
        """Whether to end what is under way."""
        return self._stop.is_set() or self._ticket <= self._off


class RayTeam(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`, each of one CPU, and of what `need` says; on as few nodes as have
    room for them, for what goes round within a node is not copied.

    session: a context manager inside which Ray is connected. Its object store must hold what is made and what is on its way, or
    Ray writes it to disk. silent_seconds: when a worker that does not answer is given up; fetching ends then too. begin: so many
    `open` begins with, all by default; the others are there to be invited. least: of these so many are waited for, all by default;
    the others are invited too where there is no room.
    """

    def __init__(
        self,
        work: HandWork,
        workers: int,
        session: AbstractContextManager[Any],
        job: str,
        *,
        silent_seconds: float = SILENT_SECONDS,
        need: Need = A_CPU,
        begin: int | None = None,
        least: int | None = None,
    ) -> None:
        super().__init__(session)
        self._need = need
        self._work = work
        self._names = team_names(workers)
        self._job = job
        self._begin = self._names[: begin or workers]
        self._least = least or len(self._begin)
        self._coming: dict[Any, str] = {}  # reference of what an invited worker is at -> worker
        self._placed: set[str] = set()  # of these, those that have a node
        self._invited = 0.0  # when the last ones were
        self._silent = silent_seconds
        self._pulse = Pulse(silent_seconds)
        self._methods: dict[
            tuple[str, str], Any
        ] = {}  # worker and verb -> the actor's method, under a name that can be read
        self._due: dict[Any, _Asked] = {}  # reference of what will be told -> what was asked
        self._tickets = 0
        self._losses = 0
        self._stopped = False

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._names

    @property
    def present(self) -> tuple[str, ...]:
        """Those that are ready, in order."""
        coming = set(self._coming.values())
        return tuple(
            worker for worker in self._names if worker in self._actors and worker not in coming
        )

    def muster(self) -> WorkerStatus:
        """The actors that are there, of all that it began with, or that came."""
        there = len(self.present)
        return self._mustered(max(there, len(self._begin)), there, self._losses)

    def open(self) -> None:
        """Connect to Ray, start the actors and make their hands. Raises Unavailable when Ray or CPUs can't be had."""
        self._work.warm_up()  # one process fills numba's disk cache before many read it
        self._connect()
        try:
            self._around.look()
            self._start(self._begin[: max(self._least, self._rooms())], start_seconds())
        except BaseException:
            self.close()
            raise

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """Other actors in the places of lost ones, wherever there is a CPU. They are waited for as long as a node takes to come; at
        once, as long as it takes to get to where there is room, or will be."""
        check_replace(lost, self._names, self.present)
        for worker in lost:
            self._forget(worker)  # one that was on its way
        self._start(lost, self._patience(lost) if at_once else node_seconds())

    def _patience(self, lost: Sequence[str]) -> float:
        """How long others can wait for these: where what goes round does not fit into the object stores that are left, as long as a
        node takes to come; else not at all, if no node has room nor lives on without one of them. Raises Unavailable then."""
        self._around.look()
        left = set(self._where.placed.values())
        if self._around.stores(left) < self._need.store * len(self._begin):
            return node_seconds()
        if self._where.stayed(lost) or self._rooms():
            return PLACE_SECONDS
        raise not_ready(f"{', '.join(lost)}: no node has room, so none was", 0.0)

    def invite(self) -> list[str]:
        """See `Team`. Those invited that have no place after a while are called off: others have taken it."""
        self._around.look(LOOK_SECONDS)
        ready, now = self._arrived(), time.monotonic()
        if now > self._invited + PLACE_SECONDS:
            for worker in set(self._coming.values()) - self._placed:
                self._forget(worker)
        missing = [worker for worker in self._names if worker not in self._actors]
        rooms = self._rooms()
        if missing and rooms and self._invited < inf:
            self._coming |= self._hire(missing[:rooms])
            self._invited = now
        return ready

    def _rooms(self) -> int:
        """For how many there is room, as of the last look; stores do not count, for more workers do not hold more."""
        return sum(room(node, self._need._replace(store=0.0)) for node in self._where.rooms())

    def _arrived(self) -> list[str]:
        """Invited workers that have become ready. None are invited any more when one could not: the others can do without."""
        before = set(self._coming.values())
        try:
            self._prepare(self._coming, self._placed, 0.0)
        except Exception as error:
            LOG.warning("a worker that was invited did not get ready; no more are: %s", error)
            self._invited = inf
            for worker in before:
                self._forget(worker)
        self._placed &= set(self._coming.values())
        return [worker for worker in self._names if worker in before and worker in self.present]

    def leaving(self) -> dict[str, float]:
        """Those on nodes that drain."""
        self._around.look(LOOK_SECONDS)
        present = self.present
        return {
            worker: seconds
            for worker, seconds in self._where.on_draining().items()
            if worker in present
        }

    def dismiss(self, *workers: str) -> None:
        """End their actors; they are not counted as lost."""
        for worker in workers:
            self._forget(worker)
            self._where.leave(worker)

    def ask(self, worker: str, verb: str, *args: Any) -> int:
        """See `Team`. Things go along as references, and are fetched to the worker's node when they are not there."""
        plain, handles = taken_apart(worker, verb, args, self._actors)
        self._tickets += 1
        bulk, told = self._perform(worker, verb).remote(
            self._tickets, verb, plain, *(handle.held for handle in handles)
        )
        self._due[told] = _Asked(self._tickets, worker, bulk)
        return self._tickets

    def wait(self, seconds: float) -> list[Reply]:
        """Answers, errors, and workers that are lost. Raises Unavailable when workers keep being lost."""
        found = [
            reply
            for reference in answered(self._due, seconds)
            for reply in self._receive(reference)
        ]
        there = {worker: self._actors[worker] for worker in self.present}
        return found + [
            reply
            for worker, why in self._pulse.gone(there).items()
            for reply in self._lose(worker, why)
        ]

    def put(self, value: Any) -> Handle:
        """Put a value into the object store of the driver's node."""
        return Handle(ray.put(value))

    def fetch(self, handle: Handle) -> Any:
        """The thing, its arrays mapped from the object store of the driver's node; they hold their place there while they live."""
        try:
            return ray.get(handle.held, timeout=self._silent)
        except ray.exceptions.ObjectLostError as error:
            raise thing_lost(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise Unavailable(
                f"a block did not arrive in {self._silent:.0f} s; look at the network and the nodes with `ray status`, then resume"
            ) from error

    def interrupt(self) -> None:
        """Tell the actors to end what was asked of them so far."""
        for actor in self._actors.values():
            actor.interrupt.remote(self._tickets)

    def stop(self) -> None:
        """Tell the actors to stop at their next slice, also those that come to replace some."""
        self._stopped = True
        super().stop()

    def _forget_all(self) -> None:
        """Drop all references to what is in Ray."""
        super()._forget_all()
        for held in (self._due, self._methods, self._coming):
            held.clear()

    def _start(self, workers: Iterable[str], seconds: float) -> None:
        """Start actors, which have so long to get a place, and make their hands; one that dies meanwhile has a follower. Raises
        what making a hand raises; then none of them is there."""
        waiting = self._hire(list(workers))  # reference -> worker that gets ready
        placed: set[str] = set()  # those that have a node, and make their hands
        ends = time.monotonic() + seconds
        try:
            while waiting:
                again = self._prepare(waiting, placed, 1.0)
                placed.difference_update(again)
                waiting |= self._hire(again)
                missing = sorted(set(waiting.values()) - placed)
                if missing and time.monotonic() > ends:
                    who = f"{len(missing)} of {len(self._begin)} Ray workers ({', '.join(missing[:3])}) were not"
                    raise not_ready(who, seconds)
        except BaseException:
            for worker in workers:
                self._forget(worker)
            raise

    def _prepare(self, waiting: dict[Any, str], placed: set[str], seconds: float) -> list[str]:
        """Go on with the actors whose step is done within so long; those that died, with nothing left in `waiting`."""
        lost = self._pulse.gone(
            {worker: self._actors[worker] for worker in placed & set(waiting.values())}
        )
        for reference in answered(waiting, seconds):
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
                self._where.settle(worker, *place)
                waiting[self._actors[worker].open.remote()] = worker
        for worker, why in lost.items():
            self._lose(worker, why)
        for reference in [reference for reference, worker in waiting.items() if worker in lost]:
            del waiting[reference]
        return list(lost)

    def _hire(self, workers: Sequence[str]) -> dict[Any, str]:
        """Actors for these places; references of the nodes they get to."""
        if workers:
            self._around.look()
        out = {}
        for worker, strategy in zip(
            workers, self._where.strategies(self._need, len(workers)), strict=True
        ):
            actor = start_actor(
                TeamActor,
                self._job,
                worker,
                self._work,
                worker,
                self._job,
                need=self._need,
                scheduling_strategy=strategy,
            )
            self._actors[worker] = actor
            if self._stopped:
                actor.stop.remote()
            out[actor.place.remote()] = worker
        return out

    def _receive(self, reference: Any) -> list[Reply]:
        """What one finished reference means."""
        asked = self._due.pop(reference, None)
        if asked is None:
            return []  # of a worker that was lost a moment ago
        try:
            told = ray.get(reference, timeout=self._silent)
        except ray.exceptions.RayTaskError as error:
            return [Raised(asked.ticket, asked.worker, _cause(error))]
        except ray.exceptions.RayError as error:
            return self._lose(asked.worker, error)
        bulk = Handle(asked.bulk) if told.made else None
        return [
            Answer(
                asked.ticket, asked.worker, bulk, told.told, told.seconds, told.began - self._opened
            )
        ]

    def _lose(self, worker: str, why: object) -> list[Reply]:
        """Forget an actor that died, or is as good as dead."""
        if worker not in self._actors:
            return []
        self._forget(worker)
        self._losses += 1
        self._where.lose(worker, self._losses)
        self._check_losses(len(self._names), why)
        return [Lost(worker)]

    def _perform(self, worker: str, verb: str) -> Any:
        """An actor's method, called after the job and the verb where Ray lists its tasks."""
        key = (worker, verb)
        if key not in self._methods:
            self._methods[key] = self._actors[worker].perform.options(
                name=f"xcray:{self._job}:{verb}"
            )
        return self._methods[key]

    def _forget(self, worker: str) -> None:
        """Make sure that an actor is dead, and drop all that was asked of it."""
        self._methods = {key: method for key, method in self._methods.items() if key[0] != worker}
        if worker in self._actors:
            ray.kill(self._actors.pop(worker))
        self._pulse.forget(worker)
        self._placed.discard(worker)
        for reference in [reference for reference, name in self._coming.items() if name == worker]:
            del self._coming[reference]
        self._due = {
            reference: asked for reference, asked in self._due.items() if asked.worker != worker
        }


def _cause(error: ray.exceptions.RayTaskError) -> BaseException:
    """What a verb raised; or that one of its arguments is gone."""
    cause = error.cause
    return (
        thing_lost(cause) if isinstance(cause, ray.exceptions.ObjectLostError) else cause_of(error)
    )
