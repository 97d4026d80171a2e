"""Local worker groups: one whose nodes are removed and added, one that reports each reply alone."""

from __future__ import annotations

import queue
from typing import Any

from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.worker_group import Reply


class Moving(SerialGroup):
    """A worker group whose nodes are removed and added.

    began: number of workers at the start.
    """

    def __init__(self, work: Any, workers: int, began: int | None = None) -> None:
        super().__init__(work, workers)
        self._began = self._names[:began]
        self.going: dict[str, float] = {}
        self.room: list[str] = []
        self.changes: list[str] = []

    def _start(self, workers: tuple[str, ...]) -> None:
        """Start only the first `began` workers at the beginning."""
        super()._start(
            workers if self._live or not set(self._began) < set(workers) else self._began
        )

    def draining_workers(self) -> dict[str, float]:
        """Return the workers that the test marks as draining, with their seconds left."""
        return {worker: seconds for worker, seconds in self.going.items() if worker in self._live}

    def poll_new_workers(self, seconds_left: float | None = None) -> list[str]:
        """Start the workers for which the test has room, and return them."""
        came = [worker for worker in self.room if worker not in self._live]
        if came:
            self._start(tuple(came))
            self.changes.append(f"came {' '.join(came)}")
        return came

    def release(self, *workers: str) -> None:
        """Release workers and record their names."""
        super().release(*workers)
        self.changes.append(f"left {' '.join(workers)}")


class OneByOne(ThreadGroup):
    """A group of threads that returns one reply at a time, so that no progress is left out."""

    def wait(self, seconds: float) -> list[Reply]:
        """Return the next reply within `seconds`."""
        if self._lost or not self._pending:
            return self._replies([])
        try:
            return self._replies([self._results.get(timeout=seconds)])
        except queue.Empty:
            return []
