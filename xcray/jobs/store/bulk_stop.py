"""Stopping many jobs at once: a queue of thousands is emptied in seconds, in pieces that let others write in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import utc
from xcray.jobs.states import PENDING, RUNNING, STOPPED
from xcray.jobs.store.counters import add_up
from xcray.jobs.store.metric_deltas import of_move
from xcray.jobs.store.transitions import note


class StopTable:
    """The store's face for those who stop more than one job."""

    _database: Database
    _now: Callable[[], float]

    @once_more
    def request_stop_all(
        self,
        tenant: str,
        *,
        status: str | None = None,
        kind: str | None = None,
        name: str | None = None,
        model: str | None = None,
        dataset: str | None = None,
        limit: int = 500,
    ) -> int:
        """Do what `request_stop` does for at most `limit` jobs of a tenant that wait or run and fit all that is named; how many.

        All of them or none. Call it again until it gives 0: a job that was asked once is not counted twice.
        """
        same = {"tenant": tenant, "kind": kind, "name": name, "model": model, "dataset_id": dataset}
        wanted = [JOBS.c[column] == value for column, value in same.items() if value is not None]
        done = 0
        with self._database.write() as connection:
            if status in (None, PENDING):
                done += self._stop_waiting(connection, wanted, limit)
            if status in (None, RUNNING) and done < limit:
                done += self._stop_running(connection, wanted, limit - done)
        return done

    def _stop_waiting(
        self, connection: Connection, wanted: list[sa.ColumnElement[bool]], limit: int
    ) -> int:
        """Jobs that wait stop at once: one change for all, an event each."""
        columns = (
            JOBS.c[name] for name in ("seq", "id", "attempt", "events", "kind", "status", "losses")
        )
        mine = (
            sa.select(*columns)
            .where(*wanted, JOBS.c.status == PENDING)
            .order_by(JOBS.c.seq.desc())
            .limit(limit)
        )
        rows = connection.execute(mine.with_for_update(skip_locked=True)).mappings().all()
        if not rows:
            return 0
        now = utc(self._now())
        ended = {
            "status": STOPPED,
            "finished": now,
            "stop_requested": False,
            "events": JOBS.c.events + 1,
        }
        connection.execute(
            sa.update(JOBS).where(JOBS.c.seq.in_([row["seq"] for row in rows])).values(**ended)
        )
        shared = {"time": now, "kind": "status"}
        told: list[dict[str, Any]] = [
            {
                **shared,
                "job_id": row["id"],
                "seq": row["events"] + 1,
                "data": {"status": STOPPED, "attempt": row["attempt"]},
            }
            for row in rows
        ]
        connection.execute(sa.insert(EVENTS), told)
        for kind in sorted({row["kind"] for row in rows}):
            of_kind = [row for row in rows if row["kind"] == kind]
            add_up(
                connection,
                {
                    name: by * len(of_kind)
                    for name, by in of_move(dict(of_kind[0]), STOPPED, {}, None).items()
                },
            )
        return len(rows)

    def _stop_running(
        self, connection: Connection, wanted: list[sa.ColumnElement[bool]], limit: int
    ) -> int:
        """Jobs that run hear it soon."""
        asked = (*wanted, JOBS.c.status == RUNNING, JOBS.c.stop_requested.is_(False))
        query = (
            sa.select(JOBS)
            .where(*asked)
            .order_by(JOBS.c.seq.desc())
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(query).mappings().all()
        for row in rows:
            note(
                connection,
                row,
                self._now(),
                "stop",
                {"attempt": row["attempt"]},
                stop_requested=True,
            )
        return len(rows)
