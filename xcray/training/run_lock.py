"""The lock of a run directory: one training at a time writes into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from xcray.errors import Conflict, Stopped
from xcray.system.file_lock import wait_for_lock
from xcray.system.processes import host_name
from xcray.workers.pool import StopFlag

LOCK_FILE: Final = "lock"
# The process of an attempt that was ended, on this or another host, can take a moment to exit.
WAIT_SECONDS: Final = 10.0


@contextlib.contextmanager
def lock_run_directory(run_dir: Path, stop: StopFlag) -> Iterator[None]:
    """Hold the lock of a run directory until the block ends; create the directory if missing.

    The kernel releases it when the process dies (see `xcray.system.file_lock`). Waits WAIT_SECONDS
    for another process. Raises Conflict RUN_DIR_IN_USE, which names the holder, and Stopped if
    `stop` is set while it waits.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / LOCK_FILE, "a+", encoding="utf-8") as lock:
        if not wait_for_lock(lock, WAIT_SECONDS, on_wait=partial(_raise_if_stopped, stop)):
            lock.seek(0)
            raise Conflict(
                f"another training uses the run directory {run_dir} ({lock.read().strip()})",
                code="RUN_DIR_IN_USE",
                hint="wait until it ends, stop it, or use another --run-dir and --out",
            )
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {host_name()}\n")
        lock.flush()
        yield


def _raise_if_stopped(stop: StopFlag) -> None:
    """Raise Stopped if `stop` is set."""
    if stop.is_set():
        raise Stopped("stopped on request, before the training began")
