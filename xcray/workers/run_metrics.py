"""How a run is doing, in figures: what it has done in this attempt, who works and how busily, what lies in Ray's object store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from xcray.telemetry.progress import COPIED, EPOCHS, NODES_LOST, ROWS, SECONDS, WORKERS_LOST
from xcray.workers.pool import WorkerStatus
from xcray.workers.timeline import DONE, OUTCOMES, Span

BATCHES: Final = {outcome: f"batches_{outcome}" for outcome in OUTCOMES}
WASTED: Final = {
    outcome: f"seconds_{outcome}" for outcome in OUTCOMES if outcome != DONE
}  # of workers, for work that did not count
WINDOW: Final = 30.0  # seconds of the past by which workers are called busy


class Vitals:
    """Collected by whoever drives a run; `told` goes with its progress."""

    def __init__(self, workers: int, rows: int) -> None:
        """workers: that are asked for; rows: of an epoch."""
        self._rows = rows
        self._muster: Callable[[], WorkerStatus] = lambda: WorkerStatus(workers, workers)
        self._counted: dict[str, float] = {}
        self._before: float | None = None
        self._spans: deque[tuple[float, float]] = (
            deque()
        )  # begin and end of what workers did lately
        self._first = float("inf")
        self._gap: float | None = None

    def add(self, name: str, by: float) -> None:
        """So much more was done."""
        self._counted[name] = self._counted.get(name, 0.0) + by

    def reach(self, name: str, total: float) -> None:
        """So much was done in this attempt."""
        self._counted[name] = total

    def reach_epoch(self, total: float) -> None:
        """So many epochs, or rounds, have been done in all attempts; what the first call tells was done before this one. Epochs
        that are done again after a step back count once."""
        self._before = total if self._before is None else self._before
        done = max(total - self._before, self._counted.get(EPOCHS, 0.0))
        self._counted |= {EPOCHS: done, ROWS: done * self._rows}

    def span(self, span: Span) -> None:
        """A worker was busy."""
        end = span.started + span.seconds
        self._first = min(self._first, span.started)
        self._spans.append((span.started, end))
        while self._spans and self._spans[0][1] < end - WINDOW:
            self._spans.popleft()
        self.add(BATCHES[span.outcome], 1)
        self.add(SECONDS if span.outcome == DONE else WASTED[span.outcome], span.seconds)
        if span.task.copy:
            self.add(COPIED, 1)

    def certified(self, gap: float) -> None:
        """A class ended with this duality gap, as a share of its null objective."""
        self._gap = max(gap, self._gap or 0.0)

    def follow(self, muster: Callable[[], WorkerStatus]) -> None:
        """From now on, ask `muster` who is there."""
        self._muster = muster

    def note(self, *words: str) -> str:
        """Some words for people, and what is waited for, if anything is."""
        return ", ".join(word for word in (*words, self._muster().awaits) if word)

    def told(self) -> dict[str, Any]:
        """JSON: workers that are there, workers_wanted; busy_share over the last WINDOW seconds, None before anything ended;
        counted: what was done in this attempt, by name; largest_gap and object_store_bytes where there are such."""
        there = self._muster()
        for name, lost in ((WORKERS_LOST, there.lost), (NODES_LOST, there.nodes_lost)):
            if lost:
                self.reach(name, lost)
        more = {"largest_gap": self._gap, "object_store_bytes": there.stored}
        workers = {"workers": there.present, "workers_wanted": there.wanted}
        told = {
            **workers,
            "busy_share": self._busy_share(max(1, there.present)),
            "counted": dict(self._counted),
        }
        return told | {name: value for name, value in more.items() if value is not None}

    def _busy_share(self, workers: int) -> float | None:
        """Of the time of so many workers up to the last end."""
        if not self._spans:
            return None
        last = max(end for _, end in self._spans)
        begin = max(self._first, last - WINDOW)
        busy = sum(end - max(start, begin) for start, end in self._spans if end > begin)
        return round(min(1.0, busy / max(1e-9, workers * (last - begin))), 4)
