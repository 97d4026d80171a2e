"""What the tests of the job store share: a clock that tests move, and the shortest words for what they do all the time."""

from __future__ import annotations

from typing import Any

from xcray.jobs.job import Job
from xcray.jobs.store.job_store import JobStore

SPEC = {"dataset": "ds_1", "solver": "ppdsparse", "params": {"C": 1.0}}
BEGINNING = 1_700_000_000.0  # 2023-11-14T22:13:20Z


class Clock:
    """A clock that tests move; it serves as the world's and as the steady one."""

    def __init__(self, seconds: float = BEGINNING) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def submit(store: JobStore, name: str = "a", **more: Any) -> Job:
    """A job that waits."""
    return store.submit(SPEC, name=name, **more)[0]


def claim(store: JobStore, owner: str = "me", lease: float = 20.0, **more: Any) -> Job | None:
    """The next job, for an owner."""
    return store.claim(owner, lease_seconds=lease, **more)


def raw(store: JobStore, statement: str) -> list[Any]:
    """Rows as they lie in the database."""
    with store._database.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def order(store: JobStore, **more: Any) -> list[str]:
    """Names of all waiting jobs in the order in which runners would take them."""
    names = []
    while (job := claim(store, **more)) is not None:
        names.append(job.name)
        store.finish(job.id, job.attempt, "SUCCEEDED", result={})
    return names
