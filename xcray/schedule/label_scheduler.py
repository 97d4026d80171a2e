"""Scheduler of independent labels: each label is solved once, the most expensive ones first.

Idle workers pull batches. Workers can join, leave, fail or be slow at any time.

The cost of a label (`CostModel`) and the speed of each worker are fitted while labels are solved.
A batch is a share of the remaining work (guided self-scheduling) of at most a full batch, so that
no worker waits long for another one at the end. Full batches grow with the work that is left, so
that a worker has a few thousand of them in a training of any length. While plenty of work is
left, each worker holds `depth` batches, so that it does not idle during a round trip. In the tail
it holds one. Batches of a lost worker are assigned again, first. When no work is left to assign, a
task that is expected to end later than a copy of it on an idle worker is copied. The first result
counts, because blocks have the same bits on any worker, and the other run is cancelled.

The scheduler reads no clock: `now` comes with each event. An event takes constant time and a scan
of one batch, for any number of labels and workers, with two rationed exceptions. The remaining
labels are sorted if the fit has changed their order, at most once per SORTED_LABELS_PER_BATCH
labels and batch. Late tasks are searched with a scan of all workers, at most once every
COPY_SCAN_SECONDS.
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
from xcray.schedule.batch_size import GUIDED_FACTOR, full_batch_seconds, guided_seconds
from xcray.schedule.cost_model import CostModel
from xcray.schedule.events import (
    Cancel,
    Cancelled,
    Command,
    Done,
    Drain,
    Event,
    Finish,
    Joined,
    Left,
    Lost,
    NodeLost,
    Run,
    Task,
    Tick,
)
from xcray.schedule.worker_table import WorkerState, WorkerTable

UNMEASURED_SHARE = 0.25  # share of a full batch while nothing is measured
COPY_SCAN_SECONDS = 0.05  # between two searches for tasks to copy
COPY_MARGIN_SECONDS = 0.05  # that a copy must be expected to gain
# Share of the remaining cost that must move between terms before labels are sorted again.
RESORT_DRIFT = 0.05
SORTED_LABELS_PER_BATCH = 500  # maximum per batch done since the last sort
# Workers below this share of the average speed leave labels that would end too late.
SLOW_WORKER_SHARE = 0.7


@dataclass
class _InFlight:
    """A batch in flight: the workers that run it, the number of runs, the workers lost on it."""

    id: int
    batch: Batch
    holders: list[str]
    runs: int = 0
    lost_workers: list[str] = field(default_factory=list)


class LabelScheduler:
    """The schedule of solvers whose labels are independent.

    labels: (n,) ids to solve. terms: (n, T) cost terms of the labels, or (n,) seconds.
    rates: (T,) first guess of seconds per unit of each term.
    values: (n,) optional; the most valuable labels are assigned first, not the most expensive ones.
    batch_seconds: size of a full batch; None for 0.25, and up to 4 with many workers or much work.
    depth: batches in flight per worker.
    max_attempts: number of workers that one task may lose.
    workers: number of workers that are expected to join.
    """

    def __init__(
        self,
        labels: Sequence[int] | Int32,
        terms: Any,
        rates: Sequence[float] = (1.0,),
        *,
        values: Any = None,
        batch_seconds: float | None = None,
        depth: int = 2,
        max_attempts: int = 3,
        workers: int = 1,
    ) -> None:
        self._model = CostModel(rates)
        self._backlog = Backlog(labels, terms, rates, values)
        self._workers = WorkerTable(workers)
        self._fixed_batch_seconds = batch_seconds
        self._depth = depth
        self._max_attempts = max_attempts
        self._by_value = values is not None
        self._in_flight: dict[int, _InFlight] = {}
        self._retries: deque[_InFlight] = deque()
        self._next_id = 0
        self._sorted_at = 0
        self._scanned_at = -inf
        self._failure: str | None = None
        self._draining = False
        self._total_terms = self._backlog.remaining_terms
        self._done_terms = tuple(0.0 for _ in rates)
        self.done_labels = 0
        self.done_tasks = 0
        self.total_labels = len(self._backlog)
        self._handlers = {
            Joined: self._on_joined,
            Lost: self._on_lost,
            NodeLost: self._on_node_lost,
            Left: self._on_left,
            Done: self._on_done,
            Cancelled: self._on_cancelled,
            Drain: self._on_drain,
            Tick: self._on_tick,
        }

    def on(self, event: Event, now: float = 0.0) -> list[Command]:
        """Return the commands that follow from `event` at `now`, in seconds of a monotonic clock.

        Events of unknown workers and of tasks that are not in flight have no effect.
        """
        handle: Any = self._handlers[type(event)]
        out: list[Command] = handle(event, now)
        if self._failure:
            return [Finish(self._failure)]
        if not self._in_flight and (self._draining or not (self._retries or self._backlog)):
            return [*out, Finish()]
        return out

    def is_expected(self, worker: str, task_id: int) -> bool:
        """Return whether the result of `task_id` from `worker` is still needed.

        It is not if another worker was first, or if the worker was lost.
        """
        flight = self._in_flight.get(task_id)
        return flight is not None and worker in flight.holders

    def running_tasks(self) -> list[tuple[str, Task, float]]:
        """Return the worker, the current task and its start for each busy worker."""
        return [
            (worker.name, head, worker.busy_since)
            for worker in self._workers
            if (head := worker.current) is not None
        ]

    def forecast(self) -> Forecast:
        """Return the remaining work, as input of the autoscaling policy."""
        average = max(self._workers.average_speed, 1e-9)
        out = sum(
            self._batch_price(flight) for flight in (*self._retries, *self._in_flight.values())
        )
        new = (
            0
            if self._draining
            else len(self._backlog) + sum(len(flight.batch.labels) for flight in self._retries)
        )
        left = 0.0 if self._draining else self._model.price(self._backlog.remaining_terms)
        return Forecast(
            (left + out) / average,
            new,
            len(self._in_flight),
            tuple(self._workers.idle),
            self.done_tasks > 2 * len(self._workers),
        )

    def expect_workers(self, workers: int) -> None:
        """Set the number of workers that batches are sized for."""
        self._workers.set_expected(workers)

    @property
    def done_cost(self) -> float:
        """Seconds of the finished work, by the current fit."""
        return self._model.price(self._done_terms)

    @property
    def total_cost(self) -> float:
        """Seconds of all work, by the current fit."""
        return self._model.price(self._total_terms)

    def _on_joined(self, event: Joined, now: float) -> list[Command]:
        """Assign batches to a new worker."""
        self._workers.add(event.worker)
        return self._assign_batches(self._workers[event.worker], now)

    def _on_lost(self, event: Lost, now: float) -> list[Command]:
        """Take back the batches of a lost worker."""
        return self._remove_worker(event.worker, now, lost=True)

    def _on_node_lost(self, event: NodeLost, _: float) -> list[Command]:
        """Do not count the loss of a worker against its batch: its whole node was lost."""
        for flight in (*self._retries, *self._in_flight.values()):
            if event.worker in flight.lost_workers:
                flight.lost_workers.remove(event.worker)
        return []

    def _on_left(self, event: Left, now: float) -> list[Command]:
        """Take back the batches that a leaving worker has not started."""
        return self._remove_worker(event.worker, now, lost=False)

    def _remove_worker(self, name: str, now: float, *, lost: bool) -> list[Command]:
        """Assign the batches of a worker to others, except copies.

        If the worker was lost, the loss counts against the batch that it was running.
        """
        if name not in self._workers:
            return []
        for place, task in enumerate(self._workers.remove(name, lost)):
            if self.is_expected(name, task.id):
                flight = self._in_flight[task.id]
                if lost and place == 0:
                    flight.lost_workers.append(name)
                self._release_batch(flight, name)
                if len(flight.lost_workers) >= self._max_attempts:
                    labels = f"{task.labels[0]}..{task.labels[-1]}"
                    n = len(flight.lost_workers)
                    self._failure = f"{n} workers were lost on the batch of labels {labels}"
        return self._assign_batches(None, now)

    def _release_batch(self, flight: _InFlight, name: str) -> None:
        """Remove a worker from a batch; without workers the batch is assigned again."""
        flight.holders.remove(name)
        if not flight.holders:
            self._retries.append(self._in_flight.pop(flight.id))

    def _on_cancelled(self, event: Cancelled, now: float) -> list[Command]:
        """Release a task that the worker stopped, on request or by itself."""
        worker = self._workers.get(event.worker)
        if worker is None or event.task_id not in worker.tasks:
            return []
        self._workers.release(worker, event.task_id, now)
        if self.is_expected(event.worker, event.task_id):
            self._release_batch(self._in_flight[event.task_id], event.worker)
        return self._assign_batches(worker, now)

    def _on_done(self, event: Done, now: float) -> list[Command]:
        """Count a finished batch, update the model, cancel its copy.

        A late result only frees its worker.
        """
        worker = self._workers.get(event.worker)
        if worker is None or event.task_id not in worker.tasks:
            return []
        expected = self.is_expected(event.worker, event.task_id)
        self._workers.release(worker, event.task_id, now)
        if not expected:
            return self._assign_batches(worker, now)
        flight = self._in_flight.pop(event.task_id)
        self.done_labels += len(flight.batch.labels)
        self.done_tasks += 1
        self._done_terms = tuple(
            a + b for a, b in zip(self._done_terms, flight.batch.total, strict=True)
        )
        self._update_model(worker, flight.batch.total, event.seconds)
        others = [name for name in flight.holders if name != event.worker]
        return [*(Cancel(name, flight.id) for name in others), *self._assign_batches(worker, now)]

    def _update_model(self, worker: WorkerState, terms: tuple[float, ...], seconds: float) -> None:
        """Update the costs and the speed; sort the remaining labels if their order has changed."""
        before = self._model.rates
        self._model.update(terms, seconds * worker.speed)
        self._workers.update_speed(worker, self._model.price(terms), seconds)
        rates, n_since = self._model.rates, self.done_tasks - self._sorted_at
        due = rates is not before and n_since * SORTED_LABELS_PER_BATCH >= len(self._backlog)
        if due and self._backlog.order_drift(rates) > RESORT_DRIFT:
            self._backlog.sort(rates)
            self._sorted_at = self.done_tasks

    def _on_drain(self, _: Drain, __: float) -> list[Command]:
        """Start no more tasks."""
        self._draining = True
        return []

    def _on_tick(self, _: Tick, now: float) -> list[Command]:
        """Check for late tasks."""
        return self._assign_batches(None, now)

    def _assign_batches(self, worker: WorkerState | None, now: float) -> list[Command]:
        """Fill `worker`, then the idle workers; copy late batches if no work is left to assign."""
        out: list[Command] = []
        depth = self._depth if self._has_plenty() else 1
        while (
            worker is not None
            and len(worker.tasks) < depth
            and (flight := self._next_batch(worker)) is not None
        ):
            out.append(self._dispatch(flight, worker, now))
        while (idle := next(iter(self._workers.idle.values()), None)) is not None and (
            flight := self._next_batch(idle)
        ) is not None:
            out.append(self._dispatch(flight, idle, now))
        return out or self._copy_late(now)

    @property
    def _horizon(self) -> float:
        """Seconds until all labels that are not assigned yet are done by all workers."""
        left = self._model.price(self._backlog.remaining_terms)
        return left / self._workers.total_speed

    @property
    def _batch_seconds(self) -> float:
        """Seconds of a full batch."""
        return self._fixed_batch_seconds or full_batch_seconds(
            self._workers.expected, self._horizon, self._by_value
        )

    def _has_plenty(self) -> bool:
        """Return whether several full batches are left per worker, expected ones included."""
        return self.done_tasks > 0 and self._horizon > GUIDED_FACTOR * self._batch_seconds

    def _next_batch(self, worker: WorkerState) -> _InFlight | None:
        """Return the next batch for a worker: a retry, or labels that are not assigned yet."""
        if self._draining or self._failure:
            return None
        if self._retries:
            return self._retries.popleft()
        if not self._backlog:
            return None
        self._next_id += 1
        return _InFlight(self._next_id - 1, self._cut_batch(worker), [])

    def _cut_batch(self, worker: WorkerState) -> Batch:
        """Return the most expensive labels that are a fair share for a worker.

        A worker that is too slow to solve the most expensive label before the rest of the job is
        done gets the cheapest labels instead.
        """
        rates, horizon = self._model.rates, self._horizon
        seconds = guided_seconds(
            self._batch_seconds * (1.0 if self.done_tasks else UNMEASURED_SHARE),
            horizon,
            len(self._workers),
            self.total_cost / self._workers.total_speed,
        )
        slow = not self._by_value and worker.speed < SLOW_WORKER_SHARE * self._workers.average_speed
        back = slow and self._backlog.first_price(rates) / worker.speed > horizon
        return self._backlog.take(rates, seconds * worker.speed, back)

    def _dispatch(self, flight: _InFlight, worker: WorkerState, now: float) -> Run:
        """Start one more run of a batch."""
        flight.runs += 1
        copy = bool(flight.holders)
        flight.holders.append(worker.name)
        self._in_flight[flight.id] = flight
        labels = tuple(flight.batch.labels.tolist())
        task = Task(flight.id, labels, self._model.price(flight.batch.total), flight.runs, copy)
        self._workers.assign(worker, task, now)
        return Run(worker.name, task)

    def _copy_late(self, now: float) -> list[Command]:
        """Copy tasks that an idle worker is expected to finish earlier; one copy per task."""
        waiting = self._workers.idle and self._in_flight and self.done_tasks
        if (
            not waiting
            or self._draining
            or self._failure
            or now < self._scanned_at + COPY_SCAN_SECONDS
        ):
            return []
        self._scanned_at = now
        out: list[Command] = []
        late = sorted(self._single_runs(now), key=lambda run: -run[0])
        for idle in sorted(self._workers.idle.values(), key=lambda worker: -worker.speed):
            gains = (
                at
                for at, (seconds, flight) in enumerate(late)
                if seconds > self._batch_price(flight) / idle.speed + COPY_MARGIN_SECONDS
            )
            if (best := next(gains, None)) is None:
                break  # slower workers gain less
            out.append(self._dispatch(late.pop(best)[1], idle, now))
        return out

    def _single_runs(self, now: float) -> Iterator[tuple[float, _InFlight]]:
        """Yield batches that one worker runs, with the seconds until their expected end."""
        for worker in self._workers:
            for task, seconds in worker.expected_ends(now, self._task_price):
                if (
                    self.is_expected(worker.name, task.id)
                    and len(self._in_flight[task.id].holders) == 1
                ):
                    yield seconds, self._in_flight[task.id]

    def _batch_price(self, flight: _InFlight) -> float:
        """Return the seconds of a batch, by the current fit."""
        return self._model.price(flight.batch.total)

    def _task_price(self, task: Task) -> float:
        """Return the seconds of a task, by the current fit; of a cancelled one, as predicted."""
        flight = self._in_flight.get(task.id)
        return task.cost if flight is None else self._batch_price(flight)
