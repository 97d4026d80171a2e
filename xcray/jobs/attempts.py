"""The store's face for those who run jobs: claim, heartbeat, append, finish, give back, expire.

Every write names its attempt and is refused with Fenced when a newer attempt, or nobody, runs the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict
from xcray.jobs.engine import Database
from xcray.jobs.job import Job, utc
from xcray.jobs.rows import JOB_COLUMNS, change, job_of, move, note, owned
from xcray.jobs.schema import JOBS
from xcray.jobs.states import FAILED, PENDING, RUNNING, STARTING, STOPPED, TERMINAL

FIRST_BACKOFF = 5.0  # seconds before the second try; doubles, up to LONGEST_BACKOFF
LONGEST_BACKOFF = 300.0


class AttemptTable:
    """Attempts at running jobs."""

    _database: Database
    _now: Callable[[], float]

    def claim(self, owner: str, *, lease_seconds: float, cap: int | None = None) -> Job | None:
        """Take the oldest job of the highest priority: RUNNING, attempt + 1, leased to `owner`. None when nothing waits.

        `cap`: None also while that many jobs are RUNNING, counted in the same transaction, whoever runs them.
        """
        waiting = (
            sa.select(JOBS)
            .where(JOBS.c.status == PENDING, JOBS.c.not_before <= self._now())
            .order_by(JOBS.c.priority.desc(), JOBS.c.seq)
            .limit(1)
        )
        with self._database.read() as connection:  # looking needs no lock, and most looks find nothing
            if connection.execute(waiting.with_only_columns(JOBS.c.seq)).first() is None:
                return None
        with self._database.write() as connection:
            row = connection.execute(waiting.with_for_update(skip_locked=True)).mappings().first()
            if row is None or (cap is not None and _count_running(connection) >= cap):
                return None
            now = self._now()
            return move(
                connection,
                row,
                now,
                RUNNING,
                attempt=row["attempt"] + 1,
                owner=owner,
                lease_until=now + lease_seconds,
                phase=STARTING,
                progress={},
                started=row["started"] or utc(now),
            )

    def heartbeat(self, job_id: str, attempt: int, *, lease_seconds: float) -> bool:
        """Renew the lease; True when somebody asked the job to stop. Raises Fenced when `attempt` isn't the running one."""
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            change(connection, row, lease_until=self._now() + lease_seconds)
            return bool(row["stop_requested"])

    def append(self, job_id: str, attempt: int, kind: str, data: dict[str, Any]) -> None:
        """Append an event. Kinds `phase` and `progress` also become the job's phase and progress. Raises Fenced."""
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            values: dict[str, Any] = {}
            if kind in ("phase", "progress"):
                values["phase"] = data.get("phase", row["phase"])
            if kind == "progress":
                values |= {"progress": data, "advanced": row["advanced"] or bool(data.get("done"))}
            note(connection, row, self._now(), kind, data, **values)

    def finish(
        self,
        job_id: str,
        attempt: int,
        status: str,
        *,
        reason: str | None = None,
        message: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> Job:
        """End a job as STOPPED, SUCCEEDED or FAILED. Raises Fenced when `attempt` isn't the running one: its result is dropped."""
        if status not in TERMINAL:
            raise Conflict(f"a job can't finish as {status}: use one of {sorted(TERMINAL)}", code="STATE")
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            return move(connection, row, self._now(), status, reason=reason, message=message, result=result)

    def release(self, job_id: str, attempt: int) -> Job:
        """Give a running job back, to be claimed again at once; STOPPED when a stop was asked for. Raises Fenced."""
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            return move(connection, row, self._now(), STOPPED if row["stop_requested"] else PENDING)

    def retry_later(self, job_id: str, attempt: int, *, reason: str, message: str, max_attempts: int = 3) -> Job:
        """Give back a job that something unavailable hinders, to be tried again after a pause; FAILED after `max_attempts`.

        The pause is FIRST_BACKOFF seconds, then twice as long each time. Raises Fenced.
        """
        with self._database.write() as connection:
            row, now = owned(connection, job_id, attempt), self._now()
            pause = min(FIRST_BACKOFF * 2 ** row["losses"], LONGEST_BACKOFF)
            return self._lose(connection, row, max_attempts, reason, message, not_before=now + pause)

    def expire(self, *, max_attempts: int = 3) -> list[Job]:
        """Take jobs from runners whose lease ran out; the jobs as they are now.

        Returns: jobs PENDING again, STOPPED when a stop was asked for, or FAILED after `max_attempts` losses: reason POISON
        when no attempt got any work done, else LOST.
        """
        late = (JOBS.c.status == RUNNING, JOBS.c.lease_until < self._now())
        with self._database.read() as connection:  # looking needs no lock, and most looks find nothing
            if connection.execute(sa.select(JOBS.c.seq).where(*late).limit(1)).first() is None:
                return []
        with self._database.write() as connection:
            rows = connection.execute(sa.select(JOBS).where(*late).order_by(JOBS.c.seq).with_for_update()).mappings().all()
            return [self._expired(connection, row, max_attempts) for row in rows]

    def lose(self, job_id: str, attempt: int, *, max_attempts: int = 3) -> Job:
        """Do for one attempt what `expire` does when its lease runs out: its process is known to be gone. Raises Fenced."""
        with self._database.write() as connection:
            return self._expired(connection, owned(connection, job_id, attempt), max_attempts)

    def current(self, job_id: str, attempt: int) -> Job:
        """The job that an attempt runs, for the process that runs it. Raises Fenced."""
        with self._database.write() as connection:
            return job_of(owned(connection, job_id, attempt))

    def running(self, owner: str | None = None) -> list[Job]:
        """Jobs that are RUNNING now, of all tenants, oldest first; of one owner when named."""
        query = sa.select(*JOB_COLUMNS).where(JOBS.c.status == RUNNING).order_by(JOBS.c.seq)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query).mappings()]

    def _expired(self, connection: Connection, row: sa.RowMapping, max_attempts: int) -> Job:
        """One job whose runner vanished."""
        if row["stop_requested"]:
            return move(connection, row, self._now(), STOPPED)
        sentence = f"its runner vanished {row['losses'] + 1} times; see the log of the job, then resume it"
        return self._lose(connection, row, max_attempts, "LOST" if row["advanced"] else "POISON", sentence)

    def _lose(self, connection: Connection, row: sa.RowMapping, max_attempts: int, reason: str, message: str, **values: Any) -> Job:
        """Count a loss: FAILED when there were too many, STOPPED when that was wished, PENDING otherwise."""
        losses = row["losses"] + 1
        if row["stop_requested"]:
            return move(connection, row, self._now(), STOPPED)
        if losses >= max_attempts:
            return move(connection, row, self._now(), FAILED, losses=losses, reason=reason, message=message)
        return move(connection, row, self._now(), PENDING, losses=losses, reason=reason, message=message, **values)


def _count_running(connection: Connection) -> int:
    """How many jobs run now, of all tenants."""
    return int(connection.execute(sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.status == RUNNING)).scalar_one())
