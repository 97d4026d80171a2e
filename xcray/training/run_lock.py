"""The lock of a run directory: one training, search or prediction at a time writes into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final

from xcray.errors import Conflict, Stopped
from xcray.storage.run_directory import LOCK_FILE, remove_unused
from xcray.system.file_lock import wait_for_lock
from xcray.system.processes import host_name
from xcray.workers.pool import StopFlag

# The process of an attempt that was ended, on this or another host, can take a moment to exit.
WAIT_SECONDS: Final = 10.0


@contextlib.contextmanager
def hold_run_directory(
    run_dir: Path, out: Path, stop: StopFlag, exclusive: bool = True
) -> Iterator[None]:
    """Hold `run_dir` for the work that will publish `out`, see `lock_run_directory`.

    exclusive: attempts of jobs do not lock it: their store decides which one publishes, and an
    attempt can take over from a process that hangs. Raises Conflict if `out` exists, so that no
    work is lost.
    """
    if out.exists():
        raise Conflict(
            f"{out.name} exists already; choose another --out, remove it first, or use --run-dir"
        )
    with lock_run_directory(run_dir, stop) if exclusive else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def lock_run_directory(run_dir: Path, stop: StopFlag) -> Iterator[None]:
    """Hold the lock of a run directory until the block ends; create the directory if missing.

    The kernel releases it when the process dies (see `xcray.system.file_lock`). Waits WAIT_SECONDS
    for another process. If the block raises before any work is finished, the directory is removed.
    Raises Conflict RUN_DIR_IN_USE, which names the holder, and Stopped if `stop` is set while it
    waits.
    """
    with _locked_file(run_dir, stop) as lock:
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {host_name()}\n")
        lock.flush()
        try:
            yield
        except BaseException:
            remove_unused(run_dir)
            raise


@contextlib.contextmanager
def _locked_file(run_dir: Path, stop: StopFlag) -> Iterator[IO[str]]:
    """Hold the locked file of a run directory. Raises Conflict, Stopped.

    The file is opened again if its holder removed it meanwhile.
    """
    while True:
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(run_dir / LOCK_FILE, "a+", encoding="utf-8") as lock:
            _wait(lock, run_dir, stop)
            if os.fstat(lock.fileno()).st_nlink:
                yield lock
                return


def _wait(lock: IO[str], run_dir: Path, stop: StopFlag) -> None:
    """Take the lock. Raises Conflict RUN_DIR_IN_USE after WAIT_SECONDS, and Stopped."""
    if not wait_for_lock(lock, WAIT_SECONDS, on_wait=partial(_raise_if_stopped, stop)):
        lock.seek(0)
        raise Conflict(
            f"another process uses the run directory {run_dir} ({lock.read().strip()})",
            code="RUN_DIR_IN_USE",
            hint="wait until it ends, stop it, or use another --run-dir and --out",
        )


def _raise_if_stopped(stop: StopFlag) -> None:
    """Raise Stopped if `stop` is set."""
    if stop.is_set():
        raise Stopped("stopped on request, before the work began")
