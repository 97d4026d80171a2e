"""Ctrl-C twice: the first asks politely and keeps finished work, the second leaves at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from xcray.cli.output import note


class Flag(Protocol):
    """Something that can be set to ask for a stop."""

    def set(self) -> None:
        """Ask for the stop."""


@contextmanager
def stopping(flag: Flag) -> Iterator[None]:
    """While this is open, the first SIGINT or SIGTERM sets `flag`; a second one acts as it did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        note("stopping: the classes under way are finished and kept; once more to leave at once")
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
