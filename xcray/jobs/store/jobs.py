"""The table of jobs: submit, find, list, stop, resume, delete. Runners use `attempts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, ParameterError, Refused
from xcray.jobs.database.engine import Table, first_row, retry_once
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import KINDS, TRAIN, Event, Job, body_digest, format_utc, new_id
from xcray.jobs.states import PENDING, QUEUED, RUNNING, STATUSES, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.datasets import hold_dataset
from xcray.jobs.store.paging import read_page
from xcray.jobs.store.transitions import (
    JOB_COLUMNS,
    append_event,
    find_row,
    to_job,
    transition,
    update_row,
)

_NEW_JOB: Final[dict[str, Any]] = {
    "status": PENDING,
    "phase": QUEUED,
    "attempt": 0,
    "progress": {},
    "stop_requested": False,
    "not_before": 0.0,
    "losses": 0,
    "advanced": False,
    "events": 1,
}

# null in every new job
_NEW_JOB_NULLS: Final[dict[str, Any]] = dict.fromkeys(
    ("reason", "message", "result", "started", "finished")
)


@dataclass(frozen=True)
class JobSubmission:
    """A job to accept. Raises ParameterError if `kind` is not one of KINDS.

    idempotency_key, digest: a tenant's second submission with the same key gets the first job if
    both have the same digest. The digest stands for the body where that has more than spec, name
    and priority. job_id: a server-made `new_id("job")`, if the job's directory had to be named
    before. expires_seconds: seconds from now by which the job must have ended. Others as in `Job`.
    """

    spec: dict[str, Any]
    name: str
    tenant: str = "default"
    idempotency_key: str | None = None
    priority: int = 0
    digest: str | None = None
    kind: str = TRAIN
    job_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    dataset_id: str | None = None
    timeout_seconds: float | None = None
    expires_seconds: float | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(
                f"kind {self.kind[:20]!r} is unknown: use one of {', '.join(KINDS)}"
            )

    def columns(self, now: float) -> dict[str, Any]:
        """Return the values of the job's row when it is submitted at Unix second `now`."""
        values = dict(vars(self))
        expires_seconds = values.pop("expires_seconds")
        return values | {
            "id": values.pop("job_id") or new_id("job"),
            "expires": None if expires_seconds is None else now + expires_seconds,
            "digest": self.digest
            or body_digest({"spec": self.spec, "name": self.name, "priority": self.priority}),
        }


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to select: all given fields must match. Raises ParameterError.

    tenant: None selects the jobs of all tenants. status: one or several, each one of STATUSES.
    created_after (inclusive), created_before: Unix seconds. contains: a part of the name, in any
    case.
    """

    tenant: str | None = "default"
    status: str | Sequence[str] | None = None
    kind: str | None = None
    name: str | None = None
    model: str | None = None
    dataset_id: str | None = None
    priority: int | None = None
    created_after: float | None = None
    created_before: float | None = None
    contains: str | None = None

    def __post_init__(self) -> None:
        for unknown in set(self._statuses()) - set(STATUSES):
            raise ParameterError(
                f"status {unknown[:20]!r} is unknown: use one of {', '.join(STATUSES)}"
            )

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for rows of the table JOBS."""
        columns = ("tenant", "kind", "name", "model", "dataset_id", "priority")
        same = {column: getattr(self, column) for column in columns}
        conditions = [
            JOBS.c[column] == value for column, value in same.items() if value is not None
        ]
        if statuses := self._statuses():
            conditions.append(JOBS.c.status.in_(statuses))
        if self.created_after is not None:
            conditions.append(JOBS.c.created >= format_utc(self.created_after))
        if self.created_before is not None:
            conditions.append(JOBS.c.created < format_utc(self.created_before))
        if self.contains:
            part = self.contains.lower()
            conditions.append(sa.func.lower(JOBS.c.name).contains(part, autoescape=True))
        return conditions

    def _statuses(self) -> Sequence[str]:
        """Return the selected statuses, none for all."""
        return [self.status] if isinstance(self.status, str) else self.status or ()


