"""Launchers of runners, as processes or as Ray jobs. A runner outlives its launcher."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import sqlalchemy as sa

from xcray.jobs.home import STORE_VARIABLE, Home
from xcray.jobs.job import Job
from xcray.jobs.runner.log_truncation import truncate_log
from xcray.system.processes import descendants

LOG: Final = logging.getLogger(__name__)
RAY_POOLS: Final = frozenset({"ray"})  # pools of jobs that need Ray
RELEASE_SECONDS: Final = 10.0  # for runners to release their jobs
NO_POOLS: Final = frozenset[str]()
MAX_LOG_BYTES: Final = 50_000_000
# Exit codes of runners that recorded the outcome, or whose job has another owner. 1 can be Python's
# own.
CLEAN_EXITS: Final = (
    0,
    3,
)
# Runners outlive their launcher. As child processes they must still be waited for.
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []


class RunnerId(NamedTuple):
    """The job and attempt of a runner."""

    job_id: str
    attempt: int


class Launcher(Protocol):
    """The interface by which a supervisor starts and watches runners."""

    def launch(self, job: Job) -> None:
        """Start the runner of a claimed attempt. Raises XcrayError or OSError."""

    def poll(self) -> list[RunnerId]:
        """Return the runners of this launcher that have ended since the last call.

        The supervisor calls it in every tick.
        """

    def list_runners(self) -> list[RunnerId]:
        """Return the runners of this launcher that have not ended, as far as is known."""

    def terminate(self, runner: RunnerId) -> None:
        """Terminate a runner of this launcher, including its child processes.

        `poll` reports its exit. Other runners are not affected.
        """

    def unavailable_pools(self) -> frozenset[str]:
        """Return pools whose jobs cannot be launched now and must not be claimed."""

    def unstable_pools(self) -> frozenset[str]:
        """Return pools whose cluster is or recently was unavailable.

        The loss of a runner there does not count against its job.
        """


class ProcessLauncher:
    """Runners as processes in their own sessions, with logs in logs/JOB.log.

    They continue when this process dies.
    """

    def __init__(
        self,
        home: Home,
        store_url: str | None = None,
        nice: int = 0,
        options: Sequence[str] = (),
        max_log_bytes: int = MAX_LOG_BYTES,
        max_suspended_seconds: float = 20.0,
    ) -> None:
        """Create a launcher.

        nice: niceness of runners, 0 to 19. options: more arguments for runners. max_log_bytes:
        limit for the log of a job that ended without truncating it itself. max_suspended_seconds: a
        runner that was suspended by a signal (SIGSTOP) for this long is killed. Its lease has
        expired, and it can hold a write lock of the embedded store.
        """
        self._home = home
        self._store_url = store_url or home.store_url
        self._nice = nice
        self._options = tuple(options)
        self._max_log_bytes = max_log_bytes
        self._max_suspended_seconds = max_suspended_seconds
        self._suspended_since: dict[RunnerId, float] = {}  # since when: monotonic seconds
        self._runners: dict[RunnerId, subprocess.Popen[bytes]] = {}

    def launch(self, job: Job) -> None:
        """Start a process. Raises OSError if the system cannot."""
        environment = dict(os.environ)
        if not _has_no_password(self._store_url):
            environment[STORE_VARIABLE] = self._store_url
        handle = os.open(self._home.log(job.id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as log:
            process = subprocess.Popen(
                [
                    *runner_command(self._home, self._store_url, job),
                    *self._options,
                    "--nice",
                    str(self._nice),
                ],
                cwd=self._home.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._runners[RunnerId(job.id, job.attempt)] = process
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None] + [process]

    def poll(self) -> list[RunnerId]:
        """Return the runners that have ended, after waiting for their processes.

        Exits that the runner could not record itself are written to the job's log. Suspended
        runners are killed.
        """
        now = time.monotonic()
        self._suspended_since = {
            key: self._suspended_since.get(key, now)
            for key in self.list_runners()
            if is_suspended(self._runners[key].pid)
        }
        for key, since in self._suspended_since.items():
            if now - since > self._max_suspended_seconds:
                LOG.warning(
                    "job %s: the runner of attempt %d was suspended by a signal: killing it",
                    *key,
                )
                self.terminate(key)
        ended = [key for key, process in list(self._runners.items()) if process.poll() is not None]
        for key in ended:
            code = self._runners.pop(key).returncode
            log = self._home.log(key.job_id)
            if code not in CLEAN_EXITS:
                append_to_log(
                    log,
                    f"the runner of attempt {key.attempt} ended by "
                    + (f"signal {-code}" if code < 0 else f"status {code}"),
                )
            truncate_log(log, self._max_log_bytes)
        return ended

    def list_runners(self) -> list[RunnerId]:
        """Return the runners whose processes are alive."""
        return [key for key, process in list(self._runners.items()) if process.poll() is None]

    def terminate(self, runner: RunnerId) -> None:
        """Kill the process and all its descendants by id, also if it is suspended."""
        process = self._runners.get(runner)
        if process is not None and process.poll() is None:
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()

    def unavailable_pools(self) -> frozenset[str]:
        """Return none: processes can always be started."""
        return NO_POOLS

    def unstable_pools(self) -> frozenset[str]:
        """Return none."""
        return NO_POOLS

    def release_jobs(self) -> None:
        """Signal all runners to release their jobs (SIGTERM), and wait up to RELEASE_SECONDS."""
        for runner in self.list_runners():
            self._runners[runner].terminate()
        deadline = time.monotonic() + RELEASE_SECONDS
        while self.list_runners() and time.monotonic() < deadline:
            time.sleep(0.05)


def is_suspended(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False where /proc is missing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def runner_command(home: Home, store_url: str, job: Job) -> list[str]:
    """Return the command line of an attempt's runner, without passwords."""
    store = ["--store", store_url] if _has_no_password(store_url) else []
    attempt = ["--job", job.id, "--attempt", str(job.attempt)]
    return [
        sys.executable,
        "-m",
        "xcray.jobs.runner.main",
        "--home",
        str(home.path),
        *store,
        *attempt,
    ]


def _has_no_password(url: str) -> bool:
    """Return whether a URL can be shown."""
    return sa.make_url(url).password is None


def append_to_log(path: Path, text: str) -> None:
    """Append lines to a job's log."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as log:
        log.write(f"{text}\n")
