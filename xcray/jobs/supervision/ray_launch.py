"""Launcher of runners as jobs of Ray, in a local or an external cluster."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.supervision.launch import (
    NO_POOLS,
    RAY_POOLS,
    RunnerId,
    append_to_log,
    runner_command,
)
from xcray.workers.ray.local_cluster import Cluster, ClusterInfo

LOG: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 2.0  # between two polls of Ray
REQUEST_TIMEOUT_SECONDS: Final = 30.0  # limit for an answer of Ray's dashboard
# Limit for a job submission: a new head is reachable some time before it accepts jobs.
SUBMIT_SECONDS: Final = 45.0
SUBMIT_PAUSE_SECONDS: Final = 1.0
# Seconds after an outage in which lost runners count as lost with it: leases are shorter.
UNSTABLE_SECONDS: Final = 120.0
MAX_RAY_LOG_CHARS: Final = 16_384  # characters of the end of Ray's log of a failed driver
# The cluster does not know the job: it is not the cluster that accepted it.
UNKNOWN_JOB: Final = "GONE"
# Ray's statuses of ended jobs
ENDED_STATUSES: Final = (
    "SUCCEEDED",
    "FAILED",
    "STOPPED",
    UNKNOWN_JOB,
)


class RayJobLauncher:
    """Runners as Ray jobs, named xcray-NAME-JOB-aATTEMPT in the dashboard of a cluster.

    A managed local cluster is started with the first job. An external one is polled every
    POLL_SECONDS, and no job is launched while it is unavailable. This process uses the dashboard's
    API only and never becomes a Ray driver.
    """

    def __init__(
        self,
        home: Home,
        cluster: Cluster,
        store_url: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """options: more arguments for runners."""
        self._home = home
        self._cluster = cluster
        self._store_url = store_url or home.store_url
        self._options = tuple(options)
        self._runners: dict[RunnerId, str] = {}
        self._polled_at = 0.0
        self._is_unavailable = False
        self._last_unavailable = float("-inf")
        # Own thread: a dashboard that hangs must not block others.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="xcray-ray-poll")
        self._poll_future: Future[list[RunnerId]] | None = None

    def launch(self, job: Job) -> None:
        """Submit a Ray job. Raises Unavailable if the cluster is unavailable or rejects it."""
        info = self._ensure_cluster()
        arguments = [
            *self._options,
            "--log",
            str(self._home.log(job.id)),
            "--ray-address",
            info.address,
        ]
        if info.pid:
            arguments += ["--wanted", str(self._home.ray / "wanted")]
        entrypoint = runner_command(self._home, self._store_url, job) + arguments
        metadata = {
            "job": job.id,
            "name": job.name,
            "attempt": str(job.attempt),
            "tenant": job.tenant,
        }
        name = submission_id(job)
        self._submit(info, name, entrypoint=shlex.join(entrypoint), metadata=metadata)
        self._runners[RunnerId(job.id, job.attempt)] = name

    def _submit(self, info: ClusterInfo, name: str, **options: Any) -> None:
        """Submit a job with retries for SUBMIT_SECONDS. Raises Unavailable.

        The retries keep the next job of the queue from overtaking it.
        """
        deadline = time.monotonic() + SUBMIT_SECONDS
        while True:
            try:
                _job_client(info).submit_job(submission_id=name, **options)
                return
            except Exception as error:
                # The client passes on any error of its HTTP library and its server.
                if _job_status(info, name) not in ("", UNKNOWN_JOB):
                    return  # accepted, only the answer was lost
                LOG.warning("Ray rejected %s: %s", name, str(error)[:500])
                if time.monotonic() > deadline:
                    # Raises if the cluster has become unavailable: then its jobs wait.
                    self._ensure_cluster()
                    raise Unavailable(
                        "Ray's dashboard did not accept the job: check the cluster",
                        code="RAY_SUBMIT",
                    ) from error
            time.sleep(SUBMIT_PAUSE_SECONDS)

    def poll(self) -> list[RunnerId]:
        """Return the runners whose Ray job has ended; keep a local Ray alive.

        Another thread queries Ray, and a later call returns its result.
        """
        if self._poll_future is None:
            if time.monotonic() - self._polled_at >= POLL_SECONDS:
                self._polled_at = time.monotonic()
                self._poll_future = self._executor.submit(self._poll_ray)
            return []
        if not self._poll_future.done():
            return []
        # Reset first: after a poll that failed, as on a full disk, another one follows.
        future, self._poll_future = (
            self._poll_future,
            None,
        )
        ended = future.result()
        for key in ended:
            self._runners.pop(key, None)
        return ended

    def list_runners(self) -> list[RunnerId]:
        """Return the runners whose Ray jobs have not ended, as far as Ray has reported."""
        return list(self._runners)

    def terminate(self, runner: RunnerId) -> None:
        """Stop the Ray job. Ray kills the driver and its actors."""
        name, info = self._runners.get(runner), self._cluster.info()
        if name is not None and info is not None:
            self._executor.submit(_stop_job, info, name)

    def unavailable_pools(self) -> frozenset[str]:
        """Return the Ray pool while an external cluster does not answer."""
        return RAY_POOLS if self._is_unavailable else NO_POOLS

    def unstable_pools(self) -> frozenset[str]:
        """Return the Ray pool during an outage and for one lease after it."""
        return (
            RAY_POOLS if time.monotonic() - self._last_unavailable < UNSTABLE_SECONDS else NO_POOLS
        )

    def _ensure_cluster(self) -> ClusterInfo:
        """Return the address of the cluster. Raises Unavailable.

        Records whether an external cluster is unavailable.
        """
        try:
            info = self._cluster.ensure()
        except Unavailable:
            self._record_availability(is_unavailable=self._cluster.is_external)
            raise
        self._record_availability(is_unavailable=False)
        return info

    def _record_availability(self, is_unavailable: bool) -> None:
        """Record whether the cluster is unavailable, and log changes."""
        if is_unavailable:
            self._last_unavailable = time.monotonic()
        if is_unavailable != self._is_unavailable:
            self._is_unavailable = is_unavailable
            LOG.warning(
                "Ray is unavailable: its jobs wait"
                if is_unavailable
                else "Ray is available again: its jobs continue"
            )

    def _poll_ray(self) -> list[RunnerId]:
        """Return the runners that have ended, and copy Ray's log of failed ones."""
        if self._cluster.is_external:
            try:
                self._ensure_cluster()
            except Unavailable:
                return []  # unknown: the leases of runners lost with the cluster expire
        info = self._cluster.info()
        # Ray has stopped, and its jobs with it
        if info is None:
            return list(self._runners)
        self._cluster.touch()
        ended = []
        for key, name in list(self._runners.items()):
            status = _job_status(info, name)
            if status in ENDED_STATUSES:
                ended.append(key)
            if status in ("FAILED", "STOPPED"):
                _copy_ray_log(info, name, self._home.log(key.job_id))
        return ended


