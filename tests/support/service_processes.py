"""Service and runner processes started by tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LEASE = "6"


PATIENCE = (
    600.0  # seconds until a wait is given up: on a slow machine kernels may have to be compiled
)


@contextmanager
def process(
    home: Path, *words: str, store: str | None = None, lease: str = LEASE
) -> Iterator[subprocess.Popen[bytes]]:
    """`xcray WORDS` on a home, ended with the block. lease: seconds; a slow machine may lose a job
    that is heard of no sooner.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("XCRAY_")
    }
    environment |= {
        "XCRAY_HOME": str(home),
        "XCRAY_DISK_RESERVE_BYTES": "0",
        "XCRAY_LEASE_SECONDS": lease,
        "XCRAY_PORT": "0",
    }
    environment["XCRAY_JOB_NICE"] = "0"  # beside other work jobs that stand back would take minutes
    environment |= {"XCRAY_STORE": store} if store else {}
    home.mkdir(exist_ok=True)
    with open(home / "processes.log", "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "xcray", *words], env=environment, stdout=log, stderr=log
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def until(wish: Callable[[], Any], home: Path) -> Any:
    """The first true value of a wish."""
    deadline = time.monotonic() + PATIENCE
    while not (value := wish()):
        assert time.monotonic() < deadline, (home / "processes.log").read_text()[-4000:]
        time.sleep(0.05)
    return value


def told(home: Path, child: subprocess.Popen[bytes], role: str) -> dict[str, Any]:
    """What a process says of itself."""

    def look() -> Any:
        assert child.poll() is None, (home / "processes.log").read_text()[-4000:]
        facts = [json.loads(path.read_text()) for path in home.glob(f"{role}*.json")]
        return next((each for each in facts if each["pid"] == child.pid), None)

    found: dict[str, Any] = until(look, home)
    return found
