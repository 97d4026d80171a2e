"""Simulation of the label scheduler with workers of any speed that join, leave and die.

The scheduler can only estimate the true cost of a label. Simulated workers behave as those of a
pool: they process one batch at a time, in the order given, with a fixed delay between two batches.
There are no threads, and the wall clock only measures the scheduler itself. The same arguments give
the same run. The tests use this simulation too.
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

SLICE = 0.2  # seconds until a worker detects that its task was cancelled
TICK = 0.2  # seconds between two ticks, as in `drive`
FLOOR, TOP, POWER = (
    4e-4,
    0.04,
    0.55,
)  # of `heavy_tailed`: seconds of the cheapest and the most expensive label, and the exponent


@dataclass
class Outcome:
    """Result of a simulated job.

    makespan: seconds until the last label was done. committed: labels in the order they were done.
    useful, wasted: worker-seconds of batches that counted, and of those lost, cancelled or
    repeated. lost: seconds that each lost worker had worked on its batch. batches: number of labels
    of each that counted. events, seconds, slowest: number of events of the scheduler, their total
    time, and the slowest one.
    """

    makespan: float = 0.0
    committed: list[int] = field(default_factory=list)
    useful: float = 0.0
    wasted: float = 0.0
    lost: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


@dataclass
class _Worker:
    """A simulated worker: its speed, its tasks, and the start of the current one.

    turn: counter of tasks, to recognise events of an earlier task.
    """

    name: str
    speed: float
    tasks: list[Task] = field(default_factory=list)
    began: float = 0.0
    turn: int = 0
    leaving: bool = False


class Simulation:
    """One job.

    cost: seconds of each label at speed 1, by id. overhead: seconds a worker waits between two
    tasks.
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

        Raises RuntimeError if the schedule fails, or if no worker is left and none will join.
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
        """Add an event at a time."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, happen))

    def _handle_event(self, event: Event) -> None:
        """Pass an event to the scheduler, and execute its instructions."""
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
        """Report the time to the scheduler."""
        if not self._workers and not self._queue:
            raise RuntimeError("no worker is left and none will join")
        self._at(self._clock + TICK, self._tick)
        self._handle_event(Tick())

    def _join(self, name: str, speed: float) -> None:
        """Add a worker."""
        self._workers[name] = _Worker(name, speed)
        self._handle_event(Joined(name))

    def _send(self, worker: _Worker, task: Task) -> None:
        """Give a task to a worker. A leaving worker returns it when it leaves."""
        if not worker.leaving:
            worker.tasks.append(task)
            if len(worker.tasks) == 1:
                self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        """Start the next task of a worker, or remove a leaving worker."""
        if worker.tasks and not worker.leaving:
            worker.began = self._clock + self._overhead
            seconds = float(self._cost[list(worker.tasks[0].labels)].sum()) / worker.speed
            self._at(worker.began + seconds, partial(self._finish_task, worker, worker.turn))
        elif worker.leaving:
            del self._workers[worker.name]
            self._handle_event(Left(worker.name))

    def _next(self, worker: _Worker, event: Event) -> None:
        """Report the end of a worker's first task and start its next one."""
        worker.tasks.pop(0)
        worker.turn += 1
        waiting = bool(worker.tasks) or worker.leaving
        self._handle_event(event)
        if waiting and not self._finished:
            self._begin(worker)

    def _is_stale(self, worker: _Worker, turn: int) -> bool:
        """Return whether the worker has left or is at another task."""
        return self._workers.get(worker.name) is not worker or worker.turn != turn

    def _finish_task(self, worker: _Worker, turn: int) -> None:
        """Finish a task."""
        if self._is_stale(worker, turn):
            return
        task, seconds = worker.tasks[0], self._clock - worker.began
        if self._schedule.is_expected(worker.name, task.id):
            self._outcome.committed += task.labels
            self._outcome.useful += seconds
            self._outcome.batches.append(len(task.labels))
        else:
            self._outcome.wasted += seconds
        self._next(worker, Done(worker.name, task.id, seconds))

    def _cancel(self, worker: _Worker, task_id: int) -> None:
        """Cancel a task: at once if it has not begun, otherwise at the next slice."""
        place = next((at for at, task in enumerate(worker.tasks) if task.id == task_id), None)
        if place is None:
            return  # returned by a leaving worker
        if place:
            del worker.tasks[place]
            self._handle_event(Cancelled(worker.name, task_id))
        else:
            self._at(self._clock + SLICE, partial(self._give_up, worker, worker.turn))

    def _give_up(self, worker: _Worker, turn: int) -> None:
        """End a cancelled task."""
        if not self._is_stale(worker, turn):
            self._outcome.wasted += self._clock - worker.began
            self._next(worker, Cancelled(worker.name, worker.tasks[0].id))

    def _lose(self, name: str) -> None:
        """Remove a worker as if it had died, if it is present."""
        if (worker := self._workers.pop(name, None)) is not None:
            self._outcome.lost.append(self._clock - worker.began if worker.tasks else 0.0)
            self._outcome.wasted += self._outcome.lost[-1]
            self._handle_event(Lost(name))

    def _leave(self, name: str) -> None:
        """Let a worker leave after its current task; its waiting tasks are returned."""
        if (worker := self._workers.get(name)) is not None:
            worker.leaving = True
            del worker.tasks[1:]
            if not worker.tasks:
                self._begin(worker)


def heavy_tailed(n: int, seed: int = 0) -> Any:
    """Return costs (n,) float64 in seconds, shuffled.

    Their distribution is that measured on library headings: a floor and a power law above it.
    """
    ranks = np.random.default_rng(seed).permutation(np.arange(1.0, n + 1))
    return FLOOR + TOP / ranks**POWER
