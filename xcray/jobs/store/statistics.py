"""What the store knows in figures: one look, one read transaction, for whoever shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict
from xcray.jobs.database.compatibility import OLDER, checked, too_old
from xcray.jobs.database.engine import Database, Heard
from xcray.jobs.database.schema import COUNTERS, EVENTS, HEAD, JOBS
from xcray.jobs.states import PENDING, RUNNING, STATUSES

OLDEST: Final = 20  # waiting jobs that are asked since when: the one submitted first may have been resumed just now
MOST_RUNNING: Final = 1000  # running jobs whose progress is read


@dataclass(frozen=True)
class StoreFigures:
    """jobs: how many have each status; waiting: seconds since the job that waits longest began to, 0 when none waits; running: the
    latest progress of each RUNNING job; counted: the store's counters, name, labels, value (see `xcray.jobs.store.metric_deltas`)."""

    jobs: Mapping[str, int]
    waiting: float
    running: tuple[Mapping[str, Any], ...]
    counted: tuple[tuple[str, Mapping[str, str], float], ...] = ()

    def counter(self, name: str) -> float:
        """A counter, summed over its labels."""
        return sum(value for each, _, value in self.counted if each == name)


class FigureTable:
    """The store's face for those who watch it."""

    _database: Database
    _now: Callable[[], float]

    def figures(self) -> StoreFigures:
        """How the queue stands, over all tenants. Raises Unavailable."""
        counting = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        progress = (
            sa.select(JOBS.c.progress)
            .where(JOBS.c.status == RUNNING)
            .order_by(JOBS.c.seq)
            .limit(MOST_RUNNING)
        )
        with self._database.read() as connection:
            counted = {row[0]: row[1] for row in connection.execute(counting)}
            running = tuple(connection.execute(progress).scalars()) if counted.get(RUNNING) else ()
            waiting = self._waiting(connection) if counted.get(PENDING) else 0.0
            sums = tuple(
                (row.name, json.loads(row.labels), row.value)
                for row in connection.execute(sa.select(COUNTERS))
            )
        return StoreFigures(dict.fromkeys(STATUSES, 0) | counted, waiting, running, sums)

    def waited(self, job_id: str) -> tuple[float, float]:
        """Unix seconds at which a RUNNING job was queued and claimed last; twice the same where its events do not say."""
        events = (
            sa.select(EVENTS.c.time)
            .where(EVENTS.c.job_id == job_id, EVENTS.c.kind == "status")
            .order_by(EVENTS.c.seq.desc())
        )
        with self._database.read() as connection:
            times = [
                datetime.fromisoformat(time).timestamp()
                for time in connection.execute(events.limit(2)).scalars()
            ]
        claimed, queued = times if len(times) == 2 else (self._now(),) * 2
        return min(queued, claimed), claimed

    def observe(self, heard: Heard) -> None:
        """Have `heard` told of every transaction from now on."""
        self._database.heard = heard

    def check_schema(self) -> None:
        """Raise Conflict, code SCHEMA_NEWER or SCHEMA_OLDER, when the store does not serve this program, or not any more."""
        with self._database.read(guarded=False) as connection:
            found = checked(connection)
        if not found.serves(HEAD):
            raise Conflict(too_old(found), code=OLDER)

    def _waiting(self, connection: Connection) -> float:
        """Seconds since the oldest waiting jobs became so, the longest of them; those that pause after a loss do not count."""
        now = self._now()
        due = (
            sa.select(JOBS.c.id)
            .where(JOBS.c.status == PENDING, JOBS.c.not_before <= now)
            .order_by(JOBS.c.seq)
            .limit(OLDEST)
        )
        since = [queued_at(connection, each) for each in connection.execute(due).scalars()]
        return max((now - begun for begun in since if begun is not None), default=0.0)


def queued_at(connection: Connection, job_id: str) -> float | None:
    """Unix seconds at which a PENDING job became so: when it was submitted, resumed or given back. None without its events."""
    events = (
        sa.select(EVENTS.c.time)
        .where(EVENTS.c.job_id == job_id, EVENTS.c.kind == "status")
        .order_by(EVENTS.c.seq.desc())
    )
    time = connection.execute(events.limit(1)).scalar()
    return None if time is None else datetime.fromisoformat(time).timestamp()
