"""Processes of this machine: names, descendants, priorities."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LOG = logging.getLogger("xcray.system")
PROC: Final = Path("/proc")
BACKGROUND_NICE: Final = 5  # added to the niceness of threads whose work is not urgent


def host_name() -> str:
    """Return the name of this machine in a form for file names."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]


class Process(NamedTuple):
    """A process by its id and start time in clock ticks: ids are reused, the pair is unique.

    The start time is 0 on systems without /proc.
    """

    pid: int
    started: int


def list_processes() -> dict[Process, int]:
    """Return all running processes, without zombies, with their parent ids."""
    if not PROC.exists():
        return _processes_by_ps()
    processes = {}
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it may end while we look
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                processes[Process(int(place.name), int(fields[19]))] = int(fields[1])
    return processes


def descendants(pid: int) -> list[int]:
    """Return the running processes below `pid`, parents first."""
    return [each.pid for each in find_descendants([pid]) if each.pid != pid]


def find_descendants(roots: Iterable[int]) -> list[Process]:
    """Return the running processes with these ids and their descendants, by level."""
    everyone, parents, rows = list_processes(), set(roots), list[Process]()
    while more := [
        each
        for each, parent in everyone.items()
        if (each.pid in parents or parent in parents) and each not in rows
    ]:
        rows += more
        parents |= {each.pid for each in more}
    return rows


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


def _processes_by_ps() -> dict[Process, int]:
    """Return the same where /proc is missing, without the `ps` process itself."""
    with subprocess.Popen(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True
    ) as ps:
        rows = [line.split(maxsplit=2) for line in ps.communicate()[0].splitlines()]
    return {
        Process(int(pid), 0): int(parent)
        for pid, parent, state in rows
        if not state.startswith("Z") and int(pid) != ps.pid
    }


def lower_priority(nice: int, group: Path = Path("/proc/self/autogroup")) -> None:
    """Add 0 to 19 to the niceness of this process.

    group: the file of the session's autogroup. Where Linux schedules sessions against each other,
    as most desktops do, the session gets the same niceness: nice counts only within a session, and
    a runner has its own.
    """
    os.nice(nice)
    if nice and group.exists():
        try:
            group.write_text(str(nice))
        except OSError as error:
            # Not always permitted. Then it competes with the service as an equal.
            LOG.info("the session keeps its priority: %s", os.strerror(error.errno or 0))


def lower_thread_priority() -> None:
    """Lower the priority of this thread. Only Linux has niceness per thread."""
    if sys.platform == "linux":
        os.setpriority(
            os.PRIO_PROCESS,
            threading.get_native_id(),
            os.getpriority(os.PRIO_PROCESS, 0) + BACKGROUND_NICE,
        )
