"""The store of jobs and data sets: what the service asks of it. One file of SQLite, or any database SQLAlchemy knows.

store = JobStore("sqlite:////var/lib/xcray/xcray.db")
job, created = store.submit({"dataset": "ds_..."}, name="pydocs", idempotency_key="k1")
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, ParameterError
from xcray.jobs.attempts import AttemptTable
from xcray.jobs.datasets import DatasetTable
from xcray.jobs.engine import Database
from xcray.jobs.figures import FigureTable
from xcray.jobs.job import KINDS, TRAIN, Event, Job, body_digest, new_id, utc
from xcray.jobs.paging import page_start, page_token_after
from xcray.jobs.rows import JOB_COLUMNS, change, find, job_of, move, note
from xcray.jobs.schema import EVENTS, JOBS, upgrade
from xcray.jobs.states import PENDING, QUEUED, RUNNING, STATUSES, STOPPED, SUCCEEDED, TERMINAL

Events: TypeAlias = list[Event]  # the store has a method `list`

_FRESH: Final[dict[str, Any]] = {
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


class JobStore(AttemptTable, DatasetTable, FigureTable):
    """Jobs, their events and the data sets, in one database that many processes share.

    `url` names the database (SQLAlchemy's form), `now` gives Unix seconds. Every method is one transaction and may be called from
    any thread. Raises Unavailable when the database can't answer, Conflict when it was written by a newer xcray.
    """

    def __init__(self, url: str, *, now: Callable[[], float] = time.time, busy_seconds: float = 15.0) -> None:
        self.url = url
        self._now = now
        self._database = Database(url, busy_seconds)
        with self._database.write() as connection:
            upgrade(connection)

    def submit(
        self,
        spec: dict[str, Any],
        *,
        name: str,
        tenant: str = "default",
        idempotency_key: str | None = None,
        priority: int = 0,
        digest: str | None = None,
        kind: str = TRAIN,
        job_id: str | None = None,
    ) -> tuple[Job, bool]:
        """Accept a job, durably: (job, True), or (the first job, False) when the tenant used the key before with the same body.

        `digest` stands for the body where the caller knows it better than spec, name and priority do. `kind`: one of KINDS.
        `job_id` is a server-made `new_id("job")` when its folder had to be named before. Raises Conflict when the key was used with
        another body.
        """
        if kind not in KINDS:
            raise ParameterError(f"kind {kind[:20]!r} is unknown: use one of {', '.join(KINDS)}")
        digest = digest or body_digest({"spec": spec, "name": name, "priority": priority})
        known = self.same_key(tenant, idempotency_key, digest)
        if known is not None:
            return known, False
        asked = {"tenant": tenant, "name": name, "spec": spec, "digest": digest, "priority": priority, "kind": kind}
        try:
            return self._insert({**asked, "id": job_id or new_id("job"), "idempotency_key": idempotency_key}), True
        except IntegrityError:  # the same key came through another door in between
            if idempotency_key is None:
                raise
            known = self.same_key(tenant, idempotency_key, digest)
            if known is None:
                raise
            return known, False

    def same_key(self, tenant: str, key: str | None, digest: str) -> Job | None:
        """The job that was submitted with this key, None when there is none; Conflict when its body was another one."""
        if key is None:
            return None
        with self._database.read() as connection:
            return _keyed(connection, tenant, key, digest)

    def get(self, job_id: str, tenant: str = "default") -> Job:
        """One job. NotFound when there is none, or when it is another tenant's."""
        with self._database.read() as connection:
            return job_of(find(connection, job_id, tenant))

    def list(
        self, tenant: str = "default", *, status: str | None = None, limit: int = 50, page_token: str | None = None
    ) -> tuple[list[Job], str | None]:
        """Jobs of a tenant, newest first, and the token of the next page or None. ParameterError for a wrong argument."""
        query = sa.select(*JOB_COLUMNS, JOBS.c.seq).where(JOBS.c.tenant == tenant).order_by(JOBS.c.seq.desc())
        if status is not None:
            if status not in STATUSES:
                raise ParameterError(f"status {status[:20]!r} is unknown: use one of {', '.join(STATUSES)}")
            query = query.where(JOBS.c.status == status)
        start = page_start(page_token, limit)
        if start is not None:
            query = query.where(JOBS.c.seq < start)
        with self._database.read() as connection:
            rows = connection.execute(query.limit(limit + 1)).mappings().all()
        return [job_of(row) for row in rows[:limit]], page_token_after(rows, limit)

    def events(self, job_id: str, tenant: str = "default", *, after: int = 0, limit: int = 1000) -> Events:
        """Events of a job with `seq` above `after`, in order. NotFound as in `get`."""
        query = sa.select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.seq > after).order_by(EVENTS.c.seq).limit(limit)
        with self._database.read() as connection:
            find(connection, job_id, tenant)
            rows = connection.execute(query).mappings().all()
        return [Event(row["seq"], row["time"], row["kind"], row["data"]) for row in rows]

    def request_stop(self, job_id: str, tenant: str = "default") -> Job:
        """Ask a job to stop: PENDING stops at once, RUNNING hears it at its next heartbeat, ended ones stay. Twice is once."""
        with self._database.write() as connection:
            row = find(connection, job_id, tenant, lock=True)
            if row["status"] == PENDING:
                return move(connection, row, self._now(), STOPPED)
            if row["status"] == RUNNING and not row["stop_requested"]:
                note(connection, row, self._now(), "stop", {"attempt": row["attempt"]}, stop_requested=True)
            return job_of(find(connection, job_id, tenant))

    def resume(self, job_id: str, tenant: str = "default") -> Job:
        """Queue a STOPPED or FAILED job again; finished work is kept. One under way stays as it is; Conflict when it SUCCEEDED."""
        with self._database.write() as connection:
            row = find(connection, job_id, tenant, lock=True)
            if row["status"] == SUCCEEDED:
                raise Conflict(f"job {job_id} SUCCEEDED; submit a new one to train again", code="STATE", status=SUCCEEDED)
            if row["status"] not in TERMINAL:
                if row["stop_requested"]:
                    raise Conflict(f"job {job_id} is stopping; resume it when it is {STOPPED}", code="STATE", status=row["status"])
                return job_of(row)
            return move(connection, row, self._now(), PENDING, losses=0, advanced=False, not_before=0.0)

    def delete(self, job_id: str, tenant: str = "default") -> None:
        """Forget an ended job and its events; its folders are the caller's. Conflict while it is PENDING or RUNNING."""
        with self._database.write() as connection:
            row = find(connection, job_id, tenant, lock=True)
            if row["status"] not in TERMINAL:
                raise Conflict(f"job {job_id} is {row['status']}: stop it before you delete it", code="STATE", status=row["status"])
            change(connection, row, idempotency_key=None)  # compare-and-set: it wasn't resumed in between
            connection.execute(sa.delete(EVENTS).where(EVENTS.c.job_id == job_id))
            connection.execute(sa.delete(JOBS).where(JOBS.c.seq == row["seq"]))

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """How many jobs have each status, every status named; of one tenant, or of all."""
        query = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        if tenant is not None:
            query = query.where(JOBS.c.tenant == tenant)
        with self._database.read() as connection:
            counted = {row[0]: row[1] for row in connection.execute(query)}
        return dict.fromkeys(STATUSES, 0) | counted

    def ping(self) -> None:
        """Return when the database answers; raises Unavailable when not."""
        with self._database.read() as connection:
            connection.execute(sa.select(1))

    def close(self) -> None:
        """Close all connections; the store may not be used after it."""
        self._database.close()

    def _insert(self, asked: dict[str, Any]) -> Job:
        """A new row and its first event."""
        with self._database.write() as connection:
            created = utc(self._now())
            connection.execute(sa.insert(JOBS).values(created=created, **asked, **_FRESH))
            first = {"status": PENDING, "phase": QUEUED, "attempt": 0}
            connection.execute(sa.insert(EVENTS).values(job_id=asked["id"], seq=1, time=created, kind="status", data=first))
            return job_of(find(connection, asked["id"], asked["tenant"]))


def _keyed(connection: Connection, tenant: str, key: str, digest: str) -> Job | None:
    """The row of a key, checked against the body's digest."""
    row = connection.execute(sa.select(JOBS).where(JOBS.c.tenant == tenant, JOBS.c.idempotency_key == key)).mappings().first()
    if row is None:
        return None
    if row["digest"] != digest:
        raise Conflict(
            f"the idempotency key was used before, for job {row['id']} with another body: use a new key",
            code="IDEMPOTENCY_MISMATCH",
            job=row["id"],
        )
    return job_of(row)
