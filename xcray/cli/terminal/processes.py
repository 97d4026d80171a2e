"""Descendants of a process, read from /proc, to wait for or kill only own processes."""

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
    """A process by its id and start time in clock ticks: ids are reused, the pair is unique."""

    pid: int
    started: int


def list_processes() -> dict[Process, int]:
    """Return all running processes with their parent ids; empty on systems without /proc."""
    processes = {}
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it may end while we look
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                processes[Process(int(place.name), int(fields[19]))] = int(fields[1])
    return processes


def find_descendants(
    roots: Iterable[int], everyone: dict[Process, int] | None = None
) -> set[Process]:
    """Return the processes with these ids and all their descendants that still have parents."""
    everyone = list_processes() if everyone is None else everyone
    parents, out = set(roots), set()
    while more := {
        p
        for p, parent in everyone.items()
        if (p.pid in parents or parent in parents) and p not in out
    }:
        out |= more
        parents |= {p.pid for p in more}
    return out


def wait_for_exit(processes: Iterable[Process], seconds: float) -> set[Process]:
    """Wait for processes to exit; return those still running after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := set(processes) & set(list_processes())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def kill_processes(processes: Iterable[Process]) -> None:
    """Kill processes, each by its id."""
    for process in processes:
        if process in list_processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
