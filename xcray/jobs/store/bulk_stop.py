"""Stopping many jobs at once, in batches that let other transactions write in between.

A queue of thousands is emptied in seconds.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import format_utc
from xcray.jobs.states import PENDING, RUNNING, STOPPED
from xcray.jobs.store.counters import add_increments
from xcray.jobs.store.metric_deltas import transition_increments
from xcray.jobs.store.transitions import append_event


def stop_pending(
    connection: Connection, conditions: list[sa.ColumnElement[bool]], now: float, limit: int
) -> int:
    """Stop pending jobs at once, with one update for all and one event per job."""
    columns = (
        JOBS.c[name] for name in ("seq", "id", "attempt", "events", "kind", "status", "losses")
    )
    query = (
        sa.select(*columns)
        .where(*conditions, JOBS.c.status == PENDING)
        .order_by(JOBS.c.seq.desc())
        .limit(limit)
    )
    rows = connection.execute(query.with_for_update(skip_locked=True)).mappings().all()
    if not rows:
        return 0
    time = format_utc(now)
    ended = {
        "status": STOPPED,
        "finished": time,
        "stop_requested": False,
        "events": JOBS.c.events + 1,
    }
    connection.execute(
        sa.update(JOBS).where(JOBS.c.seq.in_([row["seq"] for row in rows])).values(**ended)
    )
    shared = {"time": time, "kind": "status"}
    events: list[dict[str, Any]] = [
        {
            **shared,
            "job_id": row["id"],
            "seq": row["events"] + 1,
            "data": {"status": STOPPED, "attempt": row["attempt"]},
        }
        for row in rows
    ]
    connection.execute(sa.insert(EVENTS), events)
    for kind in sorted({row["kind"] for row in rows}):
        of_kind = [row for row in rows if row["kind"] == kind]
        add_increments(
            connection,
            {
                name: amount * len(of_kind)
                for name, amount in transition_increments(
                    dict(of_kind[0]), STOPPED, {}, None
                ).items()
            },
        )
    return len(rows)


def request_stop_running(
    connection: Connection, conditions: list[sa.ColumnElement[bool]], now: float, limit: int
) -> int:
    """Request a stop of running jobs."""
    running = (*conditions, JOBS.c.status == RUNNING, JOBS.c.stop_requested.is_(False))
    query = (
        sa.select(JOBS)
        .where(*running)
        .order_by(JOBS.c.seq.desc())
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = connection.execute(query).mappings().all()
    for row in rows:
        append_event(
            connection,
            row,
            now,
            "stop",
            {"attempt": row["attempt"]},
            stop_requested=True,
        )
    return len(rows)
