"""A worker group in this thread whose nodes are removed and added by a test."""

from __future__ import annotations

from typing import Any

from xcray.workers.local_group import SerialGroup


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
