"""Workers of a job: the tasks of each, and their speeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xcray.schedule.cost_model import Speed
from xcray.schedule.events import Task


class WorkerState:
    """One worker with its tasks in order; the first one runs since `busy_since`, in seconds."""

    def __init__(self, name: str, initial_speed: float) -> None:
        self.name = name
        self.tasks = dict[int, Task]()
        self.busy_since = 0.0
        self.speed_estimate = Speed(initial_speed)

    @property
    def speed(self) -> float:
        """Predicted seconds of work done per second."""
        return self.speed_estimate.factor

    @property
    def current(self) -> Task | None:
        """The running task."""
        return next(iter(self.tasks.values()), None)

    def expected_ends(
        self, now: float, cost: Callable[[Task], float]
    ) -> Iterator[tuple[Task, float]]:
        """Yield each task with the seconds until its expected end.

        A late task is expected to take as long again as it is late.
        """
        ahead = self.busy_since - now
        for task in self.tasks.values():
            ahead = abs(ahead + cost(task) / self.speed)
            yield task, ahead


class WorkerTable:
    """Workers by name, the idle ones, and the sum of their speeds.

    A worker starts with the average speed. expected: number of workers that will join; work is
    reserved for them until they do.
    """

    def __init__(self, expected: int) -> None:
        self._workers: dict[str, WorkerState] = {}
        self._expected = expected
        self._speed = 0.0
        self.idle: dict[str, WorkerState] = {}  # in the order in which they became idle

    def __contains__(self, name: str) -> bool:
        return name in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self._workers.values())

    def __getitem__(self, name: str) -> WorkerState:
        return self._workers[name]

    def get(self, name: str) -> WorkerState | None:
        """Return the worker called `name`, or None."""
        return self._workers.get(name)

    @property
    def expected(self) -> int:
        """Number of workers, with those that will join."""
        return max(self._expected, len(self._workers))

    @property
    def average_speed(self) -> float:
        """Average speed of a worker."""
        return self._speed / len(self._workers) if self._workers else 1.0

    @property
    def total_speed(self) -> float:
        """Predicted seconds of work that all workers do per second, expected ones included."""
        return max(
            self._speed + max(self._expected - len(self._workers), 0) * self.average_speed, 1e-9
        )

    def set_expected(self, workers: int) -> None:
        """Set the number of workers that work is reserved for."""
        self._expected = workers

    def add(self, name: str) -> None:
        """Add a worker, which is idle."""
        if name not in self._workers:
            self._workers[name] = self.idle[name] = WorkerState(name, self.average_speed)
            self._speed += self._workers[name].speed

    def remove(self, name: str, lost: bool) -> list[Task]:
        """Remove a worker and return its tasks; one that left as planned is not expected back."""
        worker = self._workers.pop(name)
        self.idle.pop(name, None)
        self._speed -= worker.speed
        self._expected -= 0 if lost else 1
        return list(worker.tasks.values())

    def assign(self, worker: WorkerState, task: Task, now: float) -> None:
        """Give a task to a worker; it starts now if the worker is idle."""
        if not worker.tasks:
            worker.busy_since = now
            self.idle.pop(worker.name, None)
        worker.tasks[task.id] = task

    def release(self, worker: WorkerState, task_id: int, now: float) -> None:
        """Take a task from a worker; if it was running, the next one starts now."""
        current = worker.current
        if current is not None and current.id == task_id:
            worker.busy_since = now
        worker.tasks.pop(task_id, None)
        if not worker.tasks:
            self.idle[worker.name] = worker

    def update_speed(self, worker: WorkerState, predicted: float, seconds: float) -> None:
        """Record that a batch predicted to take `predicted` seconds took the worker `seconds`."""
        before = worker.speed
        worker.speed_estimate.update(predicted, seconds)
        self._speed += worker.speed - before
