"""Starting runners: as processes of their own, or as Ray jobs. A runner outlives whoever launched it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import time
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from xcray.errors import Unavailable
from xcray.execution.ray_cluster import Cluster, ClusterInfo
from xcray.jobs.home import Home
from xcray.jobs.job import Job

LOG: Final = logging.getLogger(__name__)
STORE_VARIABLE: Final = "XCRAY_STORE"  # the store's address where it holds a password: command lines are seen by everybody
LOOK_SECONDS: Final = 2.0  # between questions to Ray
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []  # runners outlive their launcher; as children they must still be collected


class Ended(NamedTuple):
    """A runner that ended, well or not; its job says which."""

    job_id: str
    attempt: int


class Launcher(Protocol):
    """What a supervisor needs to start runners."""

    def launch(self, job: Job) -> None:
        """Start the runner of a claimed job's attempt; returns when it is under way. Raises XcrayError or OSError."""

    def tend(self) -> list[Ended]:
        """Called every tick: runners launched here that have ended since."""


class ProcessLauncher:
    """Runners as processes in sessions of their own, writing to logs/JOB.log. They live on when this process dies."""

    def __init__(self, home: Home, store_url: str | None = None, nice: int = 0) -> None:
        """nice: how far runners stand back for other processes, 0 to 19."""
        self._home, self._store_url, self._nice = home, store_url or home.store_url, nice
        self._started: dict[Ended, subprocess.Popen[bytes]] = {}

    def launch(self, job: Job) -> None:
        """Start a process. Raises OSError when the system can't."""
        environment = dict(os.environ)
        if not _plain(self._store_url):
            environment[STORE_VARIABLE] = self._store_url
        handle = os.open(self._home.log(job.id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as log:
            process = subprocess.Popen(
                [*command(self._home, self._store_url, job), "--nice", str(self._nice)],
                cwd=self._home.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started[Ended(job.id, job.attempt)] = process
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None] + [process]

    def tend(self) -> list[Ended]:
        """Runners that have ended; their processes are collected."""
        ended = [key for key, process in list(self._started.items()) if process.poll() is not None]
        for key in ended:
            del self._started[key]
        return ended


class RayJobLauncher:
    """Runners as Ray jobs on a cluster: seen, logged and stoppable in its dashboard as xcray-NAME-JOB-aATTEMPT.

    The cluster is started with the first job. This process talks to the dashboard only and never becomes a driver.
    """

    def __init__(self, home: Home, cluster: Cluster, store_url: str | None = None) -> None:
        self._home, self._cluster, self._store_url = home, cluster, store_url or home.store_url
        self._started: dict[Ended, str] = {}
        self._looked = 0.0

    def launch(self, job: Job) -> None:
        """Submit a Ray job. Raises Unavailable when the cluster can't be had or refuses."""
        info = self._cluster.ensure()
        arguments = ["--log", str(self._home.log(job.id)), "--ray-address", info.address]
        if info.pid:
            arguments += ["--wanted", str(self._home.ray / "wanted")]
        entrypoint = command(self._home, self._store_url, job) + arguments
        metadata = {"job": job.id, "name": job.name, "attempt": str(job.attempt), "tenant": job.tenant}
        name = submission_id(job)
        try:
            _client(info).submit_job(entrypoint=shlex.join(entrypoint), submission_id=name, metadata=metadata)
        except Exception as error:  # the client raises whatever its HTTP library and its server do
            LOG.warning("Ray refused job %s: %s", job.id, type(error).__name__)
            raise Unavailable("Ray's dashboard did not take the job: is the cluster healthy?", code="RAY_SUBMIT") from error
        self._started[Ended(job.id, job.attempt)] = name

    def tend(self) -> list[Ended]:
        """Runners whose Ray job has ended. Keeps a local Ray wanted."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        info = self._cluster.info()
        if info is None:  # with Ray, its jobs are gone
            ended = list(self._started)
        else:
            self._cluster.touch()
            ended = [key for key, name in list(self._started.items()) if _has_ended(info, name)]
        for key in ended:
            del self._started[key]
        return ended


def command(home: Home, store_url: str, job: Job) -> list[str]:
    """The command of an attempt's runner, without passwords."""
    store = ["--store", store_url] if _plain(store_url) else []
    attempt = ["--job", job.id, "--attempt", str(job.attempt)]
    return [sys.executable, "-m", "xcray.jobs.runner", "--home", str(home.path), *store, *attempt]


def submission_id(job: Job) -> str:
    """The name of an attempt in Ray's dashboard. Readable, unique, of harmless characters only."""
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40] or "job"
    return f"xcray-{name}-{job.id}-a{job.attempt}"


def _plain(url: str) -> bool:
    """Whether an address may be shown."""
    return sa.make_url(url).password is None


def _client(info: ClusterInfo) -> Any:
    """Ray's client for jobs; HTTP only."""
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(info.dashboard, headers=info.headers)


def _has_ended(info: ClusterInfo, name: str) -> bool:
    """Whether a Ray job is over, as far as Ray can say."""
    try:
        return str(_client(info).get_job_status(name)) in ("SUCCEEDED", "FAILED", "STOPPED")
    except Exception as error:  # see above; the lease decides when Ray can't say
        LOG.warning("Ray did not say how %s is: %s", name, type(error).__name__)
        return False
