"""Available memory and the memory of processes, as the kernel reports it, else None."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class MemoryUsage(NamedTuple):
    """The memory of a process, in bytes.

    resident: pages in memory. anonymous: those without a file behind them. proportional: resident,
    with shared pages divided among their users (PSS). own: resident and not shared (USS).
    """

    resident: int
    anonymous: int
    proportional: int
    own: int


def process_memory(pid: int | None = None) -> MemoryUsage | None:
    """Return the memory of a local process, by default this one; None without /proc."""
    fields = _fields(PROC / str(pid or os.getpid()) / "smaps_rollup")
    if not {"Rss", "Anonymous", "Pss", "Private_Clean", "Private_Dirty"} <= fields.keys():
        return None
    return MemoryUsage(
        fields["Rss"],
        fields["Anonymous"],
        fields["Pss"],
        fields["Private_Clean"] + fields["Private_Dirty"],
    )


def anonymous_bytes() -> int | None:
    """Return the anonymous bytes of this process, faster than `process_memory`, or None."""
    return _fields(PROC / "self" / "status").get("RssAnon")


def available_bytes() -> dict[str, int]:
    """Return the bytes that this process can still allocate, per limit.

    Limits: machine, cgroup, RLIMIT_AS, RLIMIT_DATA. Those that are absent or unknown are left out.
    """
    status = _fields(PROC / "self" / "status")
    out = {"machine": _machine_bytes(), "cgroup": _cgroup_bytes()}
    for name, used in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        soft = resource.getrlimit(getattr(resource, name))[0]
        if soft != resource.RLIM_INFINITY:
            out[name] = max(0, soft - status.get(used, 0))
    return {name: value for name, value in out.items() if value is not None}


def _machine_bytes() -> int | None:
    """Return memory that is available without swapping, else what is free, else the total."""
    available = _fields(PROC / "meminfo").get("MemAvailable")
    if available is not None:
        return available
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in os.sysconf_names:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup_bytes() -> int | None:
    """Return what the tightest control group leaves, in both versions of cgroups.

    Clean file pages count as free.
    """
    left = []
    for folder, limit, used, clean in _groups():
        maximum, now = _number(folder / limit), _number(folder / used)
        # version 1 writes "no limit" as a huge number
        if maximum is not None and now is not None and maximum < 1 << 60:
            left.append(max(0, maximum - now + _plain_fields(folder / "memory.stat").get(clean, 0)))
    return min(left, default=None)


def _groups() -> list[tuple[Path, str, str, str]]:
    """Return this process's control groups and their ancestors.

    Each has its directory and its file names: limit, usage, clean pages.
    """
    out: list[tuple[Path, str, str, str]] = []
    for line in _lines(PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = (
                CGROUPS / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            )
        else:
            continue
        steps = [step for step in path.split("/") if step and step != ".."]
        out += [(root.joinpath(*steps[:n]), *names) for n in range(len(steps) + 1)]
    return out


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if it is missing or `max`."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Return lines like `Name:  12 kB` in bytes; empty if the file is missing."""
    out = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            out[name] = int(words[0]) << 10
    return out


def _plain_fields(path: Path) -> dict[str, int]:
    """Return lines like `name 12`; empty if the file is missing."""
    pairs = [line.split() for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(path: Path) -> list[Any]:
    """Return the lines of a small file; none if it is unreadable, as on systems without /proc."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
