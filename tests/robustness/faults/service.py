"""`xcray serve` and `xcray runner` as processes that can be killed, suspended and restarted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from tests.robustness.faults import work
from tests.robustness.faults.stage import ROOT, Stage, kill, until
from xcray.jobs.home import Home
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.service import constants as service_constants
from xcray.system.processes import PROC, list_processes
from xcray.workers.ray.session import free_port

INHERITED_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONHASHSEED", "VIRTUAL_ENV")
QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "XCRAY_JOB_NICE": "0",  # with a low priority, jobs would take minutes on a busy machine
    "NO_COLOR": "1",
    "XCRAY_LOG_LEVEL": "warning",
}
# seconds for a reply or a start, including the compilation of kernels; only detects hangs
PATIENCE: Final = 600.0
MAIN: Final = (sys.executable, "-m", "xcray")
CONSTANTS: Final = {name for name in vars(service_constants) if name.isupper()}
# the same command with other constants of the service: the first argument, as JSON
WITH_CONSTANTS: Final = """
import json, sys
from xcray.cli.main import main
from xcray.service import constants

vars(constants).update(json.loads(sys.argv.pop(1)))
sys.exit(main())
"""


def environment(folder: Path, more: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return an environment that does not depend on the caller's.

    more: settings by their lower-case names, passed as XCRAY_NAME.
    """
    entries = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    by_name = {
        name if name.isupper() else f"XCRAY_{name.upper()}": str(value)
        for name, value in (more or {}).items()
    }
    paths = os.pathsep.join(path for path in (by_name.pop("PYTHONPATH", None), str(ROOT)) if path)
    return {**entries, **QUIET, "PYTHONPATH": paths, "TMPDIR": str(folder), **by_name}


class Process:
    """A command that can be ended and started again; its output goes to one file."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        words: Iterable[str],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.words = [*words]
        self.settings = dict(settings or {})
        self.log = stage.folder / f"{name}.log"
        self._folder = stage.folder
        self.popen: subprocess.Popen[bytes] | None = None
        stage.closing.append(self.kill)

    @property
    def pid(self) -> int:
        """Return the process id."""
        assert self.popen is not None, f"{self.name} was not started"
        return self.popen.pid

    def start(self, **how: Any) -> None:
        """Start the process and return at once; `how` is passed to Popen."""
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(
                self.words,
                env=environment(self._folder, self.settings),
                stdout=out,
                stderr=out,
                cwd=self._folder,
                **how,
            )

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()

    def signal(self, number: int) -> None:
        """Send a signal."""
        kill(self.pid, number)

    def end(self, seconds: float = PATIENCE) -> int:
        """Send SIGTERM and return the exit status."""
        self.signal(signal.SIGTERM)
        assert self.popen is not None
        return self.popen.wait(seconds)

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.popen is not None and self.popen.poll() is None

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the output."""
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
            if self.log.is_file()
            else ""
        )


class Service(Process):
    """`xcray serve` on a home; settings are given by their names, constants in capitals."""

    def __init__(
        self,
        stage: Stage,
        name: str = "serve",
        home: Path | None = None,
        words: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        self.home = Home(home or stage.folder / "home")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        constants = {"EVENT_POLL_SECONDS": 0.05, "DISK_RESERVE_BYTES": 0}
        constants |= {each: settings.pop(each) for each in [*settings] if each in CONSTANTS}
        program = (sys.executable, "-c", WITH_CONSTANTS, json.dumps(constants))
        serve = (*program, "serve", "--home", str(self.home.path), "--port", str(self.port), *words)
        super().__init__(stage, name, serve, settings)
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=PATIENCE)
        self.ledger = stage.ledger

    def dataset(self, name: str = "small", **options: Any) -> str:
        """Build a data set; see `work.dataset`."""
        return work.dataset(self.http, self.ledger, name, **options)

    def submit(self, data: str, model: str, key: str, **more: Any) -> str:
        """Submit a job; see `work.submit`."""
        return work.submit(self.http, self.ledger, data, model, key, **more)

    def ended(self, job: str, seconds: float = 900.0) -> dict[str, Any]:
        """Wait until a job has ended and return it."""
        return work.ended(self.http, job, seconds)

    def job(self, job: str) -> Any:
        """Return a job."""
        return work.ok(self.http.get(f"/v1/jobs/{job}"))

    def trained(self, data: str) -> None:
        """Train the model `m` on a data set."""
        assert self.ended(self.submit(data, "m", "k"))["status"] == SUCCEEDED

    def predict(self, model: str = "m") -> httpx.Response:
        """Ask a model for the labels of one row."""
        body = {"instances": [{"indices": [1], "values": [1.0]}]}
        return self.http.post(f"/v1/models/{model}:predict", json=body)

    def up(self, seconds: float = PATIENCE) -> float:
        """Start the service, wait until it is ready, and return the seconds this took."""
        began = time.monotonic()
        self.start()
        self.ready(seconds)
        return time.monotonic() - began

    def ready(self, seconds: float = PATIENCE) -> None:
        """Wait until the service reports that it is ready."""
        until(lambda: self._says_ready(), f"{self.name} is not ready: {self.tail()}", seconds, 0.02)

    def _says_ready(self) -> bool:
        assert self.alive, f"{self.name} ended: {self.tail()}"
        with suppress(httpx.HTTPError):
            return self.http.get("/readyz", timeout=20).status_code == 200
        return False


def runner_process(stage: Stage, home: Path, name: str, **settings: Any) -> Process:
    """Return a process of `xcray runner` on a home."""
    return Process(stage, name, (*MAIN, "runner", "--home", str(home)), settings)


def attempts(home: Path, job: str | None = None) -> dict[str, int]:
    """Return the running processes of attempts by `job aN`, found by their command lines.

    job: return those of one job only.
    """
    results = {}
    for process in list_processes():
        with suppress(OSError):
            words = (
                (PROC / str(process.pid) / "cmdline")
                .read_bytes()
                .decode(errors="replace")
                .split("\0")
            )
            if "xcray.jobs.runner.main" in words and str(home) in words and "--job" in words:
                mine = words[words.index("--job") + 1]
                if job in (None, mine):
                    results[f"{mine} a{words[words.index('--attempt') + 1]}"] = process.pid
    return results


def store_of(home: Path | Home, url: str | None = None) -> JobStore:
    """Open the store in this process, to check the effects of others."""
    path = home.path if isinstance(home, Home) else home
    return JobStore(url or f"sqlite:///{path / 'xcray.db'}")


def redact(text: str) -> str:
    """Return the text with ids replaced, so that runs can be compared."""
    return re.sub(r"(job|ds|upl)_[a-z0-9]{20}", r"\1_...", text)
