"""Scatter: every label once, dearest first, in batches that idle workers pull; whoever comes, goes, dies or is slow.

What a label costs is fitted while labels are solved (`CostModel`), and so is the speed of each worker. A batch is a share
of what is left, at most `batch_seconds` of its worker's time, so that no worker waits long for another at the end. While
plenty is left each worker holds `depth` batches, so that it never idles for a round trip; in the tail it holds one. What a
lost worker had is given out again, first. When nothing is left to give, a task that should end later than a copy of it on
an idle worker is copied; the first result counts, for blocks are the same bits wherever they are made, and the other is
called off.

Nothing here reads a clock: `now` comes with each event. An event takes constant time and a look at one batch, whatever the
number of labels and workers, but for two things that are rationed: sorting what is left, when the fit has changed its
order, at most once in as many events as pay for it; and looking for tasks to copy, which takes a look at each worker, at
most every PAUSE seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from xcray.arrays import Int32
from xcray.schedule.autoscaling import Forecast
from xcray.schedule.backlog import Backlog, Batch
from xcray.schedule.cost_model import CostModel
from xcray.schedule.events import (
    Cancel,
    Cleared,
    Command,
    Done,
    Drain,
    Event,
    Finish,
    GivenUp,
    Joined,
    Left,
    Lost,
    Run,
    Task,
    Tick,
)
from xcray.schedule.worker_table import Crew, Worker

SHARE = 4  # a batch is at most what is left divided by SHARE times the speed of all workers
LEAST = 0.02  # seconds: cheaper batches cost more in messages than they save in waiting,
LEAST_SHARE = 0.01  # but for short jobs, where it is this share of the whole
CAUTION = 0.25  # share of a full batch, while nothing is measured
BATCHES_A_SECOND = 400.0  # of all workers together: with more of them batches grow, up to LONGEST
SHORTEST, LONGEST = 0.25, 1.0  # seconds of a full batch
PAUSE = 0.05  # seconds between two looks for tasks to copy
MARGIN = 0.05  # seconds that a copy must be expected to win
DRIFT = 0.05  # part of the cost left that must have moved between terms before it is sorted again
SORT_SHARE = 500  # labels sorted for each batch done since the last sort, at most
SLOW = 0.7  # a worker below this share of the average leaves labels that it would finish too late


@dataclass
class _Flight:
    """A batch that is out: who runs it now, how many runs were begun, and which workers were lost on it."""

    id: int
    batch: Batch
    holders: list[str]
    runs: int = 0
    losses: list[str] = field(default_factory=list)


class Scatter:
    """The schedule of class-separable solvers.

    labels: (n,) ids to solve. terms: (n, T) what their costs grow with, or (n,) seconds. rates: (T,) first guess of seconds
    a unit. values: (n,) with them the most valuable labels go out first, not the dearest. joint: one task holds all labels.
    batch_seconds: size of a full batch; None: 0.25, and up to 1 with many workers. depth: batches in flight per worker.
    max_attempts: how many workers one task may lose. workers: how many are expected to join.
    """

    def __init__(
        self,
        labels: Sequence[int] | Int32,
        terms: Any,
        rates: Sequence[float] = (1.0,),
        *,
        values: Any = None,
        joint: bool = False,
        batch_seconds: float | None = None,
        depth: int = 2,
        max_attempts: int = 3,
        workers: int = 1,
    ) -> None:
        self._model = CostModel(rates)
        self._backlog = Backlog(labels, terms, rates, values)
        self._crew = Crew(workers)
        self._batch_seconds = batch_seconds or min(
            max(workers / BATCHES_A_SECOND, SHORTEST), LONGEST
        )
        self._depth = depth
        self._max_attempts = max_attempts
        self._joint = joint
        self._by_value = values is not None
        self._flights: dict[int, _Flight] = {}
        self._again: deque[_Flight] = deque()
        self._next_id = 0
        self._sorted_at = 0
        self._looked_at = -inf
        self._failed: str | None = None
        self._draining = False
        self._total = self._backlog.left
        self._done = tuple(0.0 for _ in rates)
        self.done_labels = 0
        self.done_tasks = 0
        self.total_labels = len(self._backlog)
        self._hear = {
            Joined: self._join,
            Lost: self._lose,
            Cleared: self._clear,
            Left: self._leave,
            Done: self._complete,
            GivenUp: self._give_up,
            Drain: self._drain,
            Tick: self._tick,
        }

    def on(self, event: Event, now: float = 0.0) -> list[Command]:
        """What to do now that `event` has happened, at `now` seconds of any clock that never goes back.

        Events of unknown workers and of tasks not in flight change nothing.
        """
        hear: Any = self._hear[type(event)]
        out: list[Command] = hear(event, now)
        if self._failed:
            return [Finish(self._failed)]
        if not self._flights and (self._draining or not (self._again or self._backlog)):
            return [*out, Finish()]
        return out

    def expects(self, worker: str, task_id: int) -> bool:
        """Whether the result of `task_id` at `worker` is wanted: not when another's came first, or the worker was lost."""
        flight = self._flights.get(task_id)
        return flight is not None and worker in flight.holders

    def under_way(self) -> list[tuple[str, Task, float]]:
        """What each busy worker is working on now: its name, the task, and since when."""
        return [
            (worker.name, head, worker.since)
            for worker in self._crew
            if (head := worker.head) is not None
        ]

    def outlook(self) -> Forecast:
        """What is left, for whoever decides how many workers there are to be."""
        average = max(self._crew.average, 1e-9)
        out = sum(self._price(flight) for flight in (*self._again, *self._flights.values()))
        new = (
            0
            if self._draining
            else len(self._backlog) + sum(len(flight.batch.labels) for flight in self._again)
        )
        left = 0.0 if self._draining else self._model.price(self._backlog.left)
        new = min(new, 1) if self._joint else new
        return Forecast(
            (left + out) / average,
            new,
            len(self._flights),
            tuple(self._crew.idle),
            self.done_tasks > 2 * len(self._crew),
        )

    def expect(self, workers: int) -> None:
        """So many workers there will be: batches are sized for them."""
        self._crew.expect(workers)

    @property
    def done_cost(self) -> float:
        """Seconds of what is done, by the present fit."""
        return self._model.price(self._done)

    @property
    def total_cost(self) -> float:
        """Seconds of everything, by the present fit."""
        return self._model.price(self._total)

    def state(self) -> dict[str, Any]:
        """What a restored schedule needs, JSON-ready: labels that are not done with their terms and values, and the fit."""
        left = [
            *(flight.batch for flight in (*self._again, *self._flights.values())),
            self._backlog.rest(),
        ]
        values = [
            value for batch in left if batch.values is not None for value in batch.values.tolist()
        ]
        return {
            "labels": [label for batch in left for label in batch.labels.tolist()],
            "terms": [terms for batch in left for terms in batch.terms.tolist()],
            "values": values if self._by_value else None,
            "model": self._model.state(),
        }

    @classmethod
    def restore(cls, state: dict[str, Any], **options: Any) -> Scatter:
        """A schedule for what `state` (of `Scatter.state`) says is left; `options` as in the constructor."""
        model = CostModel.restore(state["model"])
        schedule = cls(
            state["labels"], state["terms"], model.rates, values=state["values"], **options
        )
        schedule._model = model
        return schedule

    def _join(self, event: Joined, now: float) -> list[Command]:
        """Work for a new worker."""
        self._crew.join(event.worker)
        return self._fill(self._crew[event.worker], now)

    def _lose(self, event: Lost, now: float) -> list[Command]:
        """Take back what a lost worker had."""
        return self._gone(event.worker, now, lost=True)

    def _clear(self, event: Cleared, _: float) -> list[Command]:
        """What a worker was at when it was lost has not cost it."""
        for flight in (*self._again, *self._flights.values()):
            if event.worker in flight.losses:
                flight.losses.remove(event.worker)
        return []

    def _leave(self, event: Left, now: float) -> list[Command]:
        """Take back what a worker that left had not begun."""
        return self._gone(event.worker, now, lost=False)

    def _gone(self, name: str, now: float, *, lost: bool) -> list[Command]:
        """What a worker had goes to others, but for copies; the task that was under way has cost a worker."""
        if name not in self._crew:
            return []
        for place, task in enumerate(self._crew.leave(name, lost)):
            if self.expects(name, task.id):
                flight = self._flights[task.id]
                if lost and place == 0:
                    flight.losses.append(name)
                self._withdraw(flight, name)
                if len(flight.losses) >= self._max_attempts:
                    labels = f"{task.labels[0]}..{task.labels[-1]}"
                    self._failed = (
                        f"{len(flight.losses)} workers were lost on the batch of labels {labels}"
                    )
        return self._fill(None, now)

    def _withdraw(self, flight: _Flight, name: str) -> None:
        """A worker runs a batch no longer; when nobody does, it is given out again."""
        flight.holders.remove(name)
        if not flight.holders:
            self._again.append(self._flights.pop(flight.id))

    def _give_up(self, event: GivenUp, now: float) -> list[Command]:
        """A worker is free of a task that it was told to give up, or gave back by itself."""
        worker = self._crew.get(event.worker)
        if worker is None or event.task_id not in worker.held:
            return []
        self._crew.free(worker, event.task_id, now)
        if self.expects(event.worker, event.task_id):
            self._withdraw(self._flights[event.task_id], event.worker)
        return self._fill(worker, now)

    def _complete(self, event: Done, now: float) -> list[Command]:
        """Count a finished batch, learn from it, call off its copy; late results free their worker and no more."""
        worker = self._crew.get(event.worker)
        if worker is None or event.task_id not in worker.held:
            return []
        wanted = self.expects(event.worker, event.task_id)
        self._crew.free(worker, event.task_id, now)
        if not wanted:
            return self._fill(worker, now)
        flight = self._flights.pop(event.task_id)
        self.done_labels += len(flight.batch.labels)
        self.done_tasks += 1
        self._done = tuple(a + b for a, b in zip(self._done, flight.batch.total, strict=True))
        self._learn(worker, flight.batch.total, event.seconds)
        others = [name for name in flight.holders if name != event.worker]
        return [*(Cancel(name, flight.id) for name in others), *self._fill(worker, now)]

    def _learn(self, worker: Worker, terms: tuple[float, ...], seconds: float) -> None:
        """Fit the cost of terms and the worker's speed; sort what is left when the fit has changed its order."""
        self._model.learn(terms, seconds * worker.speed)
        self._crew.learn(worker, self._model.price(terms), seconds)
        due = (self.done_tasks - self._sorted_at) * SORT_SHARE >= len(self._backlog)
        if due and self._backlog.drift(self._model.rates) > DRIFT:
            self._backlog.sort(self._model.rates)
            self._sorted_at = self.done_tasks

    def _drain(self, _: Drain, __: float) -> list[Command]:
        """Begin nothing more."""
        self._draining = True
        return []

    def _tick(self, _: Tick, now: float) -> list[Command]:
        """A task may be late by now."""
        return self._fill(None, now)

    def _fill(self, worker: Worker | None, now: float) -> list[Command]:
        """Fill the worker that something happened to, then those that idle; with nothing to give, copy what is late."""
        out: list[Command] = []
        depth = self._depth if self._plenty() else 1
        while (
            worker is not None
            and len(worker.held) < depth
            and (flight := self._take(worker)) is not None
        ):
            out.append(self._give(flight, worker, now))
        while (idle := next(iter(self._crew.idle.values()), None)) is not None and (
            flight := self._take(idle)
        ) is not None:
            out.append(self._give(flight, idle, now))
        return out or self._copy(now)

    def _plenty(self) -> bool:
        """Whether each worker, also those still to join, could have several full batches more."""
        left = self._model.price(self._backlog.left)
        return self.done_tasks > 0 and left > SHARE * self._crew.strength * self._batch_seconds

    def _take(self, worker: Worker) -> _Flight | None:
        """The next batch for a worker: one given back, or labels not yet given out."""
        if self._draining or self._failed:
            return None
        if self._again:
            return self._again.popleft()
        if not self._backlog:
            return None
        self._next_id += 1
        return _Flight(
            self._next_id - 1, self._backlog.take_all() if self._joint else self._batch(worker), []
        )

    def _batch(self, worker: Worker) -> Batch:
        """The dearest labels that are a fair share for a worker.

        One so slow that the rest of the job would be done before it had solved the dearest takes the cheapest instead.
        """
        rates = self._model.rates
        horizon = self._model.price(self._backlog.left) / self._crew.strength
        seconds = min(self._batch_seconds * (1.0 if self.done_tasks else CAUTION), horizon / SHARE)
        least = max(LEAST, len(self._crew) / (5.0 * BATCHES_A_SECOND))
        seconds = max(seconds, min(least, LEAST_SHARE * self.total_cost / self._crew.strength))
        slow = not self._by_value and worker.speed < SLOW * self._crew.average
        back = slow and self._backlog.first(rates) / worker.speed > horizon
        return self._backlog.take(rates, seconds * worker.speed, back)

    def _give(self, flight: _Flight, worker: Worker, now: float) -> Run:
        """One more run of a batch."""
        flight.runs += 1
        copy = bool(flight.holders)
        flight.holders.append(worker.name)
        self._flights[flight.id] = flight
        labels = tuple(flight.batch.labels.tolist())
        task = Task(flight.id, labels, self._model.price(flight.batch.total), flight.runs, copy)
        self._crew.give(worker, task, now)
        return Run(worker.name, task)

    def _copy(self, now: float) -> list[Command]:
        """Copies of tasks that idle workers should end sooner than those that hold them; one copy of each."""
        waiting = self._crew.idle and self._flights and self.done_tasks
        if (
            not waiting
            or self._draining
            or self._failed
            or self._joint
            or now < self._looked_at + PAUSE
        ):
            return []
        self._looked_at = now
        out: list[Command] = []
        late = sorted(self._alone(now), key=lambda found: -found[0])
        for idle in sorted(self._crew.idle.values(), key=lambda worker: -worker.speed):
            gains = (
                at
                for at, (seconds, flight) in enumerate(late)
                if seconds > self._price(flight) / idle.speed + MARGIN
            )
            if (best := next(gains, None)) is None:
                break  # who is slower gains less
            out.append(self._give(late.pop(best)[1], idle, now))
        return out

    def _alone(self, now: float) -> Iterator[tuple[float, _Flight]]:
        """Batches that one worker runs, and the seconds until it should have done so."""
        for worker in self._crew:
            for task, seconds in worker.ends(now, self._price_of):
                if self.expects(worker.name, task.id) and len(self._flights[task.id].holders) == 1:
                    yield seconds, self._flights[task.id]

    def _price(self, flight: _Flight) -> float:
        """Seconds of a batch, by the present fit."""
        return self._model.price(flight.batch.total)

    def _price_of(self, task: Task) -> float:
        """Seconds of a task, by the present fit; of one called off, as foreseen when it was given."""
        flight = self._flights.get(task.id)
        return task.cost if flight is None else self._price(flight)
