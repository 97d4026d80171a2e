"""The lock of a run directory: one training at a time writes into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xcray.errors import Conflict, Stopped
from xcray.system.processes import host_name
from xcray.workers.pool import StopFlag

LOCK_FILE: Final = "lock"
# The process of an attempt that was ended, on this or another host, can take a moment to exit.
WAIT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1


@contextlib.contextmanager
def lock_run_directory(run_dir: Path, stop: StopFlag) -> Iterator[None]:
    """Hold the lock of a run directory until the block ends; create the directory if missing.

    The kernel releases it when the process dies in any way. It also works between hosts on shared
    volumes that support flock, such as NFS 4. Waits WAIT_SECONDS for another process. Raises
    Conflict RUN_DIR_IN_USE, which names the holder, and Stopped if `stop` is set while it waits.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / LOCK_FILE, "a+", encoding="utf-8") as lock:
        deadline = time.monotonic() + WAIT_SECONDS
        while not _try_lock(lock.fileno()):
            if stop.is_set():
                raise Stopped("stopped on request, before the training began")
            if time.monotonic() >= deadline:
                lock.seek(0)
                raise Conflict(
                    f"another training uses the run directory {run_dir} ({lock.read().strip()})",
                    code="RUN_DIR_IN_USE",
                    hint="wait until it ends, stop it, or use another --run-dir and --out",
                )
            time.sleep(POLL_SECONDS)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {host_name()}\n")
        lock.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; return whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
