"""Worker factory for tests of worker groups, importable by other processes, and reply helpers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xcray.errors import DataError, Stopped
from xcray.schedule.events import Lost

PATIENCE = 300.0  # seconds until a wait is given up, however slow the machine
LARGE = 200_000  # float32s: more than Ray passes within a message


class Hand:
    """Counts its verbs, makes arrays and adds to them."""

    def __init__(self, worker: str, stopped: Callable[[], bool]) -> None:
        self.worker = worker
        self.stopped = stopped
        self.done = []

    def make(self, value: float) -> tuple[np.ndarray, str]:
        """An array full of `value`."""
        self.done.append("make")
        return np.full(LARGE, value, np.float32), self.worker

    def add(self, block: np.ndarray, value: float) -> tuple[np.ndarray, float]:
        """A new array; tells the sum of the first and last element that came."""
        self.done.append("add")
        return block + np.float32(value), float(block[0] + block[-1])

    def total(self, blocks: Any, scale: float = 1.0) -> tuple[None, float]:
        """The sum of the first elements of some arrays."""
        return None, scale * float(sum(block[0] for block in blocks))

    def kind(self, *args: Any) -> tuple[None, list[str]]:
        """The types of what it was given."""
        return None, [type(each).__name__ for each in args]

    def history(self) -> tuple[None, list[str]]:
        """What was done so far."""
        return None, list(self.done)

    def long(self) -> tuple[None, None]:
        """Work in slices until it is told to stop."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            if self.stopped():
                raise Stopped("as asked")
            time.sleep(0.005)
        raise AssertionError("nobody told it to stop")

    def pass_gate(self, gate: str) -> tuple[None, str]:
        """Wait until there is a file called `gate`."""
        ends = time.monotonic() + PATIENCE
        while not Path(gate).exists():
            assert time.monotonic() < ends, "nobody opened the gate"
            time.sleep(0.005)
        return None, self.worker

    def fail(self) -> tuple[None, None]:
        """Raise an error of xcray's with all that it says."""
        raise DataError("BAD_ROW", "what a row", file="rows.txt", line=7, hint="mend it")

    def slip(self) -> tuple[None, None]:
        """Raise an error that nobody meant."""
        return None, {}["nothing"]

    def _private(self) -> tuple[None, None]:
        """No verb."""
        return None, None


@dataclass(frozen=True)
class Work:
    """Makes hands; `broken` is the worker whose hand can't be made."""

    broken: str | None = None

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Hand:
        """The hand."""
        if worker == self.broken:
            raise DataError("NO_SHARD", "there is no such shard")
        return Hand(worker, stopped)

    def warm_up(self) -> None:
        """Nothing to compile."""


def replies(team: Any, count: int, seconds: float = PATIENCE) -> list[Any]:
    """The next `count` replies."""
    found: list[Any] = []
    ends = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < ends, f"only {found} came"
        found += team.wait(0.2)
    assert len(found) == count
    return found


def ask(team: Any, worker: str, verb: str, *args: Any) -> Any:
    """Ask and wait for the one reply."""
    ticket = team.submit(worker, verb, *args)
    (reply,) = replies(team, 1)
    assert isinstance(reply, Lost) or reply.ticket == ticket
    return reply
