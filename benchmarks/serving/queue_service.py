"""The service of the queue benchmark, and clients that submit, list and stop over HTTP.

The service runs as in production, without a runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from xcray.data.dataset import Dataset
from xcray.jobs.store.job_store import JobStore

PATIENCE = 60.0  # timeout in seconds for steps that should take one
BODY = {"model": "queued", "params": {"C": 1.0}, "pool": "serial"}


class Service:
    """`xcray serve --no-runner` on a store, in a separate process that can be restarted."""

    def __init__(self, home: Path, store: str) -> None:
        self.home = home
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> float:
        """Start the service and return the seconds until it is ready."""
        path = self.home / "serve.json"
        path.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "xcray",
            "serve",
            "--no-runner",
            "--port",
            "0",
            "--home",
            str(self.home),
            "--log-level",
            "error",
        ]
        begun = time.monotonic()
        environment = {
            **os.environ,
            "XCRAY_STORE": self._store,
            "XCRAY_DISK_RESERVE_BYTES": "0",
            **free_of_limits(),
        }
        with open(self.home / "serve.log", "ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while True:
            if self._process.poll() is not None or time.monotonic() - begun > PATIENCE:
                raise SystemExit(
                    f"the service did not start:\n{(self.home / 'serve.log').read_text()[-2000:]}"
                )
            with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
                self.url = json.loads(path.read_text())["url"]
                if httpx.get(self.url + "/readyz", trust_env=False).status_code in (200, 503):
                    return time.monotonic() - begun
            time.sleep(0.02)

    def end(self) -> float:
        """End the service with SIGTERM and return the seconds until it has ended."""
        assert self._process is not None, "it was never started"
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)
        return time.monotonic() - begun

    def rss(self) -> float:
        """Return the resident memory in megabytes."""
        assert self._process is not None, "it was never started"
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Return a client of the service."""
        with httpx.Client(base_url=self.url, trust_env=False, timeout=PATIENCE) as client:
            yield client

    def add_dataset(self, built: Dataset) -> str:
        """Register a data set and return its id."""
        with contextlib.closing(JobStore(self._store)) as store:
            stats = {"N": built.train.n_rows}
            return store.datasets.add("queued", str(built.path), stats=stats).id


def free_of_limits() -> dict[str, str]:
    """Return settings without limits per caller, because only the queue is measured."""
    return {"XCRAY_REQUESTS_PER_MINUTE": "100000000"}


def many(
    service: Service, clients: int, steps: Sequence[Callable[[httpx.Client], httpx.Response]]
) -> tuple[list[float], float]:
    """Run all steps with `clients` clients; return the seconds of each step, and of all.

    A client sends its next request after each answer.
    """

    def one_client(mine: Sequence[Callable[[httpx.Client], httpx.Response]]) -> list[float]:
        with service.client() as client:
            client.get("/healthz")  # opens the connection before the measurement
            return [timed(lambda step=step: checked(step(client))) for step in mine]  # type: ignore[misc]

    begun = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(one_client, [steps[place::clients] for place in range(clients)]))
    return [seconds for each in results for seconds in each], time.monotonic() - begun


def timed(step: Callable[[], Any]) -> float:
    """Return the seconds of one step."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def checked(answer: httpx.Response) -> httpx.Response:
    """Return the response if it is successful."""
    if answer.status_code >= 300:
        raise SystemExit(
            f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:500]}"
        )
    return answer
