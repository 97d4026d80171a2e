"""Which processes came from ours: read from /proc, so that nothing is left running and nothing else is touched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process by its id and its start time in clock ticks: ids are used again, the pair is not."""

    pid: int
    started: int


def snapshot() -> dict[Process, int]:
    """All processes there are, zombies aside, with the ids of their parents; empty where there is no /proc."""
    found = {}
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it may end while we look
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found[Process(int(place.name), int(fields[19]))] = int(fields[1])
    return found


def family(roots: Iterable[int], everyone: dict[Process, int] | None = None) -> set[Process]:
    """The processes with these ids, and all that came from them and still have their parents."""
    everyone = snapshot() if everyone is None else everyone
    wanted, out = set(roots), set()
    while more := {
        p
        for p, parent in everyone.items()
        if (p.pid in wanted or parent in wanted) and p not in out
    }:
        out |= more
        wanted |= {p.pid for p in more}
    return out


def left_of(processes: Iterable[Process], seconds: float) -> set[Process]:
    """Those that still live after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := set(processes) & set(snapshot())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def end(processes: Iterable[Process]) -> None:
    """End processes for good, each by its id."""
    for process in processes:
        if process in snapshot():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
