"""Wiring of job supervision: the supervisor thread, and launchers for processes and Ray jobs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from xcray.jobs.database.leases import process_name
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision.election import AlwaysLeader, LeaderElection, Leadership
from xcray.jobs.supervision.launch import Launcher, ProcessLauncher, RunnerId
from xcray.jobs.supervision.ray_launch import RayJobLauncher, submission_id
from xcray.jobs.supervision.retention import Retention, RetentionLimits
from xcray.jobs.supervision.supervisor import Supervisor, SupervisorOptions
from xcray.service import constants
from xcray.service.settings import Settings
from xcray.workers.ray.local_cluster import Cluster, ExternalRay, ManagedLocalRay

Checks: TypeAlias = Mapping[str, Callable[[], None]]


class LauncherByPool:
    """Launcher that delegates jobs with pool "ray" to one launcher and others to another."""

    def __init__(self, on_ray: Launcher, here: ProcessLauncher) -> None:
        self._on_ray = on_ray
        self._here = here

    def launch(self, job: Job) -> None:
        """Start the runner of a claimed job. Raises XcrayError or OSError."""
        launcher = self._on_ray if job.spec.get("pool") == "ray" else self._here
        launcher.launch(job)

    def poll(self) -> list[RunnerId]:
        """Return the runners of both launchers that have ended."""
        return [*self._here.poll(), *self._on_ray.poll()]

    def list_runners(self) -> list[RunnerId]:
        """Return the running runners of both launchers."""
        return [*self._here.list_runners(), *self._on_ray.list_runners()]

    def terminate(self, runner: RunnerId) -> None:
        """Terminate a runner of either launcher."""
        self._here.terminate(runner)
        self._on_ray.terminate(runner)

    def unavailable_pools(self) -> frozenset[str]:
        """Return the pools whose jobs cannot be launched now."""
        return self._here.unavailable_pools() | self._on_ray.unavailable_pools()

    def unstable_pools(self) -> frozenset[str]:
        """Return the pools whose cluster is or recently was unavailable."""
        return self._here.unstable_pools() | self._on_ray.unstable_pools()

    def release_jobs(self) -> None:
        """Ask local runners to release their jobs, and wait for them briefly."""
        self._here.release_jobs()


@contextmanager
def supervision(
    settings: Settings, home: Home, store: JobStore
) -> Iterator[tuple[Supervisor, Checks]]:
    """Provide the job supervisor and its readiness checks; stop a local Ray at the end.

    A local Ray starts with the first job that needs it. Interrupted jobs resume at the next start.
    """
    cluster, checks = _cluster(settings, home)
    url, options = settings.store_url, runner_options(settings)
    here = ProcessLauncher(
        home,
        url,
        nice=settings.job_nice,
        options=options,
        max_log_bytes=constants.JOB_LOG_BYTES,
        max_suspended_seconds=settings.lease_seconds,
    )
    launcher = LauncherByPool(RayJobLauncher(home, cluster, url, options=options), here)
    try:
        yield (
            Supervisor(
                store,
                launcher,
                SupervisorOptions(
                    max_running=settings.max_running_jobs,
                    max_attempts=settings.max_attempts,
                    stop_grace_seconds=constants.STOP_GRACE_SECONDS,
                ),
                quota=RunningQuota(store.keys, settings.max_running_of_tenant),
                has_space=partial(has_space, settings),
            ),
            checks,
        )
        if constants.RELEASE_JOBS:
            launcher.release_jobs()
    finally:
        cluster.close()


def has_space(settings: Settings) -> bool:
    """Return whether at least half of the disk's reserve is left. Raises OSError."""
    disk = shutil.disk_usage(settings.home)
    return disk.free >= constants.disk_reserve(disk.total) // 2


def leadership_for(settings: Settings, store: JobStore) -> Leadership:
    """Return the leadership of maintenance.

    An embedded store needs no election, because the process holds the lock of the home.
    """
    if not settings.has_shared_store:
        return AlwaysLeader()
    return LeaderElection(
        store.leader_leases, "maintenance", process_name(), settings.lease_seconds
    )


def retention_of(settings: Settings, home: Home, store: JobStore) -> Retention:
    """Return the retention policy of the settings."""
    policy = RetentionLimits(
        constants.KEEP_JOBS, settings.keep_jobs_days, constants.KEEP_RUNS_HOURS
    )
    return Retention(store, home, policy)


def runner_options(settings: Settings) -> list[str]:
    """Return the command-line options of runners."""
    options = {
        "lease": settings.lease_seconds,
        "patience": constants.STOP_GRACE_SECONDS,
        "log-bytes": constants.JOB_LOG_BYTES,
    }
    return [f"--{name}={value:g}" for name, value in options.items()]


def cluster_checks(settings: Settings, home: Home) -> Checks:
    """Return the same checks for a process that serves while another supervises."""
    return _cluster(settings, home)[1]


def ray_job_links(settings: Settings, home: Home, jobs: Sequence[Job]) -> dict[str, str]:
    """Return the pages of the latest attempts of jobs on Ray in its dashboard, by the jobs' ids.

    The address is that of the cluster's network, and a local Ray forgets its jobs when it ends.
    """
    on_ray = [job for job in jobs if job.spec.get("pool") == "ray" and job.attempt]
    info = _cluster(settings, home)[0].info() if on_ray else None
    if info is None:
        return {}
    page = f"{info.dashboard.rstrip('/')}/#/jobs"
    return {job.id: f"{page}/{submission_id(job)}" for job in on_ray}


def _cluster(settings: Settings, home: Home) -> tuple[Cluster, Checks]:
    """Return the Ray of jobs with pool "ray": an external one, or a managed local one."""
    cluster: Cluster
    if settings.ray_address is None:
        cluster = ManagedLocalRay(home.ray)
    else:
        cluster = ExternalRay(settings.ray_address, settings.ray_dashboard, settings.ray_token_path)
    return cluster, {"RAY": cluster.check}