class JobTable(Table):
    """Jobs and their events, as their owners see and change them."""

    @retry_once
    def submit(
        self, submission: JobSubmission, *, max_queued: int | None = None
    ) -> tuple[Job, bool]:
        """Accept a job durably; return (job, True), or (first job, False) for a repeated key.

        A key is repeated if the tenant used it before with the same body. Raises Conflict if the
        body was another one; Refused, code QUOTA, if `max_queued` jobs of the tenant are pending;
        NotFound if its data set has been deleted.
        """
        values = submission.columns(self._now())
        tenant, key = submission.tenant, submission.idempotency_key
        row = {"created": format_utc(self._now()), **values, **_NEW_JOB}
        with self._database.write() as connection:
            # one writer per tenant, for its keys and the count
            self._database.advisory_lock(connection, f"queue of {tenant}")
            if key and (existing := _job_with_key(connection, tenant, key, values["digest"])):
                return existing, False
            if max_queued is not None:
                _check_queue(connection, tenant, max_queued)
            if submission.dataset_id is not None:
                hold_dataset(connection, submission.dataset_id, tenant)
            connection.execute(sa.insert(JOBS).values(row))
            first = {"status": PENDING, "phase": QUEUED, "attempt": 0}
            event = {
                "job_id": values["id"],
                "seq": 1,
                "time": row["created"],
                "kind": "status",
                "data": first,
            }
            connection.execute(sa.insert(EVENTS).values(event))
        return Job(
            **{name: row[name] for name in Job.__dataclass_fields__ if name in row},
            **_NEW_JOB_NULLS,
        ), True

    @retry_once
    def find_by_key(self, tenant: str, key: str | None, digest: str) -> Job | None:
        """Return the job that was submitted with an idempotency key, or None.

        Raises Conflict if its body was another one.
        """
        if key is None:
            return None
        with self._database.read() as connection:
            return _job_with_key(connection, tenant, key, digest)

    @retry_once
    def get(self, job_id: str, tenant: str | None = "default") -> Job:
        """Return a job. Raises NotFound if it is missing or another tenant's.

        `tenant` None is for callers that can see all tenants.
        """
        with self._database.read() as connection:
            return to_job(find_row(connection, job_id, tenant))

    @retry_once
    def find(self, job_id: str) -> Job | None:
        """Return a job of any tenant, or None, for xcray's own processes."""
        with self._database.read() as connection:
            row = first_row(connection, sa.select(*JOB_COLUMNS).where(JOBS.c.id == job_id))
        return None if row is None else to_job(row)

    @retry_once
    def list_page(
        self,
        selection: JobFilter = JobFilter(),
        *,
        limit: int = 50,
        page_token: str | None = None,
    ) -> tuple[list[Job], str | None]:
        """Return the selected jobs, newest first, and the token of the next page or None.

        Raises ParameterError for an invalid page.
        """
        conditions = selection.conditions()
        rows, token = read_page(self._database, JOBS, conditions, limit, page_token)
        return [to_job(row) for row in rows], token

    @retry_once
    def list_events(
        self, job_id: str, tenant: str | None = "default", *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Return events of a job with `seq` above `after`, in order. Raises NotFound."""
        query = (
            sa.select(EVENTS)
            .where(EVENTS.c.job_id == job_id, EVENTS.c.seq > after)
            .order_by(EVENTS.c.seq)
            .limit(limit)
        )
        with self._database.read() as connection:
            find_row(connection, job_id, tenant)
            rows = connection.execute(query).mappings().all()
        return [Event(row["seq"], row["time"], row["kind"], row["data"]) for row in rows]

    @retry_once
    def request_stop(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> Job:
        """Request a stop. Idempotent, and without effect on an ended job.

        A PENDING job stops at once, a RUNNING one at its next heartbeat.

        if_events: the number of events that the caller saw last. Raises Conflict, code
        PRECONDITION, if the job has more by now.
        """
        with self._database.write() as connection:
            row = _require_unchanged(find_row(connection, job_id, tenant, lock=True), if_events)
            if row["status"] == PENDING:
                return transition(connection, row, self._now(), STOPPED)
            if row["status"] == RUNNING and not row["stop_requested"]:
                append_event(
                    connection,
                    row,
                    self._now(),
                    "stop",
                    {"attempt": row["attempt"]},
                    stop_requested=True,
                )
            return to_job(find_row(connection, job_id, tenant))

    @retry_once
    def resume(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> Job:
        """Queue a STOPPED or FAILED job again; finished work is kept.

        A PENDING or RUNNING job is returned unchanged. Raises Conflict if it SUCCEEDED or is
        stopping, and NotFound if its data set has been deleted. Its running time and losses start
        from zero, and an `expires` in the past is removed. if_events: see `request_stop`.
        """
        with self._database.write() as connection:
            row = _require_unchanged(find_row(connection, job_id, tenant, lock=True), if_events)
            if row["status"] == SUCCEEDED:
                raise Conflict(
                    f"job {job_id} SUCCEEDED; submit a new one to train again",
                    code="STATE",
                    status=SUCCEEDED,
                )
            if row["status"] not in TERMINAL:
                if row["stop_requested"]:
                    raise Conflict(
                        f"job {job_id} is stopping; resume it when it is {STOPPED}",
                        code="STATE",
                        status=row["status"],
                    )
                return to_job(row)
            if row["dataset_id"] is not None:
                hold_dataset(connection, row["dataset_id"], row["tenant"])
            reset: dict[str, Any] = {
                "losses": 0,
                "advanced": False,
                "not_before": 0.0,
                "ran_seconds": 0.0,
            }
            if row["expires"] is not None and row["expires"] <= self._now():
                reset["expires"] = None  # resuming implies that it should run
            return transition(connection, row, self._now(), PENDING, **reset)

    @retry_once
    def delete(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> None:
        """Delete an ended job and its events. The caller removes its directories.

        Raises Conflict while it is PENDING or RUNNING. if_events: see `request_stop`.
        """
        with self._database.write() as connection:
            row = _require_unchanged(find_row(connection, job_id, tenant, lock=True), if_events)
            if row["status"] not in TERMINAL:
                raise Conflict(
                    f"job {job_id} is {row['status']}: stop it before you delete it",
                    code="STATE",
                    status=row["status"],
                )
            # Compare-and-set: fails if it was resumed in between.
            update_row(connection, row, idempotency_key=None)
            connection.execute(sa.delete(EVENTS).where(EVENTS.c.job_id == job_id))
            connection.execute(sa.delete(JOBS).where(JOBS.c.seq == row["seq"]))

    @retry_once
    def delete_ended(self, ended_before: float, keep: int, limit: int = 100) -> list[Job]:
        """Delete up to `limit` ended jobs and return them, earliest end first.

        Deletes jobs that ended before a Unix second, and those beyond the newest `keep` of all. The
        caller removes their directories and logs. Call it again while it returns `limit` jobs.
        """
        ended = sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.finished.is_not(None))
        with self._database.read() as connection:
            surplus = connection.execute(ended).scalar_one() - keep
        oldest = (
            sa.select(JOBS)
            .where(JOBS.c.finished.is_not(None))
            .order_by(JOBS.c.finished, JOBS.c.seq)
        )
        with self._database.write() as connection:
            rows = (
                connection.execute(oldest.limit(limit).with_for_update(skip_locked=True))
                .mappings()
                .all()
            )
            deleted = [
                row
                for position, row in enumerate(rows)
                if position < surplus or row["finished"] < format_utc(ended_before)
            ]
            connection.execute(
                sa.delete(EVENTS).where(EVENTS.c.job_id.in_([row["id"] for row in deleted]))
            )
            connection.execute(
                sa.delete(JOBS).where(JOBS.c.seq.in_([row["seq"] for row in deleted]))
            )
        return [to_job(row) for row in deleted]


def _check_queue(connection: Connection, tenant: str, max_queued: int) -> None:
    """Raise Refused if the tenant's queue is full."""
    waiting = (
        sa.select(JOBS.c.seq)
        .where(JOBS.c.tenant == tenant, JOBS.c.status == PENDING)
        .limit(max_queued)
        .subquery()
    )
    count = sa.select(sa.func.count()).select_from(waiting)
    if connection.execute(count).scalar_one() >= max_queued:
        raise Refused(
            f"{max_queued} of your jobs are pending, which is the limit:"
            " wait until some have run, or stop some",
            code="QUOTA",
        )


def _require_unchanged(row: sa.RowMapping, if_events: int | None) -> sa.RowMapping:
    """Return the row if the caller saw its latest state. Raises Conflict if not."""
    if if_events not in (None, row["events"]):
        raise Conflict(
            f"job {row['id']} has changed since you read it: read it again, and decide again",
            code="PRECONDITION",
        )
    return row


def _job_with_key(connection: Connection, tenant: str, key: str, digest: str) -> Job | None:
    """Return the job with an idempotency key, or None. Raises Conflict for another digest."""
    row = first_row(
        connection, sa.select(JOBS).where(JOBS.c.tenant == tenant, JOBS.c.idempotency_key == key)
    )
    if row is None:
        return None
    if row["digest"] != digest:
        raise Conflict(
            f"the idempotency key was used before, for job {row['id']} with another body:"
            " use a new key",
            code="IDEMPOTENCY_MISMATCH",
            job=row["id"],
        )
    return to_job(row)
