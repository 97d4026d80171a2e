"""Pools in this process: serial, and threads (kernels release the GIL)."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque

import numpy as np

from xcray.execution.pool import Failed, Report, Result, StopFlag
from xcray.schedule.messages import Joined, Task
from xcray.solvers.solver import Local, Solver


def run_task(solver: Solver, local: Local, worker: str, task: Task, stop: StopFlag, opened: float) -> Result | Failed:
    """Solve one task here and now; whatever it raises becomes a Failed."""
    started = time.monotonic()
    try:
        block = solver.solve(local, np.array(task.labels, np.int32), stop.is_set)
    except Exception as error:
        return Failed(worker, task, error)
    return Result(worker, task, block, started - opened, time.monotonic() - started)


class SerialPool:
    """One worker: the calling thread. A task runs inside `wait`."""

    def __init__(self, solver: Solver, local: Local) -> None:
        self._solver, self._local = solver, local
        self._tasks: deque[tuple[str, Task]] = deque()
        self._reports: list[Report] = []
        self._stop, self._opened = StopFlag(), 0.0

    def open(self) -> None:
        """Join the one worker, `serial`."""
        self._opened = time.monotonic()
        self._reports.append(Joined("serial"))

    def submit(self, worker: str, task: Task) -> None:
        """Queue a task for the next `wait`."""
        self._tasks.append((worker, task))

    def wait(self, seconds: float) -> list[Report]:
        """Run one queued task; `seconds` is not used, for nothing happens elsewhere."""
        reports, self._reports = self._reports, []
        if not reports and self._tasks:
            worker, task = self._tasks.popleft()
            reports = [run_task(self._solver, self._local, worker, task, self._stop, self._opened)]
        return reports

    def stop(self) -> None:
        """Drop what is queued; a task under way ends at its next slice."""
        self._stop.set()
        self._tasks.clear()

    def close(self) -> None:
        """Nothing was started, so nothing ends."""
        self._tasks.clear()


class ThreadPool:
    """One thread a worker, `thread-0` and so on; the problem is shared, scratch is each thread's own."""

    def __init__(self, solver: Solver, local: Local, workers: int) -> None:
        self._solver, self._local = solver, local
        self._queues: dict[str, queue.SimpleQueue[Task | None]] = {f"thread-{n}": queue.SimpleQueue() for n in range(workers)}
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stop, self._opened = StopFlag(), 0.0

    def open(self) -> None:
        """Start the threads."""
        self._opened = time.monotonic()
        self._solver.warm_up()  # compile once, not in every thread
        for name in self._queues:
            thread = threading.Thread(target=self._work, args=(name,), name=f"xcray-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, worker: str, task: Task) -> None:
        """Queue a task for one thread."""
        self._queues[worker].put(task)

    def wait(self, seconds: float) -> list[Report]:
        """The first report within `seconds`, and all others that are there with it."""
        reports: list[Report] = []
        try:
            reports.append(self._reports.get(timeout=seconds))
            while True:
                reports.append(self._reports.get_nowait())
        except queue.Empty:
            return reports

    def stop(self) -> None:
        """Let running tasks end at their next slice."""
        self._stop.set()

    def close(self) -> None:
        """Stop and join the threads."""
        self._stop.set()
        for tasks in self._queues.values():
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self, name: str) -> None:
        """A thread's life: tasks from its own queue until None."""
        local = self._local.sibling()
        self._reports.put(Joined(name))
        while (task := self._queues[name].get()) is not None:
            self._reports.put(run_task(self._solver, local, name, task, self._stop, self._opened))
