"""A schedule on a simulated clock: workers of any speed that come, go and die, labels whose true
cost it can only guess.

Workers do as those of a pool: batches one at a time, in the order given, a message's time apart. No
thread, no wall clock but to measure the schedule itself: the same arguments give the same run. The
tests judge it, and use it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from xcray.schedule.events import (
    Cancel,
    Cancelled,
    Done,
    Event,
    Joined,
    Left,
    Lost,
    Run,
    Task,
    Tick,
)
from xcray.schedule.label_scheduler import LabelScheduler

SLICE = 0.2  # seconds until a worker sees that its task was called off
TICK = 0.2  # seconds between two ticks, as in `drive`
FLOOR, TOP, POWER = (
    4e-4,
    0.04,
    0.55,
)  # of `heavy_tailed`: seconds of the cheapest label, of the dearest, and how it falls


@dataclass
class Outcome:
    """What a simulated job came to.

    makespan: seconds until the last label was done. committed: labels in the order they were done.
    useful, wasted: worker-seconds of batches that counted, and of those lost, given up or done
    twice. lost: of each worker lost, the seconds it had worked on its batch. events, seconds,
    slowest: how many the schedule heard, what they took, and the slowest one.
    """

    makespan: float = 0.0
    committed: list[int] = field(default_factory=list)
    useful: float = 0.0
    wasted: float = 0.0
    lost: list[float] = field(default_factory=list)
    batches: int = 0
    events: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


@dataclass
class _Worker:
    """A simulated worker: its speed, the tasks it has, when the one under way began; turns tell a
    stale end from a true one.
    """

    name: str
    speed: float
    tasks: list[Task] = field(default_factory=list)
    began: float = 0.0
    turn: int = 0
    leaving: bool = False


class Simulation:
    """One job. cost: seconds of each label at speed 1, by id; overhead: seconds a worker waits
    between two tasks.
    """

    def __init__(
        self, schedule: LabelScheduler, cost: Sequence[float] | np.ndarray, overhead: float = 0.0
    ) -> None:
        self._schedule = schedule
        self._cost = np.asarray(cost, np.float64)
        self._overhead = overhead
        self._workers: dict[str, _Worker] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._clock = 0.0
        self._finished = False
        self._outcome = Outcome()

    def run(
        self, joins: Mapping[str, tuple[float, float]], ends: Sequence[tuple[float, str, str]] = ()
    ) -> Outcome:
        """Run to the end. joins: worker -> (when, speed); ends: (when, worker, "lost" or "left").

        Raises RuntimeError when the schedule fails, or when no worker is left and none will come.
        """
        for name, (when, speed) in joins.items():
            self._at(when, partial(self._join, name, speed))
        for when, name, how in ends:
            self._at(when, partial(self._lose if how == "lost" else self._leave, name))
        self._at(TICK, self._tick)
        while not self._finished:
            self._clock, _, happen = heapq.heappop(self._queue)
            happen()
        self._outcome.makespan = self._clock
        return self._outcome

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        """Something will happen."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, happen))

    def _tell(self, event: Event) -> None:
        """Tell the schedule, and do what it says."""
        began = time.thread_time()
        commands = self._schedule.on(event, self._clock)
        took = time.thread_time() - began
        self._outcome.events += 1
        self._outcome.seconds += took
        self._outcome.slowest = max(self._outcome.slowest, took)
        for command in commands:
            if isinstance(command, Run):
                self._send(self._workers[command.worker], command.task)
            elif isinstance(command, Cancel):
                self._cancel(self._workers[command.worker], command.task_id)
            elif command.reason is not None:
                raise RuntimeError(command.reason)
            else:
                self._finished = True

    def _tick(self) -> None:
        """Time passes."""
        if not self._workers and not self._queue:
            raise RuntimeError("no worker is left and none will come")
        self._at(self._clock + TICK, self._tick)
        self._tell(Tick())

    def _join(self, name: str, speed: float) -> None:
        """A worker is there."""
        self._workers[name] = _Worker(name, speed)
        self._tell(Joined(name))

    def _send(self, worker: _Worker, task: Task) -> None:
        """A task for a worker; one about to leave gives it back by leaving."""
        if not worker.leaving:
            worker.tasks.append(task)
            if len(worker.tasks) == 1:
                self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        """The next task of a worker, or its end."""
        if worker.tasks and not worker.leaving:
            worker.began = self._clock + self._overhead
            seconds = float(self._cost[list(worker.tasks[0].labels)].sum()) / worker.speed
            self._at(worker.began + seconds, partial(self._done, worker, worker.turn))
        elif worker.leaving:
            del self._workers[worker.name]
            self._tell(Left(worker.name))

    def _next(self, worker: _Worker, event: Event) -> None:
        """A worker is free of its first task."""
        worker.tasks.pop(0)
        worker.turn += 1
        waiting = bool(worker.tasks) or worker.leaving
        self._tell(event)
        if waiting and not self._finished:
            self._begin(worker)

    def _is_stale(self, worker: _Worker, turn: int) -> bool:
        """Whether the worker is gone, or at another task."""
        return self._workers.get(worker.name) is not worker or worker.turn != turn

    def _done(self, worker: _Worker, turn: int) -> None:
        """A task ends."""
        if self._is_stale(worker, turn):
            return
        task, seconds = worker.tasks[0], self._clock - worker.began
        if self._schedule.is_expected(worker.name, task.id):
            self._outcome.committed += task.labels
            self._outcome.useful += seconds
            self._outcome.batches += 1
        else:
            self._outcome.wasted += seconds
        self._next(worker, Done(worker.name, task.id, seconds))

    def _cancel(self, worker: _Worker, task_id: int) -> None:
        """A task is called off: at once when it was not begun, else at the next slice."""
        place = next((at for at, task in enumerate(worker.tasks) if task.id == task_id), None)
        if place is None:
            return  # given back by a worker about to leave
        if place:
            del worker.tasks[place]
            self._tell(Cancelled(worker.name, task_id))
        else:
            self._at(self._clock + SLICE, partial(self._give_up, worker, worker.turn))

    def _give_up(self, worker: _Worker, turn: int) -> None:
        """A worker sees that its task was called off."""
        if not self._is_stale(worker, turn):
            self._outcome.wasted += self._clock - worker.began
            self._next(worker, Cancelled(worker.name, worker.tasks[0].id))

    def _lose(self, name: str) -> None:
        """A worker dies, if it is there."""
        if (worker := self._workers.pop(name, None)) is not None:
            self._outcome.lost.append(self._clock - worker.began if worker.tasks else 0.0)
            self._outcome.wasted += self._outcome.lost[-1]
            self._tell(Lost(name))

    def _leave(self, name: str) -> None:
        """A worker, if it is there, leaves after its task under way; what waits goes back."""
        if (worker := self._workers.get(name)) is not None:
            worker.leaving = True
            del worker.tasks[1:]
            if not worker.tasks:
                self._begin(worker)


def heavy_tailed(n: int, seed: int = 0) -> Any:
    """Costs (n,) float64 in seconds, shuffled, of the shape measured on library headings: a floor,
    and a power law over it.
    """
    ranks = np.random.default_rng(seed).permutation(np.arange(1.0, n + 1))
    return FLOOR + TOP / ranks**POWER
