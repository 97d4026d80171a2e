"""The number of usable cores, which an affinity mask, a container or the operator can reduce."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from xcray.system.control_groups import CGROUPS, PROC, control_groups, read_lines

CPU_COUNT_VARIABLE: Final = "PYTHON_CPU_COUNT"  # Python 3.13 and newer use this variable, too.
NO_LIMIT: Final = 1 << 20  # cores


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the number of cores to use, at least 1.

    PYTHON_CPU_COUNT if set, else the smallest of the process's affinity mask and the limits of its
    control groups.
    """
    setting = os.environ.get(CPU_COUNT_VARIABLE, "")
    if setting.isascii() and setting.isdecimal() and int(setting) > 0:
        return int(setting)
    mask_cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(mask_cores, limited_cores(proc, cgroups)))


def limited_cores(proc: Path, cgroups: Path) -> int:
    """Return the cores that the control groups of this process allow, rounded up.

    The tightest group counts, of the process's own and of those that contain it.
    """
    limits = [NO_LIMIT]
    for folder, version in control_groups("cpu", proc, cgroups):
        if version == 1:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [word for name in names for word in read_lines(folder / name)]
        else:
            words = " ".join(read_lines(folder / "cpu.max")).split()
        limits += _quotient(words)
    return min(limits)


def _quotient(words: list[str]) -> list[int]:
    """Return [quota / period], rounded up; nothing if there is no limit ("max", -1)."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return []
    return [math.ceil(int(words[0]) / int(words[1]))]
