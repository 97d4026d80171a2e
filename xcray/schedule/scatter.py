"""Scatter: every label once, dearest first, in batches that idle workers pull.

Batches are guided: a share of what is left, at most `batch_seconds` by the rate measured so far, so that the tail is
made of single labels and no worker waits long for another. While plenty is left, each worker holds `depth` batches, so
that it never idles for a round trip; in the tail it holds one, so that nothing waits behind a slow worker. What a lost
worker had is given out again, first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcray.schedule.messages import Command, Done, Event, Finish, Joined, Lost, Run, Task

SHARE = 4  # a batch is at most what is left divided by SHARE times the number of workers


class Scatter:
    """The schedule of class-separable solvers.

    labels: ids to solve; costs: their estimated work, in any unit; batch_seconds: the size to aim at;
    depth: batches in flight per worker; max_attempts: how often one task may lose its worker;
    workers: how many are expected to join; rate: first guess of cost units a second a worker (0: the first batches are
    single labels).
    """

    def __init__(
        self,
        labels: Sequence[int],
        costs: Sequence[float],
        *,
        batch_seconds: float = 0.25,
        depth: int = 2,
        max_attempts: int = 3,
        workers: int = 1,
        rate: float = 0.0,
    ) -> None:
        order = sorted(range(len(labels)), key=lambda place: (-costs[place], labels[place]))
        self._labels = [int(labels[place]) for place in order]
        self._costs = [float(costs[place]) for place in order]
        self._next, self._next_id = 0, 0
        self._left = sum(self._costs)  # cost not yet given out
        self._batch_seconds, self._depth, self._max_attempts = batch_seconds, depth, max_attempts
        self._expected, self._rate = workers, rate
        self._again: list[Task] = []
        self._in_flight: dict[int, tuple[str, Task]] = {}
        self._workers: dict[str, int] = {}
        self._failed: str | None = None
        self.done_labels, self.done_cost = 0, 0.0
        self.total_labels, self.total_cost = len(self._labels), self._left

    def on(self, event: Event) -> list[Command]:
        """What to do now that `event` has happened. Events of unknown workers and of tasks not in flight change nothing."""
        if isinstance(event, Joined):
            self._workers.setdefault(event.worker, 0)
        elif isinstance(event, Lost):
            self._lose(event.worker)
        elif not self._complete(event):
            return []
        return self._commands()

    def expects(self, worker: str, task_id: int) -> bool:
        """Whether `task_id` is in flight at `worker`: results of anything else are late and not wanted."""
        held = self._in_flight.get(task_id)
        return held is not None and held[0] == worker

    def state(self) -> dict[str, Any]:
        """What a restored schedule needs, JSON-ready: labels that are not done with their costs, and the rate."""
        waiting = [*self._again, *(task for _, task in self._in_flight.values())]
        pairs = [(label, cost) for task in waiting for label, cost in self._priced(task)]
        pairs += zip(self._labels[self._next :], self._costs[self._next :], strict=True)
        return {"labels": [label for label, _ in pairs], "costs": [cost for _, cost in pairs], "rate": self._rate}

    @classmethod
    def restore(cls, state: dict[str, Any], **options: Any) -> Scatter:
        """A schedule for what `state` (of `Scatter.state`) says is left; `options` as in the constructor."""
        return cls(state["labels"], state["costs"], rate=state["rate"], **options)

    def _priced(self, task: Task) -> list[tuple[int, float]]:
        """The labels of a task with an equal share of its cost each."""
        return [(label, task.cost / len(task.labels)) for label in task.labels]

    def _complete(self, event: Done) -> bool:
        """Record a finished task; False when it was not expected."""
        if not self.expects(event.worker, event.task_id):
            return False
        _, task = self._in_flight.pop(event.task_id)
        self._workers[event.worker] -= 1
        self.done_labels += len(task.labels)
        self.done_cost += task.cost
        if event.seconds > 0.0 and task.cost > 0.0:
            measured = task.cost / event.seconds
            self._rate = measured if self._rate == 0.0 else 0.8 * self._rate + 0.2 * measured
        return True

    def _lose(self, worker: str) -> None:
        """Take back what a lost worker had; a task that keeps losing workers fails the schedule."""
        if self._workers.pop(worker, None) is None:
            return
        for task_id in [task_id for task_id, (holder, _) in self._in_flight.items() if holder == worker]:
            _, task = self._in_flight.pop(task_id)
            if task.attempt >= self._max_attempts:
                self._failed = f"{task.attempt} workers were lost on the batch of labels {task.labels[0]}..{task.labels[-1]}"
            self._again.append(Task(task.id, task.labels, task.cost, task.attempt + 1))

    def _commands(self) -> list[Command]:
        """Fill the workers, the emptiest first; or finish."""
        if self._failed:
            return [Finish(self._failed)]
        out: list[Command] = []
        for level in range(self._depth if self._plenty() else 1):
            for worker in sorted(self._workers):
                if self._workers[worker] == level and (task := self._take()) is not None:
                    self._in_flight[task.id] = (worker, task)
                    self._workers[worker] += 1
                    out.append(Run(worker, task))
        return out if out or self._in_flight or self._again or self._next < len(self._labels) else [Finish()]

    def _plenty(self) -> bool:
        """Whether each worker, also those still to join, could have several full batches more."""
        batch = self._rate * self._batch_seconds
        return self.done_labels > 0 and self._left > SHARE * max(self._expected, len(self._workers)) * batch

    def _take(self) -> Task | None:
        """The next batch: one given back, or the dearest labels not yet given out."""
        if self._again:
            return self._again.pop(0)
        if self._next >= len(self._labels):
            return None
        limit = self._left / (SHARE * max(len(self._workers), self._expected))
        limit = min(limit, self._rate * self._batch_seconds)
        end, cost = self._next + 1, self._costs[self._next]
        while end < len(self._labels) and cost + self._costs[end] <= limit:
            cost += self._costs[end]
            end += 1
        task = Task(self._next_id, tuple(self._labels[self._next : end]), cost)
        self._next, self._next_id, self._left = end, self._next_id + 1, self._left - cost
        return task
