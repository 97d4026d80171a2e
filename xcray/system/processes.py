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
    """Return the name of this machine in a form for file names."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]


def descendants(pid: int) -> list[int]:
    """Return the living processes below `pid`, parents first, without zombies."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    rows, level = [], children.get(pid, [])
    while level:
        rows += level
        level = [child for parent in level for child in children.get(parent, [])]
    return rows


def _processes() -> list[tuple[int, int]]:
    """Return (pid, parent) of living processes."""
    if not PROC.exists():
        return _processes_by_ps()
    rows = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            # it ended meanwhile
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
                if state not in "ZX":
                    rows.append((int(folder.name), int(parent)))
    return rows


def _processes_by_ps() -> list[tuple[int, int]]:
    """Return the same where /proc is missing, without the `ps` process itself."""
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
