"""Limits that a child process sets for itself before it works on input of others."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
# variables that such a child inherits: no tokens and no addresses
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "VIRTUAL_ENV",
)


def inherited_environment() -> dict[str, str]:
    """Return the variables of this process that such a child inherits."""
    return {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}


def limit_this_process(parent: int, seconds: int, memory_bytes: int | None = None) -> None:
    """Limit processor time and address space, disable core files, lower the priority.

    parent: process id of the parent; the process is killed when its parent dies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the signal was set up
        sys.exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    if sys.platform == "linux" and memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.nice(5)
