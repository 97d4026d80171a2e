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
from xcray.solvers.contract import Local
from xcray.system.memory import Footprint
from xcray.workers.pool import Failed, GaveUp, Report, Result, StopFlag, Work, WorkerStatus


class _Bench:
    """Where tasks are solved in this process: the work, the clock, and what was called off."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.stop = StopFlag()
        self.opened = time.monotonic()
        self.off: set[tuple[str, int]] = (
            set()
        )  # worker and task; added by the pool's thread, looked up by the worker's

    def now(self) -> float:
        """Seconds since the pool opened."""
        return time.monotonic() - self.opened

    def run(self, local: Local, worker: str, task: Task) -> Result | Failed | GaveUp:
        """Solve one task here and now; whatever it raises becomes a Failed, but for a task called off."""
        started, key = self.now(), (worker, task.id)
        try:
            block = self.work.solve(
                local,
                np.array(task.labels, np.int32),
                lambda: self.stop.is_set() or key in self.off,
            )
        except Stopped as error:
            if key in self.off:
                return GaveUp(worker, task, started, self.now() - started)
            return Failed(worker, task, error)
        except Exception as error:
            return Failed(worker, task, error)
        finally:
            self.off.discard(key)
        return Result(worker, task, block, started, self.now() - started)


class _LocalPool:
    """What the pools of this process share: a bench, and workers that are this process."""

    def __init__(self, work: Work, local: Local) -> None:
        self._bench = _Bench(work)
        self._local = local

    def cancel(self, worker: str, task_id: int) -> None:
        """A task under way is given up at its next slice, a queued one when its turn comes."""
        self._bench.off.add((worker, task_id))

    def now(self) -> float:
        """Seconds since the pool opened."""
        return self._bench.now()

    def footprints(self) -> dict[str, Footprint]:
        """None: the workers are this process."""
        return {}

    def foresee(self, outlook: Forecast) -> int | None:
        """None: threads cost nothing while they idle."""
        return None

    @property
    def nodes(self) -> dict[str, str]:
        """None: the workers are this process."""
        return {}

    def muster(self) -> WorkerStatus:
        """One worker, the calling thread."""
        return WorkerStatus(1, 1)


class SerialPool(_LocalPool):
    """One worker: the calling thread. A task runs inside `wait`."""

    def __init__(self, work: Work, local: Local) -> None:
        super().__init__(work, local)
        self._tasks: deque[tuple[str, Task]] = deque()
        self._reports: list[Report] = []

    def open(self) -> None:
        """Join the one worker, `serial`."""
        self._bench.opened = time.monotonic()
        self._reports.append(Joined("serial"))

    def submit(self, worker: str, task: Task) -> None:
        """Queue a task for the next `wait`."""
        self._tasks.append((worker, task))

    def wait(self, seconds: float) -> list[Report]:
        """Run one queued task; `seconds` is not used, for nothing happens elsewhere."""
        reports, self._reports = self._reports, []
        if not reports and self._tasks:
            worker, task = self._tasks.popleft()
            reports = [self._bench.run(self._local, worker, task)]
        return reports

    def stop(self) -> None:
        """A task under way ends at its next slice, and so do those that are queued."""
        self._bench.stop.set()

    def close(self) -> None:
        """Nothing was started, so nothing ends."""
        self._tasks.clear()


class ThreadPool(_LocalPool):
    """One thread a worker, `thread-0` and so on; the problem is shared, scratch is each thread's own.

    Any thread may `resize` it while it runs.
    """

    def __init__(self, work: Work, local: Local, workers: int) -> None:
        super().__init__(work, local)
        self._workers = workers
        self._queues: dict[str, queue.SimpleQueue[Task | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._leaving: set[str] = set()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held while workers are started or told to leave
        self._is_open = False

    def open(self) -> None:
        """Start the threads."""
        self._bench.opened = time.monotonic()
        self._bench.work.warm_up()  # compile once, not in every thread
        with self._lock:
            self._is_open = True
            self._hire()

    def resize(self, workers: int) -> None:
        """Have so many workers, from now on or, before `open`, from the start: new threads join; those that are too many,
        the youngest, end the task they are at and leave. Raises ParameterError when it is less than one."""
        if workers < 1:
            raise ParameterError(f"a pool needs at least 1 worker, not {workers}")
        with self._lock:
            self._workers = workers
            self._hire()
            for name in self._staying()[workers:]:
                self._leaving.add(name)
                self._queues[name].put(None)  # wakes it when it idles

    def muster(self) -> WorkerStatus:
        """The threads that stay."""
        return WorkerStatus(
            self._workers, sum(name not in self._leaving for name in list(self._threads))
        )

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
        self._bench.stop.set()

    def close(self) -> None:
        """Stop and join the threads."""
        self._bench.stop.set()
        with self._lock:
            self._is_open = False
            for tasks in self._queues.values():
                tasks.put(None)
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()

    def _staying(self) -> list[str]:
        """The workers that were not told to leave, in the order they were started."""
        return [name for name in self._queues if name not in self._leaving]

    def _hire(self) -> None:
        """Start the threads that are missing; names are not used twice."""
        while self._is_open and len(self._staying()) < self._workers:
            name = f"thread-{len(self._queues)}"
            self._queues[name] = queue.SimpleQueue()
            self._threads[name] = threading.Thread(
                target=self._work, args=(name,), name=f"xcray-{name}", daemon=True
            )
            self._threads[name].start()

    def _work(self, name: str) -> None:
        """A thread's life: tasks from its own queue until None, or until it is told to leave."""
        local = self._local.sibling()
        self._reports.put(Joined(name))
        while (task := self._queues[name].get()) is not None and name not in self._leaving:
            self._reports.put(self._bench.run(local, name, task))
        self._reports.put(Left(name))
