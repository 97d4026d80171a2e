"""How much memory there is for this process, and how much processes hold: what the kernel says, or None where it says nothing."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Footprint(NamedTuple):
    """What a process holds, in bytes. resident: pages in memory; anonymous: those that no file backs; proportional: resident,
    shared pages split among their holders (PSS); own: resident and shared with nobody (USS)."""

    resident: int
    anonymous: int
    proportional: int
    own: int


def footprint(pid: int | None = None) -> Footprint | None:
    """The footprint of a process of this machine, the present one by default; None where /proc does not tell."""
    found = _fields(PROC / str(pid or os.getpid()) / "smaps_rollup")
    if not {"Rss", "Anonymous", "Pss", "Private_Clean", "Private_Dirty"} <= found.keys():
        return None
    return Footprint(
        found["Rss"],
        found["Anonymous"],
        found["Pss"],
        found["Private_Clean"] + found["Private_Dirty"],
    )


def anonymous() -> int | None:
    """Anonymous bytes of this process now: a cheaper look than `footprint`; None where /proc does not tell."""
    return _fields(PROC / "self" / "status").get("RssAnon")


def available() -> dict[str, int]:
    """Bytes that this process may still take, by what limits it: machine, cgroup, RLIMIT_AS, RLIMIT_DATA; what is not limited
    or not known is absent."""
    status = _fields(PROC / "self" / "status")
    out = {"machine": _machine(), "cgroup": _cgroup()}
    for name, used in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        soft = resource.getrlimit(getattr(resource, name))[0]
        if soft != resource.RLIM_INFINITY:
            out[name] = max(0, soft - status.get(used, 0))
    return {name: value for name, value in out.items() if value is not None}


def _machine() -> int | None:
    """Memory that can be had without swapping; where that is not told, what is free now, or all there is."""
    told = _fields(PROC / "meminfo").get("MemAvailable")
    if told is not None:
        return told
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in os.sysconf_names:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup() -> int | None:
    """What the tightest of this process's control groups leaves, clean file pages counted as free; both versions of cgroups."""
    left = []
    for folder, limit, used, clean in _groups():
        most, now = _number(folder / limit), _number(folder / used)
        if (
            most is not None and now is not None and most < 1 << 60
        ):  # version 1 writes "no limit" as a huge number
            left.append(max(0, most - now + _plain_fields(folder / "memory.stat").get(clean, 0)))
    return min(left, default=None)


def _groups() -> list[tuple[Path, str, str, str]]:
    """Folders of this process's control groups and those above, with the names of their files: limit, use, clean pages."""
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
    """The number in a file; None without it, or for `max`."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines like `Name:  12 kB`, in bytes; empty when there is no such file."""
    out = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            out[name] = int(words[0]) << 10
    return out


def _plain_fields(path: Path) -> dict[str, int]:
    """Lines like `name 12`; empty when there is no such file."""
    pairs = [line.split() for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(path: Path) -> list[Any]:
    """A small file's lines; none when it can't be read, as on systems without /proc."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
