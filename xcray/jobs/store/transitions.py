"""Steps inside one transaction of the job tables: find a row, change it, append an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Fenced, NotFound
from xcray.jobs.database.engine import first_row
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import Job, format_utc
from xcray.jobs.states import PENDING, QUEUED, RUNNING, TERMINAL, is_allowed
from xcray.jobs.store.counters import add_increments
from xcray.jobs.store.event_retention import is_check_due, trim_events
from xcray.jobs.store.metric_deltas import transition_increments
from xcray.jobs.store.statistics import queued_at

JOB_COLUMNS: Final = tuple(JOBS.c[name] for name in Job.__dataclass_fields__)
MAX_MESSAGE_CHARS: Final = 4000  # characters


def to_job(row: Mapping[Any, Any]) -> Job:
    """Return a row as a job."""
    return Job(**{name: row[name] for name in Job.__dataclass_fields__})


def find_row(
    connection: Connection, job_id: str, tenant: str | None, *, lock: bool = False
) -> sa.RowMapping:
    """Return the row of a job. Raises NotFound if it is missing or another tenant's.

    `tenant` None is for xcray's own processes. `lock` locks the row in PostgreSQL; SQLite's write
    transactions lock everything.
    """
    query = sa.select(JOBS).where(JOBS.c.id == job_id)
    if tenant is not None:
        query = query.where(JOBS.c.tenant == tenant)
    row = first_row(connection, query.with_for_update() if lock else query)
    if row is None:
        raise NotFound(f"there is no job {job_id[:80]!r}: GET /v1/jobs lists them")
    return row


def owned_row(connection: Connection, job_id: str, attempt: int) -> sa.RowMapping:
    """Return the row of a running job if `attempt` is the running one. Raises Fenced if not."""
    row = first_row(connection, sa.select(JOBS).where(JOBS.c.id == job_id).with_for_update())
    if row is None or row["attempt"] != attempt or row["status"] != RUNNING:
        state = "gone" if row is None else f"{row['status']} in attempt {row['attempt']}"
        raise Fenced(f"attempt {attempt} of {job_id} must not write: the job is {state}")
    return row


def update_row(connection: Connection, row: sa.RowMapping, **values: Any) -> None:
    """Update a row as it was read. Raises Fenced if status, attempt or events changed since."""
    same = [JOBS.c[name] == row[name] for name in ("seq", "status", "attempt", "events")]
    if connection.execute(sa.update(JOBS).where(*same).values(**values)).rowcount != 1:
        raise Fenced(f"job {row['id']} changed at the same moment: read it again")


def append_event(
    connection: Connection,
    row: sa.RowMapping,
    now: float,
    kind: str,
    data: dict[str, Any],
    **values: Any,
) -> None:
    """Append an event and update the row with it."""
    seq = row["events"] + 1
    update_row(connection, row, events=seq, **values)
    connection.execute(
        sa.insert(EVENTS).values(
            job_id=row["id"], seq=seq, time=format_utc(now), kind=kind, data=data
        )
    )
    if is_check_due(seq):
        trim_events(connection, row["id"])


def transition(
    connection: Connection, row: sa.RowMapping, now: float, status: str, **values: Any
) -> Job:
    """Move a job along the table of transitions, append an event, and return the job.

    Raises Conflict if the transition is not allowed.
    """
    if not is_allowed(row["status"], status):
        raise Conflict(
            f"job {row['id']} is {row['status']}; it can't become {status}",
            code="STATE",
            status=row["status"],
        )
    if status == PENDING:
        values = {"phase": QUEUED, "finished": None, "reason": None, "message": None, **values}
    if status in TERMINAL:
        # Clocks jump and differ, but no duration should be negative.
        values["finished"] = max(format_utc(now), row["started"] or row["created"])
    if values.get("message"):
        values["message"] = values["message"][:MAX_MESSAGE_CHARS]
    if status != RUNNING:
        values |= {"owner": None, "lease_seconds": None, "stop_requested": False}
    event = {"status": status, "attempt": values.get("attempt", row["attempt"])}
    event |= {name: values[name] for name in ("phase", "reason", "message") if values.get(name)}
    waited = None if status != RUNNING else queued_at(connection, row["id"])
    append_event(connection, row, now, "status", event, status=status, **values)
    add_increments(
        connection,
        transition_increments(
            dict(row), status, values, None if waited is None else max(0.0, now - waited)
        ),
    )
    if status in TERMINAL:
        trim_events(connection, row["id"])
    return to_job(find_row(connection, row["id"], None))
