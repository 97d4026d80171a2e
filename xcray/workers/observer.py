"""Contract of run observers: one object receives what happens in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from xcray.telemetry.progress import EMPTY
from xcray.workers.timeline import START, Span, TimelinePosition

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class RunProgress(NamedTuple):
    """Progress of a run.

    done, total: items (labels, chunks, rounds) or epochs; done can have a fraction. seconds: of
    work so far, with those of earlier attempts if they are known. rate: items per second. eta:
    expected seconds to the end, None if unknown. newest: newest entry of the history, for runs with
    rounds. note: unusual events since the last report, for people.
    """

    done: float
    total: int
    seconds: float
    rate: float = 0.0
    eta: float | None = None
    newest: Mapping[str, Any] = EMPTY
    note: str = ""


class RunObserver(Protocol[R_contra]):
    """Receives what happens in a run, in the driver's thread; R: type of a result.

    Subclasses implement what they need; the rest does nothing.
    """

    def record(self, span: Span) -> None:
        """Record what a worker did, useful or not."""
        return

    def mark(self) -> TimelinePosition:
        """Write what was recorded, and return the position after it."""
        return START

    def discard_since(self, position: TimelinePosition) -> None:
        """Count what was recorded since `position`, in all attempts, as lost: it is repeated."""
        return

    def commit(self, result: R_contra) -> None:
        """Store a result; called once per result, before the schedule receives it."""
        return

    def sync(self, *, at_once: bool = True) -> None:
        """Make all committed results durable.

        Called after every wait without `at_once`, so that one write serves many workers and waits,
        and at the end of every run, also of one that failed.
        """
        return

    def discard_results(self) -> None:
        """Forget all results that were committed: they come again."""
        return

    def report(self, progress: RunProgress) -> None:
        """Report progress; called after every wait. Exceptions end the run."""
        return


class CollectResults(RunObserver[R]):
    """Keeps all results in `results`, in order of arrival."""

    def __init__(self) -> None:
        self.results: list[R] = []

    def commit(self, result: R) -> None:
        """Keep a result."""
        self.results.append(result)

    def discard_results(self) -> None:
        """Forget all results."""
        self.results.clear()
