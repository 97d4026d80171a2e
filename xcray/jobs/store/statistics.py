"""Statistics of the store, read in one transaction, for metrics and the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.jobs.database.engine import Table
from xcray.jobs.database.schema import COUNTERS, EVENTS, JOBS
from xcray.jobs.states import PENDING, RUNNING, STATUSES

# Pending jobs whose wait is read. More than one, because a resumed job keeps its old number.
MAX_PENDING_READ: Final = 20
MAX_RUNNING_READ: Final = 1000  # limit of running jobs whose progress is read


@dataclass(frozen=True)
class StoreStatistics:
    """Statistics of all jobs.

    jobs: number of jobs per status. longest_wait: seconds that the longest waiting job has waited,
    0 if none waits. running: the latest progress of each RUNNING job. counters: the store's
    counters as (name, labels, value), see `xcray.jobs.store.metric_deltas`.
    """

    jobs: Mapping[str, int]
    longest_wait: float
    running: tuple[Mapping[str, Any], ...]
    counters: tuple[tuple[str, Mapping[str, str], float], ...] = ()

    def counter_total(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        return sum(value for each, _, value in self.counters if each == name)


class StatisticsReader(Table):
    """The part of the store for monitoring."""

    def read(self) -> StoreStatistics:
        """Return the statistics over all tenants. Raises Unavailable."""
        counting = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        progress = (
            sa.select(JOBS.c.progress)
            .where(JOBS.c.status == RUNNING)
            .order_by(JOBS.c.seq)
            .limit(MAX_RUNNING_READ)
        )
        with self._database.read() as connection:
            counted = {row[0]: row[1] for row in connection.execute(counting)}
            running = tuple(connection.execute(progress).scalars()) if counted.get(RUNNING) else ()
            waiting = self._longest_wait(connection) if counted.get(PENDING) else 0.0
            sums = tuple(
                (row.name, json.loads(row.labels), row.value)
                for row in connection.execute(sa.select(COUNTERS))
            )
        return StoreStatistics(dict.fromkeys(STATUSES, 0) | counted, waiting, running, sums)

    def _longest_wait(self, connection: Connection) -> float:
        """Return the longest wait among the oldest pending jobs, in seconds.

        Jobs in a pause after a loss do not count.
        """
        now = self._now()
        due = (
            sa.select(JOBS.c.id)
            .where(JOBS.c.status == PENDING, JOBS.c.not_before <= now)
            .order_by(JOBS.c.seq)
            .limit(MAX_PENDING_READ)
        )
        since = [queued_at(connection, each) for each in connection.execute(due).scalars()]
        return max((now - begun for begun in since if begun is not None), default=0.0)


def queued_at(connection: Connection, job_id: str) -> float | None:
    """Return the Unix second at which a PENDING job was queued, or None without events.

    It was queued when it was submitted, resumed or released.
    """
    events = (
        sa.select(EVENTS.c.time)
        .where(EVENTS.c.job_id == job_id, EVENTS.c.kind == "status")
        .order_by(EVENTS.c.seq.desc())
    )
    time = connection.execute(events.limit(1)).scalar()
    return None if time is None else datetime.fromisoformat(time).timestamp()
