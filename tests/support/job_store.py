"""Helpers for tests of the job store: a manual clock, and short forms of common calls."""

from __future__ import annotations

from typing import Any

from xcray.jobs.job import Job
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

SPEC = {"dataset": "ds_1", "solver": "ppdsparse", "params": {"C": 1.0}}
BEGINNING = 1_700_000_000.0  # 2023-11-14T22:13:20Z


class Clock:
    """A manual clock for wall-clock and monotonic time."""

    def __init__(self, seconds: float = BEGINNING) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def submit(store: JobStore, name: str = "a", *, max_queued: int | None = None, **more: Any) -> Job:
    """Submit a job and return it in the state PENDING."""
    return store.jobs.submit(JobSubmission(SPEC, name=name, **more), max_queued=max_queued)[0]


def claim(store: JobStore, owner: str = "me", lease: float = 20.0, **more: Any) -> Job | None:
    """Claim the next job for an owner."""
    return store.attempts.claim(owner, lease_seconds=lease, **more)


def raw(store: JobStore, statement: str) -> list[Any]:
    """Return rows as stored in the database."""
    with store._database.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def order(store: JobStore, **more: Any) -> list[str]:
    """Return the names of all pending jobs in the order in which runners would claim them."""
    names = []
    while (job := claim(store, **more)) is not None:
        names.append(job.name)
        store.attempts.finish(job.id, job.attempt, "SUCCEEDED", result={})
    return names
