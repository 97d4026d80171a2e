"""A pool of Ray actors. Each is one worker: it maps what its work needs, does batches, and can be told to stop.

A training's X and its transpose exist once per node: actors that see the data set directory map it (the page cache is shared); on
other nodes the arrays come from the object store, put there once, mapped read-only by all actors of the node. So nodes are filled
one after the other, see `schedule.placement`. Results travel back as arrays; the driver commits them to disk, so the object store
never holds the only copy of one.

Failure story: an actor that dies is reported Lost, its batches run again elsewhere (work is deterministic, so a batch
run twice gives the same bits), and another actor takes its place, up to REPLACEMENTS times the number of workers. Actors that went
with their whole node do not count, nor do the batches they were at; those of a node that is being drained end the batch
they are at and leave.

An actor joins when the cluster has a CPU for it: with fewer CPUs than workers the others wait, and join in the middle of
the job when the cluster grows: what waits is what an autoscaler sees. With `thrift` no more of them wait than what is left can
use, and near the end those that have nothing to do are given back, node by node: see `schedule.demand`. An actor that gets no place
though a node has room is asked for anew, and where nobody at all comes it is given up, in words: see `schedule.patience`.
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
from xcray.schedule.autoscaling import Forecast, Staff, Thrift, given_back, workers_wanted
from xcray.schedule.events import Cleared, Joined, Left, Lost, Task
from xcray.schedule.placement import A_CPU, Need, room
from xcray.schedule.placement_timeouts import SHUN_SECONDS, Patience
from xcray.workers.pool import Failed, GaveUp, RemoteWork, Report, Result, WorkerStatus
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
from xcray.workers.ray.cluster_state import ANYWHERE, LOOK_SECONDS
from xcray.workers.ray.session import connect, local_ray

LOG: Final = logging.getLogger(__name__)
STORE: Final = 256 << 20  # bytes
MOST: Final = 256  # workers of a job on a cluster that does not say how many it wants
SEAT_SECONDS: Final = (
    15.0  # who had a seat on a node and is not there after them waits like the others
)
QUIET_SECONDS: Final = 30.0  # of hearing nothing, before workers are asked whether they are there
SILENT_SECONDS: Final = 300.0  # until one that does not answer that is given up


@contextmanager
def session(address: str | None, workers: int, store: int = STORE) -> Iterator[None]:
    """Ray for the length of a training: the one this process is in already, the cluster at `address`, or one of its own with a CPU
    a worker and `store` bytes for what travels, at least STORE; what does not fit there Ray writes to disk."""
    if ray.is_initialized():
        yield
    elif address is None:
        with local_ray(num_cpus=workers, object_store_memory=max(store, STORE)):
            yield
    else:
        with connect(address):
            yield


def thrift_on(address: str | None) -> Thrift | None:
    """How a job behaves at a cluster that others pay for, or share; None for a Ray of its own: its processors are there anyway."""
    return Thrift(node=node_seconds()) if address is not None else None


class WorkActor(WorkerActor):
    """The life of one worker: `open` its files, then `solve` batches one after the other."""

    def __init__(self, work: RemoteWork, job: str, worker: str) -> None:
        super().__init__(job, worker, work.counter)
        self._work = work
        self._leaving = False
        self._off: set[int] = set()  # tasks called off

    def open(self) -> bool:
        """Map what the work needs when this node has it; False when not."""
        self._local = self._work.open()
        if self._local is None:
            return False
        self._work.warm_up()
        return True

    def load(self, *shared: Any) -> None:
        """Take what the driver shares, from the object store."""
        self._local = self._work.load(*shared)
        self._work.warm_up()

    def solve(self, task: int, labels: list[int]) -> tuple[Any, float, float]:
        """Solve a batch: its block, the wall clock at its start and the seconds it took. No block when it was called off."""
        began, started = time.time(), time.monotonic()
        block = None
        if not self._leaving:
            try:
                called_off = partial(self._called_off, task)
                block = self._work.solve(self._local, np.array(labels, np.int32), called_off)
                self._counter.inc(len(labels))
            except Stopped:
                if task not in self._off:
                    raise
        self._off.discard(task)
        seconds = time.monotonic() - started
        self._busy.inc(seconds)
        return block, began, seconds

    def _called_off(self, task: int) -> bool:
        """Whether a batch is to be given up."""
        return self._stop.is_set() or task in self._off

    @ray.method(concurrency_group="control")
    def cancel(self, task: int) -> None:
        """Give a batch up: at its next slice, or when its turn comes."""
        self._off.add(task)

    @ray.method(concurrency_group="control")
    def leave(self) -> None:
        """End the batch under way, and begin none of those that wait."""
        self._leaving = True


class RayPool(RayWorkers):
    """Workers that are Ray actors named `xcray:JOB:worker-N`.

    session: a context manager inside which Ray is connected. A worker is an actor of one CPU, and of what `need` says. Any thread
    may `resize` it while it runs. shared: gives what goes to nodes that do not see the work's files, or raises Unavailable.
    workers: at most so many; without thrift, so many.
    """

    def __init__(
        self,
        work: RemoteWork,
        workers: int,
        session: AbstractContextManager[Any],
        job: str,
        shared: Callable[[], tuple[Any, ...]],
        *,
        need: Need = A_CPU,
        thrift: Thrift | None = None,
    ) -> None:
        super().__init__(session)
        self._work = work
        self._n_workers = workers
        self._job = job
        self._give = shared
        self._need = need
        self._thrift = thrift
        self._wanted = workers if thrift is None else 1
        self._solve: dict[str, Any] = {}  # worker -> its method, under a name that can be read
        self._waiting: dict[
            Any, tuple[str, Task | None]
        ] = {}  # reference -> worker and its task; None: getting ready
        self._finding: dict[Any, str] = {}  # reference of the node it gets to -> worker
        self._asked: dict[
            str, float
        ] = {}  # workers without a node so far, by when they were asked for
        self._seated: set[str] = set()  # of these, those that a node had room for
        self._idle: dict[str, float] = {}  # when workers became so
        self._told: list[Report] = []
        self._shared: tuple[Any, ...] | None = None
        self._leaving: set[str] = set()
        self._started = 0
        self._most = 0
        self._seen = 0
        self._patience = Patience()
        self._pulse = Pulse(SILENT_SECONDS)
        self._began = self._heard = self._watched = 0.0  # on a clock that never goes back
        self._awaits = ""

    def open(self) -> None:
        """Connect to Ray and start the actors. Raises Unavailable when Ray can't be reached."""
        self._work.warm_up()  # one process fills numba's disk cache before many read it
        self._connect()
        self._began = self._heard = time.monotonic()

    def resize(self, workers: int) -> None:
        """Have so many workers at most, from the next `wait` on: new actors join as the cluster has CPUs for them; those that are
        too many, the youngest, end the batch they are at and leave. Raises ParameterError when it is less than one."""
        if workers < 1:
            raise ParameterError(f"a pool needs at least 1 worker, not {workers}")
        self._n_workers = workers

    def submit(self, worker: str, task: Task) -> None:
        """Send a task to an actor; one that is about to leave, or is gone, gives it back by leaving."""
        if worker in self._actors and worker not in self._leaving:
            self._waiting[self._solve[worker].remote(task.id, list(task.labels))] = (worker, task)

    def cancel(self, worker: str, task_id: int) -> None:
        """Call a task off; the actor goes on with its next."""
        if worker in self._actors:
            self._actors[worker].cancel.remote(task_id)

    def now(self) -> float:
        """Seconds since the pool opened."""
        return time.monotonic() - self._began

    def muster(self) -> WorkerStatus:
        """The actors that are ready, of those wanted."""
        return self._mustered(self._target, self._ready(), self._where.lost)._replace(
            most=self._most, awaits=self._awaits
        )

    def _ready(self) -> int:
        """How many actors have what they need."""
        return len(
            self._actors.keys() - {held[0] for held in self._waiting.values() if held[1] is None}
        )

    def foresee(self, outlook: Forecast) -> int | None:
        """Want as many workers as what is left can use, give back those it can't, and say how many there are to be."""
        if self._thrift is None:
            return None
        self._around.look(LOOK_SECONDS)
        now, staying = time.monotonic(), self._staying()
        self._idle = {
            worker: self._idle.get(worker, now) for worker in outlook.idle if worker in staying
        }
        there = {worker: node for worker, node in self._where.placed.items() if worker in staying}
        for worker in given_back(outlook, self._idle, there, now):
            self._told += self._send_away(worker)
        self._wanted = workers_wanted(outlook, self._staff(now), self._n_workers, self._thrift)
        return self._target

    def wait(self, seconds: float) -> list[Report]:
        """Results, workers that joined, left or were lost. Raises Unavailable when no worker is ready for too long."""
        gone, self._told = self._told + self._look() + self._follow_size() + self._watch(), []
        if gone:
            return gone
        if not self._waiting:
            time.sleep(seconds)
            return []
        asked = [*self._waiting, *self._finding]
        found = answered(asked, seconds)
        if found:
            self._heard = time.monotonic()
        return [report for reference in found for report in self._receive(reference)]

    @property
    def _target(self) -> int:
        """How many workers there are to be."""
        return min(self._wanted, self._n_workers) if self._thrift is not None else self._n_workers

    def _forget_all(self) -> None:
        """Drop all references to what is in Ray."""
        super()._forget_all()
        for held in (self._waiting, self._finding, self._solve, self._asked):
            held.clear()
        self._shared = None

    def _staying(self) -> list[str]:
        """Workers that were not told to leave, the oldest first."""
        return [worker for worker in self._actors if worker not in self._leaving]

    def _staff(self, now: float) -> Staff:
        """Who is there; those with a seat on a node are about to be."""
        free = sum(room(node, self._need) for node in self._where.rooms())
        fresh = [
            worker
            for worker in self._seated & self._asked.keys()
            if now - self._asked[worker] < SEAT_SECONDS
        ]
        asked = self._asked.keys() - fresh
        waited = now - min((self._asked[worker] for worker in asked), default=now)
        return Staff(len(self._staying()) - len(asked), len(asked), free, waited)

    def _look(self) -> list[Report]:
        """What the cluster tells: who went with a node, and who is to leave one that goes."""
        self._around.look(LOOK_SECONDS)
        if self._around.looks == self._seen:
            return []
        self._seen = self._around.looks
        out = [
            report
            for worker in self._where.fallen()
            for report in self._lose(worker, "its node is gone")
        ]
        out += [Cleared(worker) for worker in self._where.cleared()]
        draining = [worker for worker in self._where.on_draining() if worker not in self._leaving]
        return out + [report for worker in draining for report in self._send_away(worker)]

    def _follow_size(self) -> list[Report]:
        """Start the actors that are missing and send away those that are too many; who had nothing to do has left."""
        staying, out = self._staying(), list[Report]()
        if len(staying) < self._target:
            for strategy in self._where.strategies(self._need, self._target - len(staying)):
                self._start_actor(strategy)
        surplus = staying[self._n_workers :]
        too_many = (
            self._patience.surplus(time.monotonic(), len(staying) - self._target)
            if self._thrift is not None
            else 0
        )
        if too_many:
            nowhere = [
                worker for worker in staying if worker in self._asked and worker not in self._seated
            ]
            surplus = list(dict.fromkeys([*surplus, *nowhere[-too_many:]]))
        for worker in surplus:
            out += self._send_away(worker)
        return out

    def _watch(self) -> list[Report]:
        """See that those asked for come and that those who came are there; what is waited for is said, and another way is tried.
        Raises Unavailable when nobody has been ready for as long as a start may take."""
        now = time.monotonic()
        if now < self._watched + LOOK_SECONDS:
            return []
        self._watched = now
        way = self._patience.look(
            now, self._asked, self._ready(), self._where.open(self._need), start_seconds()
        )
        if way.over:
            raise not_ready("no Ray worker was", start_seconds(), way.why)
        if way.anew or bool(way.why) != bool(self._awaits):
            LOG.warning(
                "%s%s",
                way.why or "nobody waits for a place any more",
                "; asking anew" if way.anew else "",
            )
        self._awaits = way.why
        self._where.shun(way.shun, SHUN_SECONDS)
        return [report for worker in way.anew for report in self._send_away(worker)] + self._silent(
            now
        )

    def _silent(self, now: float) -> list[Report]:
        """Workers that are given up: a process that is stopped raises no error, and with one worker nobody runs a copy."""
        if now < self._heard + QUIET_SECONDS:
            return []
        out = list[Report]()
        for worker, why in self._pulse.gone(
            {worker: self._actors[worker] for worker in self._where.placed}
        ).items():
            ray.kill(self._actors[worker])
            out += self._lose(worker, why)
        return out

    def _send_away(self, worker: str) -> list[Report]:
        """Let a worker end the batch it is at and go; who has nothing to do goes now."""
        self._leaving.add(worker)
        if (worker, None) in self._waiting.values():  # not ready yet: the cluster is too small
            self._drop(worker)
        else:
            self._actors[worker].leave.remote()
        return self._leave_when_free(worker)

    def _leave_when_free(self, worker: str) -> list[Report]:
        """End an actor that is to leave once it has answered for all its batches."""
        if worker not in self._leaving or any(held[0] == worker for held in self._waiting.values()):
            return []
        self._leaving.discard(worker)
        self._pulse.forget(worker)
        self._drop(worker)
        self._where.leave(worker)
        ray.kill(self._actors.pop(worker))
        return [Left(worker)]

    def _drop(self, worker: str) -> None:
        """Forget what a worker was asked."""
        self._waiting = {
            reference: held for reference, held in self._waiting.items() if held[0] != worker
        }
        self._finding = {
            reference: name for reference, name in self._finding.items() if name != worker
        }
        self._asked.pop(worker, None)
        self._seated.discard(worker)

    def _start_actor(self, strategy: Any) -> None:
        """One more actor; it is reported as Joined once it has what it needs."""
        worker = f"worker-{self._started}"
        self._started += 1
        actor = start_actor(
            WorkActor,
            self._job,
            worker,
            self._work,
            self._job,
            worker,
            need=self._need,
            scheduling_strategy=strategy,
        )
        self._actors[worker], self._asked[worker] = actor, time.monotonic()
        if strategy != ANYWHERE:
            self._seated.add(worker)
        self._solve[worker] = actor.solve.options(name=f"xcray:{self._job}:batch")
        self._finding[actor.place.remote()] = worker
        self._waiting[actor.open.options(name=f"xcray:{self._job}:open").remote()] = (worker, None)

    def _receive(self, reference: Any) -> list[Report]:
        """What one finished reference means."""
        if reference in self._finding:
            return self._settle(self._finding.pop(reference), reference)
        worker, task = self._waiting.pop(reference, (None, None))
        if worker is None or worker not in self._actors:
            return []
        try:
            value = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return [Failed(worker, task or Task(-1, (), 0.0), cause_of(error))]
        except ray.exceptions.RayError as error:
            return self._lose(worker, error)
        if task is not None:
            block, began, seconds = value
            started = began - self._opened
            if block is None:
                return [GaveUp(worker, task, started, seconds), *self._leave_when_free(worker)]
            return [
                Result(worker, task, self._work.received(block), started, seconds),
                *self._leave_when_free(worker),
            ]
        if value is False:
            self._waiting[self._actors[worker].load.remote(*self._share())] = (worker, None)
            return []
        self._most = max(self._most, self._ready())
        return [Joined(worker)]

    def _settle(self, worker: str, reference: Any) -> list[Report]:
        """A worker has a node."""
        try:
            self._where.settle(worker, *ray.get(reference))
        except ray.exceptions.RayError as error:
            return self._lose(worker, error)
        self._asked.pop(worker, None)
        self._seated.discard(worker)
        return []

    def _lose(self, worker: str, why: object) -> list[Report]:
        """Forget a dead actor; another takes its place at the next wait."""
        if worker not in self._actors:
            return []
        del self._actors[worker]
        self._leaving.discard(worker)
        self._pulse.forget(worker)
        self._drop(worker)
        self._where.lose(worker)
        self._check_losses(min(self._n_workers, max(1, self._started - self._where.lost)), why)
        return [Lost(worker)]

    def _share(self) -> tuple[Any, ...]:
        """References to what is shared in the object store, put there once, for nodes that don't see the files."""
        if self._shared is None:
            self._shared = tuple(ray.put(each) for each in self._give())
        return self._shared
