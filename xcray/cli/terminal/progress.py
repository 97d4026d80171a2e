"""Progress on stderr: bars on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Self

from xcray.cli.terminal.output import is_json, printable
from xcray.telemetry.progress import Progress


def progress_from_json(values: Mapping[str, Any], phase: str = "") -> Progress:
    """Return the progress of a job from its JSON; missing fields count as zero."""
    return Progress(
        phase=str(values.get("phase") or phase),
        done=int(values.get("done") or 0),
        total=int(values.get("total") or 0),
        seconds=float(values.get("seconds") or 0.0),
        rate=float(values.get("rate") or 0.0),
        eta=values.get("eta"),
        note=str(values.get("note") or ""),
        newest=values.get("newest") or {},
    )


def format_duration(seconds: float) -> str:
    """Format seconds: 12 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def format_progress(step: Progress) -> str:
    """Format a step: `TRAINING 1,200 of 5,000 (24 %), 830/s, 5 s left`."""
    parts = [step.phase]
    if step.total:
        parts[0] += f" {step.done:,} of {step.total:,} ({100 * step.done // step.total} %)"
    if step.rate:
        parts.append(format_rate(step.rate))
    if step.eta is not None:
        parts.append(f"{format_duration(step.eta)} left")
    return ", ".join(printable(part) for part in [*parts, step.note] if part)


class Reporter:
    """Base class of progress reporters; it shows nothing. Call it with each step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        return None

    def __call__(self, step: Any) -> None:
        """Show a step: any object with the fields of `Progress`."""


class LineReporter(Reporter):
    """Write a line when the phase changes and every `every` seconds, without control codes."""

    def __init__(
        self, stream: IO[str], every: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._phase = ""
        self._last = float("-inf")
        self._complete = False

    def __call__(self, step: Any) -> None:
        """Write the step's line if it is due."""
        finished = bool(step.total) and step.done >= step.total
        waiting = self._complete or (not finished and self._clock() < self._last + self._every)
        if step.phase == self._phase and waiting:
            return
        self._phase, self._last, self._complete = step.phase, self._clock(), finished
        print(format_progress(step), file=self._stream, flush=True)


class BarReporter(Reporter):
    """One progress bar per phase, with rate and time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bars: dict[str, Any] = {}
        self._drawn = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        self._drawn.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        self._drawn.stop()

    def __call__(self, step: Any) -> None:
        """Update the bar of the step's phase; earlier phases are finished."""
        if step.phase not in self._bars:
            self._finish()
            self._bars[step.phase] = self._drawn.add_task(
                printable(step.phase), total=step.total or None, speed=""
            )
        self._drawn.update(
            self._bars[step.phase],
            completed=step.done,
            total=step.total or None,
            speed=speed_of(step),
        )

    def _finish(self) -> None:
        """Fill all bars."""
        for task in self._drawn.tasks:
            total = task.total or 1
            self._drawn.update(task.id, completed=total, total=total)


def speed_of(step: Any) -> str:
    """Format rate and time left, and the note if there are epochs or nothing is counted yet."""
    left = f"{format_duration(step.eta)} left" if step.eta is not None else ""
    note = printable(step.note) if step.newest or not step.total else ""
    return ", ".join(
        part for part in (format_rate(step.rate) if step.rate else "", left, note) if part
    )


def format_rate(rate: float) -> str:
    """Format a rate: `830/s`, or two digits below 1/s."""
    return f"{rate:,.0f}/s" if rate >= 1.0 else f"{rate:.2g}/s"


def make_reporter() -> Reporter:
    """Return the reporter for stderr: none with --json, bars on a terminal, else lines."""
    if is_json():
        return Reporter()
    return BarReporter() if sys.stderr.isatty() else LineReporter(sys.stderr)
