"""Service and runner processes started by tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from xcray.jobs.home import Home
from xcray.jobs.states import PENDING, RUNNING
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter
from xcray.jobs.store.paging import all_rows

PATIENCE = 600.0  # seconds until a wait fails: on a slow machine kernels may have to be compiled


@contextmanager
def process(
    home: Path,
    *words: str,
    store: str | None = None,
    lease: str = "600",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `xcray WORDS` on a home and kill it at the end of the block.

    lease: seconds; only a test that waits for its end needs a short one, which can expire between
    two heartbeats on a slow machine. variables: further ones of the environment.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("XCRAY_")
    }
    environment |= {
        "XCRAY_HOME": str(home),
        "XCRAY_LEASE_SECONDS": lease,
        "XCRAY_PORT": "0",
    }
    environment["XCRAY_JOB_NICE"] = "0"  # jobs with low priority would take minutes under load
    environment |= {"XCRAY_STORE": store} if store else {}
    environment |= variables
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


@contextmanager
def no_jobs_left(home: Path) -> Iterator[None]:
    """Stop the jobs of a home at the end of the block, and wait for their runners.

    The job store is asked, because runners outlive their service.
    """
    try:
        yield
    finally:
        store = JobStore(Home(home).store_url)
        for status in (PENDING, RUNNING):
            for job in all_rows(store.jobs.list_page, JobFilter(None, status=status)):
                store.jobs.request_stop(job.id, None)
        until(lambda: not store.statistics.read().jobs["RUNNING"], home)
        store.close()


def until(wish: Callable[[], Any], home: Path) -> Any:
    """Return the first true value of `wish`."""
    deadline = time.monotonic() + PATIENCE
    while not (value := wish()):
        assert time.monotonic() < deadline, (home / "processes.log").read_text()[-4000:]
        time.sleep(0.05)
    return value


def read_process_file(home: Path, child: subprocess.Popen[bytes], role: str) -> dict[str, Any]:
    """Return the details that a process writes about itself."""

    def look() -> Any:
        assert child.poll() is None, (home / "processes.log").read_text()[-4000:]
        details = [json.loads(path.read_text()) for path in home.glob(f"{role}*.json")]
        return next((each for each in details if each["pid"] == child.pid), None)

    result: dict[str, Any] = until(look, home)
    return result


def children(pid: int) -> list[int]:
    """Return the live children of a process, read from /proc."""
    results = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(words[1]) == pid and words[0] != "Z":
            results.append(int(path.parent.name))
    return results


def worker_processes(manager: int) -> list[int]:
    """Return the workers of `serve --processes N`: the children of its fork server."""
    return [worker for server in children(manager) for worker in children(server)]
