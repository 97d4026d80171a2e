"""Available memory and that of this process, as the kernel reports it, else None."""

from __future__ import annotations

import ctypes
import os
import resource
from functools import cache
from pathlib import Path
from typing import Any, Final

from xcray.system.control_groups import CGROUPS, PROC, control_groups, read_lines

# version of control groups -> files with the limit and the usage, and the field of clean pages
MEMORY_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}

MADV_DONTNEED: Final = 4  # of <sys/mman.h>; read-only pages of a file lose nothing


def anonymous_bytes() -> int | None:
    """Return the bytes of this process without a file behind them, or None without /proc."""
    return _fields(PROC / "self" / "status").get("RssAnon")


def release_mapped_files(suffix: str, limit: int) -> None:
    """Remove the pages of mapped files from this process if they are more than `limit` bytes.

    Only files named *`suffix` that are mapped for reading are released. Their pages stay in the
    page cache, and are mapped again when they are used. Does nothing without /proc.
    """
    if _fields(PROC / "self" / "status").get("RssFile", 0) <= limit:
        return
    for line in read_lines(PROC / "self" / "maps"):
        place, access, *_, path = line.split(maxsplit=5)
        if access.startswith("r-") and path.endswith(suffix):
            first, end = (int(address, 16) for address in place.split("-"))
            _madvise()(first, end - first, MADV_DONTNEED)


@cache
def _madvise() -> Any:
    """Return the function of the C library."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


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
    for group in control_groups("memory", PROC, CGROUPS):
        limit, used, clean = MEMORY_FILES[group.version]
        maximum, now = _number(group.folder / limit), _number(group.folder / used)
        # version 1 writes "no limit" as a huge number
        if maximum is not None and now is not None and maximum < 1 << 60:
            clean_bytes = _plain_fields(group.folder / "memory.stat").get(clean, 0)
            left.append(max(0, maximum - now + clean_bytes))
    return min(left, default=None)


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if it is missing or `max`."""
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Return lines like `Name:  12 kB` in bytes; empty if the file is missing."""
    out = {}
    for line in read_lines(path):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            out[name] = int(words[0]) << 10
    return out


def _plain_fields(path: Path) -> dict[str, int]:
    """Return lines like `name 12`; empty if the file is missing."""
    pairs = [line.split() for line in read_lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
