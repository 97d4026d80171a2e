"""Observers of functions, and `run_schedule` with functions in place of an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xcray.schedule.label_scheduler import LabelScheduler
from xcray.workers import driver
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.timeline import START, Span, Timeline, TimelinePosition


def _ignore(*args: Any) -> None:
    """Do nothing."""


class FunctionObserver(RunObserver[Any]):
    """Calls a function for each event; records in a timeline too, if there is one."""

    def __init__(
        self,
        commit: Callable[[Any], Any] = _ignore,
        report: Callable[[RunProgress], Any] = _ignore,
        record: Callable[[Span], Any] = _ignore,
        sync: Callable[[], Any] = _ignore,
        timeline: Timeline | None = None,
        discard: Callable[[], Any] = _ignore,
    ) -> None:
        self._functions = (commit, report, record, sync)
        self.discard_results = discard
        self._timeline = timeline

    def commit(self, result: Any) -> None:
        self._functions[0](result)

    def report(self, progress: RunProgress) -> None:
        self._functions[1](progress)

    def record(self, span: Span) -> None:
        self._functions[2](span)
        if self._timeline is not None:
            self._timeline.add(span)

    def mark(self) -> TimelinePosition:
        return START if self._timeline is None else self._timeline.mark()

    def discard_since(self, position: TimelinePosition) -> None:
        if self._timeline is not None:
            self._timeline.discard_since(position)

    def sync(self, *, at_once: bool = True) -> None:
        self._functions[3]()


def run_schedule(
    schedule: LabelScheduler,
    pool: Pool,
    *,
    commit: Callable[[Result], Any] = _ignore,
    stop: StopFlag | None = None,
    tick: Callable[[], Any] = _ignore,
    record: Callable[[Span], Any] = _ignore,
    sync: Callable[[], Any] = _ignore,
    seconds: float | None = None,
) -> None:
    """Run a schedule; see `xcray.workers.driver.run_schedule`."""
    observer = FunctionObserver(commit, lambda progress: tick(), record, sync)
    driver.run_schedule(schedule, pool, observer, stop=stop or StopFlag(), seconds=seconds)