def submission_id(job: Job) -> str:
    """Return the id of an attempt in Ray's dashboard: readable, unique, of safe characters."""
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40] or "job"
    return f"xcray-{name}-{job.id}-a{job.attempt}"


def _job_client(info: ClusterInfo) -> Any:
    """Return Ray's HTTP client for jobs, with a timeout. The original waits forever."""
    from ray.job_submission import JobSubmissionClient

    class TimeoutJobClient(JobSubmissionClient):
        """Ray's client with a timeout per request."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, timeout=REQUEST_TIMEOUT_SECONDS, **options)

    return TimeoutJobClient(info.dashboard, headers=info.headers)


def _job_status(info: ClusterInfo, name: str) -> str:
    """Return Ray's status of a job, UNKNOWN_JOB if it has none, "" if it does not answer."""
    try:
        return str(_job_client(info).get_job_status(name))
    except Exception as error:
        # see `_submit`; without an answer the lease decides
        if "status code 404" in str(error):
            return UNKNOWN_JOB
        LOG.warning("Ray did not return the status of %s: %s", name, type(error).__name__)
        return ""


def _stop_job(info: ClusterInfo, name: str) -> None:
    """Stop a Ray job."""
    try:
        _job_client(info).stop_job(name)
    except Exception as error:
        # see `_submit`; it is retried
        LOG.warning("Ray did not stop %s: %s", name, type(error).__name__)


def _copy_ray_log(info: ClusterInfo, name: str, path: Path) -> None:
    """Append the end of Ray's log of a driver to its job's log.

    The reason why a process died is often nowhere else.
    """
    try:
        text = _job_client(info).get_job_logs(name)[-MAX_RAY_LOG_CHARS:]
    except Exception as error:
        # see `_submit`; the job's own log has the rest
        LOG.warning("Ray did not return the log of %s: %s", name, type(error).__name__)
        return
    append_to_log(path, f"--- the end of Ray's log of {name}:\n{text}\n---")
