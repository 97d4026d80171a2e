"""A pool of Ray actors. Each is one worker: it maps what its work needs, does batches, and can be told to stop.

A training's X and its transpose exist once per node: actors that see the data set directory map it (the page cache is shared); on
other nodes the arrays come from the object store, put there once, mapped read-only by all actors of the node. Results travel
back as arrays; the driver commits them to disk, so the object store never holds the only copy of one.

Failure story: an actor that dies is reported Lost, its batches run again elsewhere (work is deterministic, so a batch
run twice gives the same bits), and another actor takes its place, up to REPLACEMENTS times the number of workers.

An actor joins when the cluster has a CPU for it: with fewer CPUs than workers the others wait, and join in the middle of
the job when the cluster grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import ray

from xcray.errors import ParameterError, Stopped
from xcray.execution.pool import Failed, GaveUp, Muster, RemoteWork, Report, Result
from xcray.execution.ray_actors import (
    START_SECONDS,
    RayWorkers,
    WorkerActor,
    answered,
    cause_of,
    check_losses,
    not_ready,
    start_actor,
)
from xcray.execution.ray_session import connect, local_ray
from xcray.schedule.messages import Joined, Left, Lost, Task

STORE: Final = 256 << 20  # bytes


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


class WorkActor(WorkerActor):
    """The life of one worker: `open` its files, then `solve` batches one after the other."""

    def __init__(self, work: RemoteWork, job: str) -> None:
        super().__init__(job, work.counter)
        self._work, self._leaving = work, False
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
        return block, began, time.monotonic() - started

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

    session: a context manager inside which Ray is connected. A worker is an actor of one CPU. Any thread may `resize` it
    while it runs. shared: gives what goes to nodes that do not see the work's files, or raises Unavailable.
    """

    def __init__(
        self, work: RemoteWork, workers: int, session: AbstractContextManager[Any], job: str, shared: Callable[[], tuple[Any, ...]]
    ) -> None:
        super().__init__(session)
        self._work, self._n_workers, self._job, self._give = work, workers, job, shared
        self._waiting: dict[Any, tuple[str, Task | None]] = {}  # reference -> worker and its task; None: getting ready
        self._shared: tuple[Any, ...] | None = None
        self._leaving: set[str] = set()
        self._started, self._joined, self._lost = 0, 0, 0

    def open(self) -> None:
        """Connect to Ray and start the actors. Raises Unavailable when Ray can't be reached."""
        self._work.warm_up()  # one process fills numba's disk cache before many read it
        self._connect()

    def resize(self, workers: int) -> None:
        """Have so many workers, from the next `wait` on: new actors join as the cluster has CPUs for them; those that are too
        many, the youngest, end the batch they are at and leave. Raises ParameterError when it is less than one."""
        if workers < 1:
            raise ParameterError(f"a pool needs at least 1 worker, not {workers}")
        self._n_workers = workers

    def muster(self) -> Muster:
        """The actors that are ready, of those wanted."""
        waiting = {held[0] for held in self._waiting.values() if held[1] is None}
        return self._mustered(self._n_workers, len(self._actors.keys() - waiting), self._lost)

    def submit(self, worker: str, task: Task) -> None:
        """Send a task to an actor; one that is about to leave gives it back by leaving."""
        if worker not in self._leaving:
            self._waiting[self._actors[worker].solve.remote(task.id, list(task.labels))] = (worker, task)

    def cancel(self, worker: str, task_id: int) -> None:
        """Call a task off; the actor goes on with its next."""
        if worker in self._actors:
            self._actors[worker].cancel.remote(task_id)

    def now(self) -> float:
        """Seconds since the pool opened."""
        return time.time() - self._opened

    def wait(self, seconds: float) -> list[Report]:
        """Results, workers that joined, left or were lost. Raises Unavailable when no worker gets ready in time."""
        gone = self._follow_size()
        if gone:
            return gone
        if not self._joined and time.time() - self._opened > START_SECONDS:
            raise not_ready("no Ray worker was")
        if not self._waiting:
            time.sleep(seconds)
            return []
        return [report for reference in answered(self._waiting, seconds) for report in self._receive(reference)]

    def _forget_all(self) -> None:
        """Drop all references to what is in Ray."""
        super()._forget_all()
        self._waiting.clear()
        self._shared = None

    def _follow_size(self) -> list[Report]:
        """Start the actors that are missing and send away those that are too many; who had nothing to do has left."""
        staying = [worker for worker in self._actors if worker not in self._leaving]
        for _ in range(self._n_workers - len(staying)):
            self._start_actor()
        out: list[Report] = []
        for worker in staying[self._n_workers :]:
            self._leaving.add(worker)
            if any(held == (worker, None) for held in self._waiting.values()):  # not ready yet: the cluster is too small
                self._waiting = {reference: held for reference, held in self._waiting.items() if held[0] != worker}
            else:
                self._actors[worker].leave.remote()
            out += self._leave_when_free(worker)
        return out

    def _leave_when_free(self, worker: str) -> list[Report]:
        """End an actor that is to leave once it has answered for all its batches."""
        if worker not in self._leaving or any(held[0] == worker for held in self._waiting.values()):
            return []
        self._leaving.discard(worker)
        ray.kill(self._actors.pop(worker))
        return [Left(worker)]

    def _start_actor(self) -> None:
        """One more actor; it is reported as Joined once it has what it needs."""
        worker = f"worker-{self._started}"
        self._started += 1
        actor = start_actor(WorkActor, self._job, worker, self._work, self._job)
        self._actors[worker] = actor
        self._waiting[actor.open.remote()] = (worker, None)

    def _receive(self, reference: Any) -> list[Report]:
        """What one finished reference means."""
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
            return [Result(worker, task, self._work.received(block), started, seconds), *self._leave_when_free(worker)]
        if value is False:
            self._waiting[self._actors[worker].load.remote(*self._share())] = (worker, None)
            return []
        self._joined += 1
        return [Joined(worker)]

    def _lose(self, worker: str, why: object) -> list[Report]:
        """Forget a dead actor; another takes its place at the next wait."""
        del self._actors[worker]
        self._leaving.discard(worker)
        self._waiting = {reference: held for reference, held in self._waiting.items() if held[0] != worker}
        self._lost += 1
        check_losses(self._lost, self._n_workers, why)
        return [Lost(worker)]

    def _share(self) -> tuple[Any, ...]:
        """References to what is shared in the object store, put there once, for nodes that don't see the files."""
        if self._shared is None:
            self._shared = tuple(ray.put(each) for each in self._give())
        return self._shared
