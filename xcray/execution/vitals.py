"""How a run is doing, in figures: what it has done in this attempt, how busy its workers are, what lies in Ray's object store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from xcray.execution.progress import EPOCHS, ROWS, SECONDS
from xcray.execution.timeline import DONE, Span

WINDOW: Final = 30.0  # seconds of the past by which workers are called busy
LOOK_SECONDS: Final = 2.0  # between two looks at the object store


class Vitals:
    """Collected by whoever drives a run; `told` goes with its progress."""

    def __init__(self, workers: int, rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        """rows: of an epoch."""
        self._workers, self._rows, self._clock = workers, rows, clock
        self._counted: dict[str, float] = {}
        self._before: float | None = None
        self._spans: deque[tuple[float, float]] = deque()  # begin and end of what workers did lately
        self._first = float("inf")
        self._gap: float | None = None
        self._stored: Callable[[], int | None] = lambda: None
        self._looked = -float("inf")
        self._bytes: int | None = None

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
        if span.outcome == DONE:
            self.add(SECONDS, span.seconds)

    def certified(self, gap: float) -> None:
        """A class ended with this duality gap, as a share of its null objective."""
        self._gap = max(gap, self._gap or 0.0)

    def follow(self, stored: Callable[[], int | None]) -> None:
        """From now on, ask `stored` what lies in the object store; None: there is none."""
        self._stored = stored

    def told(self) -> dict[str, Any]:
        """JSON: workers; busy_share of them over the last WINDOW seconds, None before anything ended; counted: what was done in
        this attempt, by name; largest_gap and object_store_bytes where there are such."""
        share = self._busy_share()
        more = {"largest_gap": self._gap, "object_store_bytes": self._looked_at_store()}
        told = {"workers": self._workers, "busy_share": share, "counted": dict(self._counted)}
        return told | {name: value for name, value in more.items() if value is not None}

    def _busy_share(self) -> float | None:
        """Of the workers' time up to the last end."""
        if not self._spans:
            return None
        last = max(end for _, end in self._spans)
        begin = max(self._first, last - WINDOW)
        busy = sum(end - max(start, begin) for start, end in self._spans if end > begin)
        return round(min(1.0, busy / max(1e-9, self._workers * (last - begin))), 4)

    def _looked_at_store(self) -> int | None:
        """Bytes in the object store, as of a moment ago."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked, self._bytes = now, self._stored()
        return self._bytes
