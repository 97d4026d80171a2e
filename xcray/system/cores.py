"""How many cores there are for us: not all of a machine's, where a mask, a container's limit or an operator says fewer."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

TOLD: Final = "PYTHON_CPU_COUNT"  # Python 3.13 and newer obey it by themselves: one name for all
LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def cores(limit: Path = LIMIT) -> int:
    """Cores to use, 1 at least: what PYTHON_CPU_COUNT says; else the fewest of the process's mask and of its container's limit.

    limit: the file of the second, of a cgroup of version 2: "QUOTA PERIOD" in microseconds, or "max PERIOD".
    """
    told = os.environ.get(TOLD, "")
    if told.isascii() and told.isdecimal() and int(told) > 0:
        return int(told)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(here, limited(limit)))


def limited(limit: Path) -> int:
    """Cores that a container may use, a part of one counted as one; many where nothing is said."""
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return 1 << 20
    return (
        math.ceil(int(quota) / int(period))
        if quota.isdecimal() and period.isdecimal() and int(period)
        else 1 << 20
    )
