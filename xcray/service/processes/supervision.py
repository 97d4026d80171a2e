"""Who runs the queued jobs: a supervisor in a thread, runners in processes of their own or as Ray jobs, as each job asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from xcray.jobs.database.clients import process_name
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision.election import Elected, OnlyOne, Post
from xcray.jobs.supervision.launch import Ended, Launcher, ProcessLauncher, RayJobLauncher
from xcray.jobs.supervision.retention import Kept, Retention
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.service.app_state import Supervising
from xcray.service.settings import Settings
from xcray.workers.ray.local_cluster import Cluster, JoinedCluster, LocalCluster

Checks: TypeAlias = Mapping[str, Callable[[], None]]


class LauncherByPool:
    """Jobs whose pool is ray go to one launcher, all others to another."""

    def __init__(self, on_ray: Launcher, here: ProcessLauncher) -> None:
        self._on_ray = on_ray
        self._here = here

    def launch(self, job: Job) -> None:
        """Start the runner of a claimed job. Raises XcrayError or OSError."""
        launcher = self._on_ray if job.spec.get("pool") == "ray" else self._here
        launcher.launch(job)

    def tend(self) -> list[Ended]:
        """Runners that have ended, of both."""
        return [*self._here.tend(), *self._on_ray.tend()]

    def runners(self) -> list[Ended]:
        """Runners that have not ended, of both."""
        return [*self._here.runners(), *self._on_ray.runners()]

    def end(self, runner: Ended) -> None:
        """End a runner, wherever it is."""
        self._here.end(runner)
        self._on_ray.end(runner)

    def away(self) -> frozenset[str]:
        """Pools whose jobs can't be launched now."""
        return self._here.away() | self._on_ray.away()

    def shaken(self) -> frozenset[str]:
        """Pools whose cluster is or lately was away."""
        return self._here.shaken() | self._on_ray.shaken()

    def give_back(self) -> None:
        """Tell the runners on this machine to give their jobs back, and wait for them a moment."""
        self._here.give_back()


@contextmanager
def supervision(
    settings: Settings, home: Home, store: JobStore
) -> Iterator[tuple[Supervising, Checks]]:
    """The supervisor of a service, and the checks that readiness reports as degraded. At the end, a local Ray of ours ends too.

    A local Ray starts with the first job that wants it, and only then; what it was at is taken up at the next start.
    """
    cluster, checks = _cluster(settings, home)
    url, options = settings.store_url, runner_options(settings)
    here = ProcessLauncher(
        home,
        url,
        nice=settings.job_nice,
        options=options,
        log_bytes=settings.job_log_bytes,
        still_seconds=settings.lease_seconds,
    )
    launcher = LauncherByPool(RayJobLauncher(home, cluster, url, options=options), here)
    try:
        yield (
            Supervisor(
                store,
                launcher,
                cap=settings.max_running_jobs,
                max_attempts=settings.max_attempts,
                quota=RunningQuota(store, settings.max_running_of_tenant),
                stop_seconds=settings.stop_seconds,
            ),
            checks,
        )
        if not settings.jobs_outlive:
            launcher.give_back()
    finally:
        cluster.stop()


def post_for(settings: Settings, store: JobStore) -> Post:
    """The post of who keeps the house: nobody competes for an embedded store's, for that process holds the home's lock."""
    if not settings.shares_store:
        return OnlyOne()
    return Elected(store, "house", process_name(), settings.lease_seconds)


def retention_of(settings: Settings, home: Home, store: JobStore) -> Retention:
    """What is kept, and what is removed when."""
    kept = Kept(settings.keep_jobs, settings.keep_jobs_days, settings.keep_runs_hours)
    return Retention(store, home, kept)


def runner_options(settings: Settings) -> list[str]:
    """What runners are told, as arguments of theirs."""
    told = {
        "lease": settings.lease_seconds,
        "patience": settings.stop_seconds,
        "log-bytes": settings.job_log_bytes,
    }
    return [f"--{name}={value:g}" for name, value in told.items()]


def checks_of(settings: Settings, home: Home) -> Checks:
    """The same checks for a process that answers while another supervises."""
    return _cluster(settings, home)[1]


def _cluster(settings: Settings, home: Home) -> tuple[Cluster, Checks]:
    """The Ray that jobs with pool ray run on: a running one, or our own."""
    if settings.ray_address is None:
        return LocalCluster(home.ray), {}
    joined = JoinedCluster(settings.ray_address, settings.ray_dashboard, settings.ray_token_path)

    def check() -> None:
        joined.ensure()

    return joined, {"RAY": check}
