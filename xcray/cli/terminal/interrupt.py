"""Ctrl-C twice: the first asks politely and keeps finished work, the second leaves at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from xcray.cli.terminal.output import note
from xcray.cli.terminal.progress import Reporter, reporter
from xcray.errors import Stopped

if TYPE_CHECKING:
    from xcray.workers.pool import StopFlag


class Flag(Protocol):
    """Something that can be set to ask for a stop."""

    def set(self) -> None:
        """Ask for the stop."""


@contextmanager
def stopping(flag: Flag) -> Iterator[None]:
    """While this is open, the first SIGINT or SIGTERM sets `flag`; a second one acts as it did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        note("stopping: what is finished is kept; once more to leave at once")
        flag.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()


@contextmanager
def resumable(kept: Callable[[], str | None], quiet: bool) -> Iterator[tuple[Reporter, StopFlag]]:
    """Work that shows progress, stops at Ctrl-C, and can go on later: gives what to report to, and the flag that stops.

    kept: says after a stop what is kept, None for nothing. Raises Stopped with the way to resume.
    """
    from xcray.workers.pool import StopFlag

    flag = StopFlag()
    try:
        with stopping(flag), reporter(quiet) as show:
            yield show, flag
    except Stopped as stopped:
        told = kept()
        raise Stopped(
            stopped.message, hint=told and f"{told}; the same command again does the rest"
        ) from None
