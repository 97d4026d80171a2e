"""Advisory locks on files (flock), for processes of one machine or of a shared volume.

The kernel releases a lock when its holder dies in any way. Volumes between hosts must support
flock, as NFS 4 does.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any


def try_lock(file: IO[Any] | int, *, shared: bool = False) -> bool:
    """Take the lock of an open file, or of a descriptor, and return whether it was free.

    The lock ends when the file is closed. shared: others can share it, but not hold it alone.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(
    file: IO[Any] | int,
    seconds: float,
    *,
    poll_seconds: float = 0.1,
    on_wait: Callable[[], object] = lambda: None,
) -> bool:
    """Take the lock of an open file, and return whether it was free within `seconds`.

    on_wait: called before each pause of `poll_seconds`; what it raises ends the wait.
    """
    deadline = time.monotonic() + seconds
    while not try_lock(file):
        on_wait()
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_seconds)
    return True


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, created if missing. Waits for as long as another holder needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
