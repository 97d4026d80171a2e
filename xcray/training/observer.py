"""Observer of a training: stores its blocks, timeline and metrics, and reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from xcray.solvers.solved_labels import SolvedLabels
from xcray.telemetry.progress import EMPTY
from xcray.training.block_store import BlockStore
from xcray.workers.contract import Workers
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import StopFlag
from xcray.workers.run_metrics import RunMetrics
from xcray.workers.timeline import START, Span, Timeline, TimelinePosition


class ProgressFn(Protocol):
    """Reports the progress of solving; see `xcray.telemetry.progress.Progress`.

    Raises Stopped if a stop was requested.
    """

    def __call__(
        self,
        done: int,
        total: int,
        rate: float = 0.0,
        eta: float | None = None,
        note: str = "",
        newest: Mapping[str, Any] = EMPTY,
    ) -> None:
        """Report progress."""


@dataclass
class TrainingObserver(RunObserver[SolvedLabels]):
    """Observer of one run, and what its strategy needs of it.

    parts: store of finished labels. seconds_left: returns the remaining time, None without a limit.
    report_progress: passes progress on. set_memory_source: receives a function that reads the
    memory of workers in separate processes. metrics: metrics of the run.
    """

    parts: BlockStore
    run_dir: Path
    stop: StopFlag
    metrics: RunMetrics
    seconds_left: Callable[[], float | None]
    report_progress: ProgressFn
    set_memory_source: Callable[[Callable[[], Mapping[str, int]]], None]
    _timeline: Timeline | None = None

    @contextmanager
    def observe(self, workers: Workers) -> Iterator[None]:
        """Observe workers for the length of a training, and write the timeline."""
        self.set_memory_source(workers.memory_usage)
        self.metrics.set_worker_source(workers.status)
        self.metrics.export = workers.export
        with Timeline(self.run_dir, lambda: workers.nodes) as self._timeline:
            yield

    def record(self, span: Span) -> None:
        """Add a span to the timeline and to the metrics."""
        if self._timeline is not None:
            self._timeline.add(span)
        self.metrics.add_span(span)

    def mark(self) -> TimelinePosition:
        """Write what was recorded, and return the position after it."""
        return START if self._timeline is None else self._timeline.mark()

    def discard_since(self, position: TimelinePosition) -> None:
        """Count what was recorded since `position`, in all attempts, as lost: it is repeated."""
        if self._timeline is not None:
            self._timeline.discard_since(position)

    def commit(self, result: SolvedLabels) -> None:
        """Add finished labels to the next write."""
        self.parts.add(result)

    def sync(self, *, at_once: bool = True) -> None:
        """Write all committed labels as one part, see `BlockStore.sync`."""
        self.parts.sync(at_once=at_once)

    def discard_results(self) -> None:
        """Remove all parts: the labels come again."""
        self.parts.clear()

    def report(self, progress: RunProgress) -> None:
        """Report epochs or rounds, with the newest objective and held-out measures."""
        self.metrics.set_epochs(progress.done)
        newest = progress.newest
        values = {name: newest[name] for name in PROGRESS_KEYS if newest.get(name) is not None}
        notes = [text.format(values[name]) for name, text in NOTES.items() if name in values]
        note = ", ".join([*notes, *([progress.note] if progress.note else [])])
        self.report_progress(
            int(progress.done), progress.total, progress.rate, progress.eta, note, values
        )


# of a history's entry, in progress and events
PROGRESS_KEYS = ("epoch", "objective", "held_out", "P@1")
NOTES = {"objective": "objective {:.6g}", "held_out": "held-out loss {:.4g}"}
