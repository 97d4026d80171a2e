"""Pools in this process: serial, and threads (kernels release the GIL)."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque

import numpy as np

from xcray.errors import ParameterError, Stopped
from xcray.schedule.autoscaling import Forecast
from xcray.schedule.events import Joined, Left, Task
from xcray.solvers.contract import SolverState
from xcray.system.memory import MemoryUsage
from xcray.workers.contract import WorkerStatus
from xcray.workers.pool import (
    Failed,
    Report,
    Result,
    StopFlag,
    TaskCancelled,
    TaskRunner,
)


class _LocalExecutor:
    """Executor of tasks in this process: the task runner, the clock, and cancelled tasks."""

    def __init__(self, work: TaskRunner) -> None:
        self.work = work
        self.stop = StopFlag()
        self.opened = time.monotonic()
        # (worker, task id), added by the pool's thread and read by the worker's
        self.cancelled: set[tuple[str, int]] = set()

    def now(self) -> float:
        """Return the seconds since the pool was opened."""
        return time.monotonic() - self.opened

    def run_task(
        self, local: SolverState, worker: str, task: Task
    ) -> Result | Failed | TaskCancelled:
        """Solve one task in this thread; an exception becomes a Failed or a TaskCancelled."""
        started, cpu, key = self.now(), time.thread_time(), (worker, task.id)
        try:
            block = self.work.solve(
                local,
                np.array(task.labels, np.int32),
                lambda: self.stop.is_set() or key in self.cancelled,
            )
        except Stopped as error:
            if key in self.cancelled:
                return TaskCancelled(worker, task, started, self.now() - started)
            return Failed(worker, task, error)
        except Exception as error:
            return Failed(worker, task, error)
        finally:
            self.cancelled.discard(key)
        seconds, cpu = self.now() - started, time.thread_time() - cpu
        return Result(worker, task, block, started, seconds, cpu)


class _LocalPool:
    """Base of pools whose workers are this process."""

    def __init__(self, work: TaskRunner, local: SolverState) -> None:
        self._executor = _LocalExecutor(work)
        self._local = local

    def cancel(self, worker: str, task_id: int) -> None:
        """Cancel a running task at its next slice, a queued one when its turn comes."""
        self._executor.cancelled.add((worker, task_id))

    def now(self) -> float:
        """Return the seconds since the pool was opened."""
        return self._executor.now()

    def memory_usage(self) -> dict[str, MemoryUsage]:
        """Return no entries: the workers are this process."""
        return {}

    def set_forecast(self, forecast: Forecast) -> int | None:
        """Ignore the forecast and return None: idle threads cost nothing."""
        return None

    @property
    def nodes(self) -> dict[str, str]:
        """No nodes: the workers are this process."""
        return {}

    def status(self) -> WorkerStatus:
        """Return one worker, the calling thread."""
        return WorkerStatus(1, 1)


class SerialPool(_LocalPool):
    """One worker, the calling thread; a task runs inside `wait`."""

    def __init__(self, work: TaskRunner, local: SolverState) -> None:
        super().__init__(work, local)
        self._tasks: deque[tuple[str, Task]] = deque()
        self._reports: list[Report] = []

    def open(self) -> None:
        """Compile the kernels, and add the one worker, `serial`."""
        self._executor.opened = time.monotonic()
        self._executor.work.warm_up(self._local)
        self._reports.append(Joined("serial"))

    def submit(self, worker: str, task: Task) -> None:
        """Queue a task for the next `wait`."""
        self._tasks.append((worker, task))

    def wait(self, seconds: float) -> list[Report]:
        """Run one queued task; `seconds` is not used, because nothing happens elsewhere."""
        reports, self._reports = self._reports, []
        if not reports and self._tasks:
            worker, task = self._tasks.popleft()
            reports = [self._executor.run_task(self._local, worker, task)]
        return reports

    def stop(self) -> None:
        """Stop the running task at its next slice, and queued ones too."""
        self._executor.stop.set()

    def close(self) -> None:
        """Drop queued tasks; nothing was started."""
        self._tasks.clear()


class ThreadPool(_LocalPool):
    """One thread per worker, `thread-0` and so on; data is shared, scratch is per thread.

    Any thread may call `resize` while the pool runs.
    """

    def __init__(self, work: TaskRunner, local: SolverState, workers: int) -> None:
        super().__init__(work, local)
        self._workers = workers
        self._queues: dict[str, queue.SimpleQueue[Task | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._leaving: set[str] = set()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held while workers are started or released
        self._is_open = False

    def open(self) -> None:
        """Start the threads."""
        self._executor.opened = time.monotonic()
        self._executor.work.warm_up(self._local)  # compile once, not in every thread
        with self._lock:
            self._is_open = True
            self._start_missing()

    def resize(self, workers: int) -> None:
        """Set the number of workers, before or after `open`.

        New threads join. If there are too many, the youngest finish their current task and leave.
        Raises ParameterError if `workers` is less than 1.
        """
        if workers < 1:
            raise ParameterError(f"a pool needs at least 1 worker, not {workers}")
        with self._lock:
            self._workers = workers
            self._start_missing()
            for name in self._staying_workers()[workers:]:
                self._leaving.add(name)
                self._queues[name].put(None)  # wakes the thread if it is idle

    def status(self) -> WorkerStatus:
        """Return the threads that stay."""
        return WorkerStatus(
            self._workers, sum(name not in self._leaving for name in list(self._threads))
        )

    def submit(self, worker: str, task: Task) -> None:
        """Queue a task for one thread."""
        self._queues[worker].put(task)

    def wait(self, seconds: float) -> list[Report]:
        """Return the first report within `seconds`, and all others that are ready with it."""
        reports: list[Report] = []
        try:
            reports.append(self._reports.get(timeout=seconds))
            while True:
                reports.append(self._reports.get_nowait())
        except queue.Empty:
            return reports

    def stop(self) -> None:
        """Stop running tasks at their next slice."""
        self._executor.stop.set()

    def close(self) -> None:
        """Stop and join the threads."""
        self._executor.stop.set()
        with self._lock:
            self._is_open = False
            for tasks in self._queues.values():
                tasks.put(None)
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()

    def _staying_workers(self) -> list[str]:
        """Return the workers that are not leaving, in start order."""
        return [name for name in self._queues if name not in self._leaving]

    def _start_missing(self) -> None:
        """Start the missing threads; names are not reused."""
        while self._is_open and len(self._staying_workers()) < self._workers:
            name = f"thread-{len(self._queues)}"
            self._queues[name] = queue.SimpleQueue()
            self._threads[name] = threading.Thread(
                target=self._run_worker, args=(name,), name=f"xcray-{name}", daemon=True
            )
            self._threads[name].start()

    def _run_worker(self, name: str) -> None:
        """Run a thread: tasks from its own queue until None or until it must leave."""
        local = self._local.clone_for_thread()
        self._reports.put(Joined(name))
        while (task := self._queues[name].get()) is not None and name not in self._leaving:
            self._reports.put(self._executor.run_task(local, name, task))
        self._reports.put(Left(name))
