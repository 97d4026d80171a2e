"""Metrics of a run: work done in this attempt, number and load of workers, object store usage."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from xcray.telemetry.progress import (
    BATCHES_COPIED,
    EPOCHS,
    NODES_LOST,
    ROWS_TRAINED,
    WORKER_SECONDS,
    WORKERS_LOST,
    Progress,
)
from xcray.workers.contract import WorkerStatus
from xcray.workers.timeline import DONE, OUTCOMES, Span

BATCH_COUNTERS: Final = {outcome: f"batches_{outcome}" for outcome in OUTCOMES}
# seconds of workers whose work did not count
WASTED_SECONDS: Final = {outcome: f"seconds_{outcome}" for outcome in OUTCOMES if outcome != DONE}
BUSY_WINDOW_SECONDS: Final = 30.0  # window of the busy share


class RunMetrics:
    """Metrics collected by the driver of a run; `snapshot` is part of its progress reports.

    export: receives these reports; the workers set it.
    """

    def __init__(self, workers: int, rows: int) -> None:
        """Initialise with the requested number of workers and the rows per epoch."""
        self._rows = rows
        self._worker_status: Callable[[], WorkerStatus] = lambda: WorkerStatus(workers, workers)
        self.export: Callable[[Progress], None] = lambda step: None
        self._counted: dict[str, float] = {}
        self._earlier_epochs: float | None = None
        # worker seconds in each recent second: thousands of spans end within the window
        self._busy: defaultdict[int, float] = defaultdict(float)
        self._first_start, self._last_end = float("inf"), 0.0
        self._gap: float | None = None
        self._certified = self._checked = 0  # labels

    def add(self, name: str, by: float) -> None:
        """Add `by` to a counter."""
        self._counted[name] = self._counted.get(name, 0.0) + by

    def set_total(self, name: str, total: float) -> None:
        """Set a counter to what was done in this attempt."""
        self._counted[name] = total

    def set_epochs(self, total: float) -> None:
        """Set the epochs, or rounds, done in all attempts.

        The first call gives the epochs done before this attempt. Epochs that are repeated after a
        rollback count once.
        """
        self._earlier_epochs = total if self._earlier_epochs is None else self._earlier_epochs
        done = max(total - self._earlier_epochs, self._counted.get(EPOCHS, 0.0))
        self._counted |= {EPOCHS: done, ROWS_TRAINED: done * self._rows}

    def add_span(self, span: Span) -> None:
        """Record that a worker was busy."""
        end = span.started + span.seconds
        self._first_start = min(self._first_start, span.started)
        self._last_end = max(self._last_end, end)
        first = self._window_start()
        for second in range(max(int(span.started), first), int(end) + 1):
            self._busy[second] += min(end, second + 1.0) - max(span.started, float(second))
        for second in [each for each in self._busy if each < first]:
            del self._busy[second]
        self.add(BATCH_COUNTERS[span.outcome], 1)
        self.add(
            WORKER_SECONDS if span.outcome == DONE else WASTED_SECONDS[span.outcome], span.seconds
        )
        if span.task.copy:
            self.add(BATCHES_COPIED, 1)

    def add_gap(self, gap: float) -> None:
        """Record the duality gap of a finished label, relative to its null objective."""
        self._gap = max(gap, self._gap or 0.0)

    def add_certified(self, certified: int, labels: int) -> None:
        """Record how many of the finished labels are certified."""
        self._certified, self._checked = self._certified + certified, self._checked + labels

    def set_worker_source(self, source: Callable[[], WorkerStatus]) -> None:
        """Use `source` for the current workers from now on."""
        self._worker_status = source

    def progress_note(self, *words: str) -> str:
        """Join some notes for people, and what is waited for, if anything."""
        return ", ".join(word for word in (*words, self._worker_status().waiting_for) if word)

    def snapshot(self) -> dict[str, Any]:
        """Return the metrics as JSON.

        workers: current workers; workers_wanted: desired ones; busy_share: over the last
        BUSY_WINDOW_SECONDS, None before anything ended; counted: work done in this attempt, by
        name; largest_gap, certified_share, object_store_bytes, calls_waiting and
        oldest_call_seconds if known.
        """
        status = self._worker_status()
        for name, lost in ((WORKERS_LOST, status.lost), (NODES_LOST, status.nodes_lost)):
            if lost:
                self.set_total(name, lost)
        optional = {
            "largest_gap": self._gap,
            "certified_share": self._certified / self._checked if self._checked else None,
            "object_store_bytes": status.stored_bytes,
            "calls_waiting": status.calls_waiting,
            "oldest_call_seconds": status.oldest_call_seconds,
        }
        workers = {"workers": status.present, "workers_wanted": status.desired}
        result = {
            **workers,
            "busy_share": self._busy_share(max(1, status.present)),
            "counted": dict(self._counted),
        }
        return result | {name: value for name, value in optional.items() if value is not None}

    def _window_start(self) -> int:
        """Return the first whole second of the window of the busy share."""
        return math.ceil(self._last_end - BUSY_WINDOW_SECONDS)

    def _busy_share(self, workers: int) -> float | None:
        """Return the busy share of `workers` workers up to the last end."""
        if not self._busy:
            return None
        begin = max(self._first_start, self._window_start())
        busy = sum(self._busy.values())
        return round(min(1.0, busy / max(1e-9, workers * (self._last_end - begin))), 4)
