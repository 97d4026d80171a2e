"""Processes of this machine: names, descendants, priorities."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

LOG = logging.getLogger("xcray.system")
PROC: Final = Path("/proc")
BACKGROUND_NICE: Final = 5  # added to the niceness of threads whose work is not urgent


def host_name() -> str:
    """The name of this machine, as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, parents first. Zombies do not count."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    found, level = [], children.get(pid, [])
    while level:
        found += level
        level = [child for parent in level for child in children.get(parent, [])]
    return found


def _processes() -> list[tuple[int, int]]:
    """(pid, parent) of living processes."""
    if not PROC.exists():
        return _processes_by_ps()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended while we looked
                state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
                if state not in "ZX":
                    found.append((int(folder.name), int(parent)))
    return found


def _processes_by_ps() -> list[tuple[int, int]]:
    """(pid, parent) of living processes where there is no /proc, without the `ps` that lists them."""
    with subprocess.Popen(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True
    ) as ps:
        rows = [line.split(maxsplit=2) for line in ps.communicate()[0].splitlines()]
    return [
        (int(pid), int(parent))
        for pid, parent, state in rows
        if not state.startswith("Z") and int(pid) != ps.pid
    ]


def lower_priority(nice: int, group: Path = Path("/proc/self/autogroup")) -> None:
    """Give way to other processes, by 0 to 19.

    group: where Linux schedules sessions against each other, as most desktops do, this process' session stands back by the same:
    a runner has one of its own, and nice counts only within it.
    """
    os.nice(nice)
    if nice and group.exists():
        try:
            group.write_text(str(nice))
        except (
            OSError
        ) as error:  # not allowed to everybody: then it competes with the service as an equal
            LOG.info("the session keeps its priority: %s", os.strerror(error.errno or 0))


def lower_thread_priority() -> None:
    """Have this thread let those that answer go first; only Linux gives a thread a niceness of its own."""
    if sys.platform == "linux":
        os.setpriority(
            os.PRIO_PROCESS,
            threading.get_native_id(),
            os.getpriority(os.PRIO_PROCESS, 0) + BACKGROUND_NICE,
        )
