"""The number of usable cores, which an affinity mask, a container or the operator can reduce."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

CPU_COUNT_VARIABLE: Final = "PYTHON_CPU_COUNT"  # Python 3.13 and newer use this variable, too.
CPU_LIMIT_FILE: Final = Path("/sys/fs/cgroup/cpu.max")


def available_cores(limit: Path = CPU_LIMIT_FILE) -> int:
    """Return the number of cores to use, at least 1.

    PYTHON_CPU_COUNT if set, else the smaller of the process's affinity mask and its container's
    limit.

    limit: the file of the container's limit (cgroup version 2): "QUOTA PERIOD" in microseconds, or
    "max PERIOD".
    """
    setting = os.environ.get(CPU_COUNT_VARIABLE, "")
    if setting.isascii() and setting.isdecimal() and int(setting) > 0:
        return int(setting)
    mask_cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(mask_cores, container_cores(limit)))


def container_cores(limit: Path) -> int:
    """Return the cores that a container can use, rounded up; a large number if unlimited."""
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return 1 << 20
    return (
        math.ceil(int(quota) / int(period))
        if quota.isdecimal() and period.isdecimal() and int(period)
        else 1 << 20
    )
