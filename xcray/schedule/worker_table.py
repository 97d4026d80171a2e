"""Who is there: the workers of a job, what each holds, and how fast they are together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xcray.schedule.cost_model import Speed
from xcray.schedule.events import Task


class Worker:
    """One worker: the tasks it holds, in the order given; the first is under way since `since`, in seconds."""

    def __init__(self, name: str, like: float) -> None:
        self.name = name
        self.held = dict[int, Task]()
        self.since = 0.0
        self.pace = Speed(like)

    @property
    def speed(self) -> float:
        """Foreseen seconds of work done in a second."""
        return self.pace.factor

    @property
    def head(self) -> Task | None:
        """The task under way."""
        return next(iter(self.held.values()), None)

    def ends(self, now: float, cost: Callable[[Task], float]) -> Iterator[tuple[Task, float]]:
        """Each task held, and the seconds until it should end; when it is late already, as much again as it is late."""
        ahead = self.since - now
        for task in self.held.values():
            ahead = abs(ahead + cost(task) / self.speed)
            yield task, ahead


class Crew:
    """The workers by name, those that idle, and the sum of their speeds. A worker starts with the speed of the average.

    expected: how many will come; until they do, work is put by for them.
    """

    def __init__(self, expected: int) -> None:
        self._workers: dict[str, Worker] = {}
        self._expected = expected
        self._speed = 0.0
        self.idle: dict[str, Worker] = {}  # in the order they became so

    def __contains__(self, name: str) -> bool:
        return name in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def get(self, name: str) -> Worker | None:
        """The worker called `name`, or None."""
        return self._workers.get(name)

    @property
    def average(self) -> float:
        """Speed of a worker, on average."""
        return self._speed / len(self._workers) if self._workers else 1.0

    @property
    def strength(self) -> float:
        """Foreseen seconds of work that all do in a second, also those still to come."""
        return max(self._speed + max(self._expected - len(self._workers), 0) * self.average, 1e-9)

    def expect(self, workers: int) -> None:
        """So many will be there; until they are, work is put by for them."""
        self._expected = workers

    def join(self, name: str) -> None:
        """A worker is there; it idles."""
        if name not in self._workers:
            self._workers[name] = self.idle[name] = Worker(name, self.average)
            self._speed += self._workers[name].speed

    def leave(self, name: str, lost: bool) -> list[Task]:
        """A worker is gone; what it held. One that left as planned is not expected back."""
        worker = self._workers.pop(name)
        self.idle.pop(name, None)
        self._speed -= worker.speed
        self._expected -= 0 if lost else 1
        return list(worker.held.values())

    def give(self, worker: Worker, task: Task, now: float) -> None:
        """A task for a worker; it begins now when there is nothing before it."""
        if not worker.held:
            worker.since = now
            self.idle.pop(worker.name, None)
        worker.held[task.id] = task

    def free(self, worker: Worker, task_id: int, now: float) -> None:
        """A worker no longer holds a task; the next it holds, if any, begins now when this one was under way."""
        head = worker.head
        if head is not None and head.id == task_id:
            worker.since = now
        worker.held.pop(task_id, None)
        if not worker.held:
            self.idle[worker.name] = worker

    def learn(self, worker: Worker, foreseen: float, seconds: float) -> None:
        """A batch that the cost model foresaw at `foreseen` seconds took a worker `seconds`."""
        before = worker.speed
        worker.pace.learn(foreseen, seconds)
        self._speed += worker.speed - before
