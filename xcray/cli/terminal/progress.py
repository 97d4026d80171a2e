"""Progress on stderr: bars on a terminal, a plain line every few seconds elsewhere. One face for trainings here and on a server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any, Self

from xcray.cli.terminal.output import printable
from xcray.telemetry.progress import Progress


def step_of(values: Mapping[str, Any], phase: str = "") -> Progress:
    """A step from the progress of a job over REST; what is missing counts as nothing."""
    return Progress(
        phase=str(values.get("phase") or phase),
        done=int(values.get("done") or 0),
        total=int(values.get("total") or 0),
        seconds=float(values.get("seconds") or 0.0),
        rate=float(values.get("rate") or 0.0),
        eta=values.get("eta"),
        note=str(values.get("note") or ""),
        figures=values.get("figures") or {},
    )


def duration(seconds: float) -> str:
    """Seconds as people say them: 12 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def line_of(step: Progress) -> str:
    """`TRAINING 1,200 of 5,000 (24 %), 830/s, 5 s left`."""
    parts = [step.phase]
    if step.total:
        parts[0] += f" {step.done:,} of {step.total:,} ({100 * step.done // step.total} %)"
    if step.rate:
        parts.append(pace(step.rate))
    if step.eta is not None:
        parts.append(f"{duration(step.eta)} left")
    return ", ".join(printable(part) for part in [*parts, step.note] if part)


class Reporter:
    """Shows nothing; the face of those that do. Call it with each step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, step: Any) -> None:
        """Take notice of a step: anything with the fields of `Progress`."""


class Lines(Reporter):
    """A line when the phase changes, and every `every` seconds; no control codes."""

    def __init__(
        self, stream: IO[str], every: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._phase = ""
        self._last = float("-inf")
        self._told_all = False

    def __call__(self, step: Any) -> None:
        """Write the step's line when it is time."""
        finished = bool(step.total) and step.done >= step.total
        waiting = self._told_all or (not finished and self._clock() < self._last + self._every)
        if step.phase == self._phase and waiting:
            return
        self._phase, self._last, self._told_all = step.phase, self._clock(), finished
        print(line_of(step), file=self._stream, flush=True)


class Bars(Reporter):
    """One bar a phase, with rate and time left."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        self._drawn.stop()

    def __call__(self, step: Any) -> None:
        """Move the bar of the step's phase; earlier phases are over."""
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
    """`830/s, 5 s left`, as far as known; and where a training goes in epochs, its note: the objective."""
    left = f"{duration(step.eta)} left" if step.eta is not None else ""
    note = printable(step.note) if step.figures else ""
    return ", ".join(part for part in (pace(step.rate) if step.rate else "", left, note) if part)


def pace(rate: float) -> str:
    """`830/s`; of slow things two digits."""
    return f"{rate:,.0f}/s" if rate >= 1.0 else f"{rate:.2g}/s"


def reporter(quiet: bool) -> Reporter:
    """What fits where stderr goes: nothing when `quiet`, bars on a terminal, lines elsewhere."""
    if quiet:
        return Reporter()
    return Bars() if sys.stderr.isatty() else Lines(sys.stderr)
