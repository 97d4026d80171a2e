"""Steps inside one transaction of the job tables: find a row, move it by compare-and-set, note what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Fenced, NotFound
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import Job, utc
from xcray.jobs.states import PENDING, QUEUED, RUNNING, TERMINAL, allowed
from xcray.jobs.store.counters import add_up
from xcray.jobs.store.event_retention import bound_events, is_due
from xcray.jobs.store.metric_deltas import of_move
from xcray.jobs.store.statistics import queued_at

JOB_COLUMNS: Final = tuple(JOBS.c[name] for name in Job.__dataclass_fields__)
LONGEST_MESSAGE: Final = 4000  # characters


def job_of(row: Mapping[Any, Any]) -> Job:
    """A row as a job."""
    return Job(**{name: row[name] for name in Job.__dataclass_fields__})


def find(
    connection: Connection, job_id: str, tenant: str | None, *, lock: bool = False
) -> sa.RowMapping:
    """The row of a job; NotFound also for another tenant's. `tenant` None is for xcray's own processes.

    `lock` holds the row in PostgreSQL; SQLite's write transactions hold everything.
    """
    query = sa.select(JOBS).where(JOBS.c.id == job_id)
    if tenant is not None:
        query = query.where(JOBS.c.tenant == tenant)
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id[:80]!r}: list them with `xcray jobs list`")
    return row


def owned(connection: Connection, job_id: str, attempt: int) -> sa.RowMapping:
    """The row of a running job while `attempt` is the one that runs it. Raises Fenced otherwise."""
    row = (
        connection.execute(sa.select(JOBS).where(JOBS.c.id == job_id).with_for_update())
        .mappings()
        .first()
    )
    if row is None or row["attempt"] != attempt or row["status"] != RUNNING:
        state = "gone" if row is None else f"{row['status']} in attempt {row['attempt']}"
        raise Fenced(f"attempt {attempt} of {job_id} must not write: the job is {state}")
    return row


def change(connection: Connection, row: sa.RowMapping, **values: Any) -> None:
    """Change a row as it was read: status, attempt and event counter still the same, else Fenced."""
    same = [JOBS.c[name] == row[name] for name in ("seq", "status", "attempt", "events")]
    if connection.execute(sa.update(JOBS).where(*same).values(**values)).rowcount != 1:
        raise Fenced(f"job {row['id']} changed at the same moment: read it again")


def note(
    connection: Connection,
    row: sa.RowMapping,
    now: float,
    kind: str,
    data: dict[str, Any],
    **values: Any,
) -> None:
    """Append an event and change the row with it."""
    seq = row["events"] + 1
    change(connection, row, events=seq, **values)
    connection.execute(
        sa.insert(EVENTS).values(job_id=row["id"], seq=seq, time=utc(now), kind=kind, data=data)
    )
    if is_due(seq):
        bound_events(connection, row["id"])


def move(connection: Connection, row: sa.RowMapping, now: float, status: str, **values: Any) -> Job:
    """Move a job along the table of transitions, with an event; the moved job. Raises Conflict when there is no such move."""
    if not allowed(row["status"], status):
        raise Conflict(
            f"job {row['id']} is {row['status']}; it can't become {status}",
            code="STATE",
            status=row["status"],
        )
    if status == PENDING:
        values = {"phase": QUEUED, "finished": None, "reason": None, "message": None, **values}
    if status in TERMINAL:
        values["finished"] = max(
            utc(now), row["started"] or row["created"]
        )  # clocks jump and differ; no duration is negative
    if values.get("message"):
        values["message"] = values["message"][:LONGEST_MESSAGE]
    if status != RUNNING:
        values |= {"owner": None, "lease_seconds": None, "stop_requested": False}
    shown = {"status": status, "attempt": values.get("attempt", row["attempt"])}
    shown |= {name: values[name] for name in ("phase", "reason", "message") if values.get(name)}
    waited = None if status != RUNNING else queued_at(connection, row["id"])
    note(connection, row, now, "status", shown, status=status, **values)
    add_up(
        connection,
        of_move(dict(row), status, values, None if waited is None else max(0.0, now - waited)),
    )
    if status in TERMINAL:
        bound_events(connection, row["id"])
    return job_of(find(connection, row["id"], None))
