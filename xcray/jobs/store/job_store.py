"""The store of jobs and data sets: what the service asks of it. One file of SQLite, or any database SQLAlchemy knows.

store = JobStore("sqlite:////var/lib/xcray/xcray.db")
job, created = store.submit({"dataset": "ds_..."}, name="pydocs", idempotency_key="k1")
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, ParameterError, Refused, XcrayError
from xcray.jobs.database.clients import ProgramTable, process_name
from xcray.jobs.database.compatibility import Guard
from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.database.upgrade import bring_up
from xcray.jobs.job import KINDS, TRAIN, Event, Job, body_digest, new_id, utc
from xcray.jobs.states import PENDING, QUEUED, RUNNING, STATUSES, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.attempts import AttemptTable
from xcray.jobs.store.audit import AuditTable
from xcray.jobs.store.bulk_stop import StopTable
from xcray.jobs.store.counters import CounterTable
from xcray.jobs.store.datasets import DatasetTable
from xcray.jobs.store.keys import KeyTable
from xcray.jobs.store.leader_leases import DutyTable
from xcray.jobs.store.leases import Watch
from xcray.jobs.store.paging import page_start, page_token_after
from xcray.jobs.store.statistics import FigureTable
from xcray.jobs.store.transitions import JOB_COLUMNS, change, find, job_of, move, note

LOG: Final = logging.getLogger(__name__)
Events: TypeAlias = list[Event]  # the store has a method `list`
Jobs: TypeAlias = list[Job]

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

_EMPTY: Final[dict[str, Any]] = dict.fromkeys(
    ("reason", "message", "result", "started", "finished")
)  # as every new job has them


class JobStore(
    AttemptTable,
    DatasetTable,
    FigureTable,
    KeyTable,
    AuditTable,
    CounterTable,
    DutyTable,
    StopTable,
    ProgramTable,
):
    """Jobs, their events, data sets, keys and all else of the service, in one database that many processes share.

    Every method is one transaction and may be called from any thread. Raises Unavailable when the database can't answer, Refused
    DISK_FULL when it can't take more, Unavailable SCHEMA_NEWER when a newer xcray made it one that this must not use any more.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        busy_seconds: float = 15.0,
        upgrade: bool = True,
    ) -> None:
        """url: the database in SQLAlchemy's form. now: Unix seconds, for what people read. steady: seconds that never jump, for
        leases. busy_seconds: how long a transaction may wait. upgrade: whether an older store may be upgraded; else Conflict, as
        for one that serves newer programs alone."""
        self.url = url
        self._now = now
        self._steady = steady
        self._leases = Watch(steady)
        self._duties = Watch(steady)
        self._programs = Watch(steady)
        self._program = process_name()
        self._attending = threading.Lock()
        self._attended = False
        self._asked = -float("inf")
        self._database = Database(url, busy_seconds)
        try:
            bring_up(self._database, allowed=upgrade)
            self._database.guard = Guard()
        except BaseException:
            self._database.close()
            raise

    @once_more
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
        key_id: str | None = None,
        model: str | None = None,
        dataset_id: str | None = None,
        timeout_seconds: float | None = None,
        expires_seconds: float | None = None,
        max_attempts: int | None = None,
        most_queued: int | None = None,
    ) -> tuple[Job, bool]:
        """Accept a job, durably: (job, True), or (the first job, False) when the tenant used the key before with the same body.

        `digest` stands for the body where the caller knows it better than spec, name and priority do. `kind`: one of KINDS.
        `job_id` is a server-made `new_id("job")` when its folder had to be named before. `expires_seconds`: from now on, when it
        must have ended; other limits as in `Job`. Raises Conflict when the key was used with another body, Refused, code QUOTA,
        when `most_queued` jobs of the tenant wait already.
        """
        if kind not in KINDS:
            raise ParameterError(f"kind {kind[:20]!r} is unknown: use one of {', '.join(KINDS)}")
        digest = digest or body_digest({"spec": spec, "name": name, "priority": priority})
        expires = None if expires_seconds is None else self._now() + expires_seconds
        asked: dict[str, Any] = {
            "tenant": tenant,
            "name": name,
            "spec": spec,
            "digest": digest,
            "priority": priority,
            "kind": kind,
        }
        asked |= {
            "key_id": key_id,
            "model": model,
            "dataset_id": dataset_id,
            "timeout_seconds": timeout_seconds,
        }
        asked |= {
            "expires": expires,
            "max_attempts": max_attempts,
            "idempotency_key": idempotency_key,
        }
        try:
            return self._insert({**asked, "id": job_id or new_id("job")}, most_queued)
        except IntegrityError:  # the same key came through another door in between
            known = self.same_key(tenant, idempotency_key, digest)
            if known is None:
                raise
            return known, False

    @once_more
    def same_key(self, tenant: str, key: str | None, digest: str) -> Job | None:
        """The job that was submitted with this key, None when there is none; Conflict when its body was another one."""
        if key is None:
            return None
        with self._database.read() as connection:
            return _keyed(connection, tenant, key, digest)

    @once_more
    def get(self, job_id: str, tenant: str | None = "default") -> Job:
        """One job. NotFound when there is none, or when it is another tenant's; `tenant` None is for those who may see all."""
        with self._database.read() as connection:
            return job_of(find(connection, job_id, tenant))

    @once_more
    def find_job(self, job_id: str) -> Job | None:
        """One job of whatever tenant, None when there is none: for xcray's own processes."""
        with self._database.read() as connection:
            row = (
                connection.execute(sa.select(*JOB_COLUMNS).where(JOBS.c.id == job_id))
                .mappings()
                .first()
            )
        return None if row is None else job_of(row)

    @once_more
    def list(
        self,
        tenant: str | None = "default",
        *,
        status: str | Sequence[str] | None = None,
        kind: str | None = None,
        name: str | None = None,
        model: str | None = None,
        dataset: str | None = None,
        priority: int | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        limit: int = 50,
        page_token: str | None = None,
    ) -> tuple[list[Job], str | None]:
        """Jobs of a tenant (None: of all), newest first, and the token of the next page or None. Raises ParameterError.

        Only those that fit all that is named: `status` is one or several, `dataset` is an id, `created_after` (inclusive) and
        `created_before` Unix seconds.
        """
        statuses = [status] if isinstance(status, str) else [*(status or ())]
        for unknown in set(statuses) - set(STATUSES):
            raise ParameterError(
                f"status {unknown[:20]!r} is unknown: use one of {', '.join(STATUSES)}"
            )
        same = {"tenant": tenant, "kind": kind, "name": name, "model": model, "priority": priority}
        wanted = [
            JOBS.c[column] == value
            for column, value in {**same, "dataset_id": dataset}.items()
            if value is not None
        ]
        if statuses:
            wanted.append(JOBS.c.status.in_(statuses))
        if created_after is not None:
            wanted.append(JOBS.c.created >= utc(created_after))
        if created_before is not None:
            wanted.append(JOBS.c.created < utc(created_before))
        start = page_start(page_token, limit)
        if start is not None:
            wanted.append(JOBS.c.seq < start)
        # the inner question is answered by an index alone; only the rows of the page are read
        page = sa.select(JOBS.c.seq).where(*wanted).order_by(JOBS.c.seq.desc()).limit(limit + 1)
        query = (
            sa.select(*JOB_COLUMNS, JOBS.c.seq)
            .where(JOBS.c.seq.in_(page))
            .order_by(JOBS.c.seq.desc())
        )
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [job_of(row) for row in rows[:limit]], page_token_after(rows, limit)

    @once_more
    def events(
        self, job_id: str, tenant: str | None = "default", *, after: int = 0, limit: int = 1000
    ) -> Events:
        """Events of a job with `seq` above `after`, in order. NotFound as in `get`."""
        query = (
            sa.select(EVENTS)
            .where(EVENTS.c.job_id == job_id, EVENTS.c.seq > after)
            .order_by(EVENTS.c.seq)
            .limit(limit)
        )
        with self._database.read() as connection:
            find(connection, job_id, tenant)
            rows = connection.execute(query).mappings().all()
        return [Event(row["seq"], row["time"], row["kind"], row["data"]) for row in rows]

    @once_more
    def request_stop(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> Job:
        """Ask a job to stop: PENDING stops at once, RUNNING hears it at its next heartbeat, ended ones stay. Twice is once.

        if_events: only a job with so many events, as a caller saw it last; Conflict, code PRECONDITION, when it has more by now.
        """
        with self._database.write() as connection:
            row = _as_seen(find(connection, job_id, tenant, lock=True), if_events)
            if row["status"] == PENDING:
                return move(connection, row, self._now(), STOPPED)
            if row["status"] == RUNNING and not row["stop_requested"]:
                note(
                    connection,
                    row,
                    self._now(),
                    "stop",
                    {"attempt": row["attempt"]},
                    stop_requested=True,
                )
            return job_of(find(connection, job_id, tenant))

    @once_more
    def resume(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> Job:
        """Queue a STOPPED or FAILED job again; finished work is kept. One under way stays as it is; Conflict when it SUCCEEDED.

        It has its running time and its losses before it again; a time to end that has come no longer counts. if_events: as of
        `request_stop`.
        """
        with self._database.write() as connection:
            row = _as_seen(find(connection, job_id, tenant, lock=True), if_events)
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
                return job_of(row)
            again: dict[str, Any] = {
                "losses": 0,
                "advanced": False,
                "not_before": 0.0,
                "ran_seconds": 0.0,
            }
            if row["expires"] is not None and row["expires"] <= self._now():
                again["expires"] = None  # whoever resumes it wants it to run
            return move(connection, row, self._now(), PENDING, **again)

    @once_more
    def delete(
        self, job_id: str, tenant: str | None = "default", *, if_events: int | None = None
    ) -> None:
        """Forget an ended job and its events; its folders are the caller's. Conflict while it is PENDING or RUNNING.

        if_events: as of `request_stop`.
        """
        with self._database.write() as connection:
            row = _as_seen(find(connection, job_id, tenant, lock=True), if_events)
            if row["status"] not in TERMINAL:
                raise Conflict(
                    f"job {job_id} is {row['status']}: stop it before you delete it",
                    code="STATE",
                    status=row["status"],
                )
            change(
                connection, row, idempotency_key=None
            )  # compare-and-set: it wasn't resumed in between
            connection.execute(sa.delete(EVENTS).where(EVENTS.c.job_id == job_id))
            connection.execute(sa.delete(JOBS).where(JOBS.c.seq == row["seq"]))

    @once_more
    def retire(self, ended_before: float, keep: int, limit: int = 100) -> Jobs:
        """Forget at most `limit` ended jobs: those that ended before a Unix second, and those beyond the newest `keep` of all.

        Returns the forgotten jobs, those that ended first before others; their folders and logs are the caller's to remove. Call it
        again while it returns `limit`.
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
            gone = [
                row
                for place, row in enumerate(rows)
                if place < surplus or row["finished"] < utc(ended_before)
            ]
            connection.execute(
                sa.delete(EVENTS).where(EVENTS.c.job_id.in_([row["id"] for row in gone]))
            )
            connection.execute(sa.delete(JOBS).where(JOBS.c.seq.in_([row["seq"] for row in gone])))
        return [job_of(row) for row in gone]

    @once_more
    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """How many jobs have each status, every status named; of one tenant, or of all."""
        query = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        if tenant is not None:
            query = query.where(JOBS.c.tenant == tenant)
        with self._database.read() as connection:
            counted = {row[0]: row[1] for row in connection.execute(query)}
        return dict.fromkeys(STATUSES, 0) | counted

    @once_more
    def ping(self) -> None:
        """Return when the database answers, whatever its schema; raises Unavailable when not."""
        with self._database.read(guarded=False) as connection:
            connection.execute(sa.select(1))

    def close(self) -> None:
        """Close all connections; the store may not be used after it."""
        try:
            if self._attended:
                self._leave()
        except XcrayError as error:
            LOG.info("the store was not told that we leave, and will find out: %s", error.message)
        finally:
            self._database.close()

    def _insert(self, asked: dict[str, Any], most_queued: int | None) -> tuple[Job, bool]:
        """A new row and its first event, and True; or the job that has its key already, and False."""
        tenant, key = asked["tenant"], asked["idempotency_key"]
        with self._database.write() as connection:
            known = None if key is None else _keyed(connection, tenant, key, asked["digest"])
            if known is not None:
                return known, False
            if most_queued is not None:
                self._check_queue(connection, tenant, most_queued)
            row = {"created": utc(self._now()), **asked, **_FRESH}
            connection.execute(sa.insert(JOBS).values(row))
            first = {"status": PENDING, "phase": QUEUED, "attempt": 0}
            event = {
                "job_id": asked["id"],
                "seq": 1,
                "time": row["created"],
                "kind": "status",
                "data": first,
            }
            connection.execute(sa.insert(EVENTS).values(event))
        return Job(
            **{name: row[name] for name in Job.__dataclass_fields__ if name in row}, **_EMPTY
        ), True

    def _check_queue(self, connection: Connection, tenant: str, most_queued: int) -> None:
        """Refuse one job too many of a tenant, also when many come at once."""
        self._database.alone(connection, f"queue of {tenant}")
        waiting = (
            sa.select(JOBS.c.seq)
            .where(JOBS.c.tenant == tenant, JOBS.c.status == PENDING)
            .limit(most_queued)
            .subquery()
        )
        if (
            connection.execute(sa.select(sa.func.count()).select_from(waiting)).scalar_one()
            >= most_queued
        ):
            raise Refused(
                f"{most_queued} of your jobs wait already, more may not: wait until some have run, or stop some",
                code="QUOTA",
            )


def _as_seen(row: sa.RowMapping, if_events: int | None) -> sa.RowMapping:
    """The row, when it is as the caller saw it."""
    if if_events not in (None, row["events"]):
        raise Conflict(
            f"job {row['id']} has changed since you read it: read it again, and decide again",
            code="PRECONDITION",
        )
    return row


def _keyed(connection: Connection, tenant: str, key: str, digest: str) -> Job | None:
    """The row of a key, checked against the body's digest."""
    row = (
        connection.execute(
            sa.select(JOBS).where(JOBS.c.tenant == tenant, JOBS.c.idempotency_key == key)
        )
        .mappings()
        .first()
    )
    if row is None:
        return None
    if row["digest"] != digest:
        raise Conflict(
            f"the idempotency key was used before, for job {row['id']} with another body: use a new key",
            code="IDEMPOTENCY_MISMATCH",
            job=row["id"],
        )
    return job_of(row)
