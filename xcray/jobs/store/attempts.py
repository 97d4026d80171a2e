"""The store's face for those who run jobs: claim, heartbeat, append, finish, give back, expire.

Every write names its attempt and is refused with Fenced when a newer attempt, or nobody, runs the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict
from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import EXPIRED, Job, utc
from xcray.jobs.states import FAILED, PENDING, RUNNING, STARTING, STOPPED, TERMINAL
from xcray.jobs.store.counters import Counted, add_up
from xcray.jobs.store.fair_queue import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    Quota,
    anything_waits,
    next_job,
    take_turn,
)
from xcray.jobs.store.leases import Watch
from xcray.jobs.store.transitions import JOB_COLUMNS, change, job_of, move, note, owned

CLAIMING = "claim"  # what the lock of those who claim is called
LAUNCH = "LAUNCH"  # the reason of attempts that never began, or went with the cluster they were on
MOST_LAUNCHES = 20  # of one job, that may fail for this reason


class AttemptTable:
    """Attempts at running jobs."""

    _database: Database
    _leases: Watch
    _now: Callable[[], float]

    @once_more
    def claim(
        self,
        owner: str,
        *,
        lease_seconds: float,
        cap: int | None = None,
        most_running_of: Quota = None,
        but: Collection[str] = (),
    ) -> Job | None:
        """Take the job whose turn it is (see `xcray.jobs.store.fair_queue`): RUNNING, attempt + 1, leased to `owner`; or None.

        `cap`: None also while that many jobs are RUNNING, counted in the same transaction, whoever runs them. `most_running_of`:
        the same for each tenant: a function or a mapping from tenant to a number, or None for no bound. `but`: pools whose jobs
        wait, as while the cluster is away that they run on; others pass them by, and they keep their order.
        """
        with (
            self._database.read() as connection
        ):  # looking needs no lock, and most looks find nothing
            if not anything_waits(connection) or _is_full(connection, cap):
                return None
        with self._database.write() as connection:
            self._database.alone(connection, CLAIMING)
            row = (
                None
                if _is_full(connection, cap)
                else next_job(connection, self._now(), most_running_of, but)
            )
            if row is None:
                return None
            take_turn(connection, row["tenant"])
            values: dict[str, Any] = {
                "attempt": row["attempt"] + 1,
                "owner": owner,
                "lease_seconds": lease_seconds,
            }
            values |= {
                "phase": STARTING,
                "progress": {},
                "started": row["started"] or max(utc(self._now()), row["created"]),
            }
            return move(connection, row, self._now(), RUNNING, **values)

    @once_more
    def heartbeat(
        self,
        job_id: str,
        attempt: int,
        *,
        lease_seconds: float,
        ran_seconds: float = 0.0,
        counted: Counted | None = None,
    ) -> bool:
        """Renew the lease; True when the job shall stop: somebody asked for it, or its time is up (`Job.overtime` says why).

        `ran_seconds`: running time since the last heartbeat that came through, by the runner's steady clock. `counted`: what to
        add to counters in the same transaction. Raises Fenced when `attempt` isn't the running one.
        """
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            ran = row["ran_seconds"] + ran_seconds
            change(
                connection,
                row,
                beats=row["beats"] + 1,
                lease_seconds=lease_seconds,
                ran_seconds=ran,
            )
            add_up(connection, counted)
            return (
                bool(row["stop_requested"])
                or job_of({**row, "ran_seconds": ran}).overtime(self._now()) is not None
            )

    @once_more
    def append(
        self,
        job_id: str,
        attempt: int,
        kind: str,
        data: dict[str, Any],
        *,
        counted: Counted | None = None,
    ) -> None:
        """Append an event. Kinds `phase` and `progress` also become the job's phase and progress. Raises Fenced.

        Of long series some events are forgotten while the job runs, see `xcray.jobs.store.event_retention`.
        """
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            values: dict[str, Any] = {}
            if kind in ("phase", "progress"):
                values["phase"] = data.get("phase", row["phase"])
            if kind == "progress":
                values |= {"progress": data, "advanced": row["advanced"] or bool(data.get("done"))}
            note(connection, row, self._now(), kind, data, **values)
            add_up(connection, counted)

    @once_more
    def finish(
        self,
        job_id: str,
        attempt: int,
        status: str,
        *,
        reason: str | None = None,
        message: str | None = None,
        result: dict[str, Any] | None = None,
        counted: Counted | None = None,
    ) -> Job:
        """End a job as STOPPED, SUCCEEDED or FAILED. Raises Fenced when `attempt` isn't the running one: its result is dropped."""
        if status not in TERMINAL:
            raise Conflict(
                f"a job can't finish as {status}: use one of {sorted(TERMINAL)}", code="STATE"
            )
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            add_up(connection, counted)
            return move(
                connection, row, self._now(), status, reason=reason, message=message, result=result
            )

    @once_more
    def release(self, job_id: str, attempt: int) -> Job:
        """Give a running job back, to be claimed again at once; STOPPED when a stop was asked for. Raises Fenced."""
        with self._database.write() as connection:
            row = owned(connection, job_id, attempt)
            return move(connection, row, self._now(), STOPPED if row["stop_requested"] else PENDING)

    @once_more
    def retry_later(
        self, job_id: str, attempt: int, *, reason: str, message: str, max_attempts: int = 3
    ) -> Job:
        """Give back a job that something unavailable hinders, to be tried again after a pause; FAILED after `max_attempts`.

        The pause is FIRST_BACKOFF seconds, then twice as long each time. The job's own `max_attempts` comes first. Attempts that
        never began (LAUNCH) and those that did are counted apart: a Ray that is away costs no attempt. Raises Fenced.
        """
        with self._database.write() as connection:
            row, now = owned(connection, job_id, attempt), self._now()
            pause = min(FIRST_BACKOFF * 2 ** row["losses"], LONGEST_BACKOFF)
            return self._lose(
                connection, row, max_attempts, reason, message, not_before=now + pause
            )

    @once_more
    def expire(self, *, max_attempts: int = 3, spared: Collection[str] = ()) -> list[Job]:
        """Take jobs from runners that were silent for their lease while this store watched, and end jobs that waited too long.

        Call it often: a lease is lost when two calls, further apart than it is long, saw no heartbeat in between. Returns: jobs
        PENDING again, STOPPED when a stop was asked for, or FAILED: reason TIMEOUT or EXPIRED when their time was up; after
        `max_attempts` losses (or the job's own) POISON when no attempt got any work done, else LOST. `spared`: pools whose cluster
        is or was away: what went with it counts as a launch that failed, of which there may be MOST_LAUNCHES.
        """
        columns = ("id", "attempt", "beats", "lease_seconds")
        with (
            self._database.read() as connection
        ):  # looking needs no lock, and most looks find nothing
            rows = connection.execute(
                sa.select(*(JOBS.c[name] for name in columns)).where(JOBS.c.status == RUNNING)
            ).all()
            lost = self._leases.lost(
                {row.id: ((row.attempt, row.beats), row.lease_seconds or 0.0) for row in rows}
            )
            seen = {row.id: (row.attempt, row.beats) for row in rows if row.id in lost}
            late = connection.execute(sa.select(JOBS.c.id).where(*self._too_late())).scalars().all()
        if not seen and not late:
            return []
        with self._database.write() as connection:
            mine = (JOBS.c.id.in_([*seen, *late]), JOBS.c.status.in_((RUNNING, PENDING)))
            found = (
                connection.execute(
                    sa.select(JOBS).where(*mine).order_by(JOBS.c.seq).with_for_update()
                )
                .mappings()
                .all()
            )
            waited = [row for row in found if row["status"] == PENDING and row["id"] in late]
            silent = [
                row
                for row in found
                if row["status"] == RUNNING
                and seen.get(row["id"]) == (row["attempt"], row["beats"])
            ]
            return [self._waited_too_long(connection, row) for row in waited] + [
                self._expired(connection, row, max_attempts, spared) for row in silent
            ]

    @once_more
    def lose(
        self, job_id: str, attempt: int, *, max_attempts: int = 3, spared: Collection[str] = ()
    ) -> Job:
        """Do for one attempt what `expire` does when its lease is lost: its process is known to be gone. Raises Fenced."""
        with self._database.write() as connection:
            return self._expired(
                connection, owned(connection, job_id, attempt), max_attempts, spared
            )

    @once_more
    def current(self, job_id: str, attempt: int) -> Job:
        """The job that an attempt runs, for the process that runs it. Raises Fenced."""
        with self._database.write() as connection:
            return job_of(owned(connection, job_id, attempt))

    @once_more
    def running(self, owner: str | None = None) -> list[Job]:
        """Jobs that are RUNNING now, of all tenants, oldest first; of one owner when named."""
        query = sa.select(*JOB_COLUMNS).where(JOBS.c.status == RUNNING).order_by(JOBS.c.seq)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query).mappings()]

    def _too_late(self) -> tuple[sa.ColumnElement[bool], ...]:
        """Waiting jobs that must have ended by now."""
        return JOBS.c.status == PENDING, JOBS.c.expires.is_not(None), JOBS.c.expires <= self._now()

    def _waited_too_long(self, connection: Connection, row: sa.RowMapping) -> Job:
        """One job that never came to run in time."""
        sentence = "its time to end came while it waited; submit it again with a later one, or with a higher priority"
        return move(connection, row, self._now(), FAILED, reason=EXPIRED, message=sentence)

    def _expired(
        self, connection: Connection, row: sa.RowMapping, max_attempts: int, spared: Collection[str]
    ) -> Job:
        """One job whose runner vanished. A first loss may be a node's fault: it goes on at once; then it waits longer each time."""
        if row["stop_requested"]:
            return move(connection, row, self._now(), STOPPED)
        overtime = job_of(row).overtime(self._now())
        if overtime is not None:
            sentence = "its time was up when its runner vanished; resume it to go on, or submit it with more time"
            return move(connection, row, self._now(), FAILED, reason=overtime, message=sentence)
        if row["spec"].get("pool") in spared:
            sentence = "the cluster that it ran on went away; it goes on from what is finished when that is back"
            return self._lose(
                connection, row, MOST_LAUNCHES, LAUNCH, sentence, not_before=self._now()
            )
        before = row["losses"] - _never_began(connection, row)
        sentence = f"its runner vanished {before + 1} times; see the log of the job, then resume it"
        pause = min(FIRST_BACKOFF * 2 ** (before - 1), LONGEST_BACKOFF) if before else 0.0
        reason = "LOST" if row["advanced"] else "POISON"
        return self._lose(
            connection, row, max_attempts, reason, sentence, not_before=self._now() + pause
        )

    def _lose(
        self,
        connection: Connection,
        row: sa.RowMapping,
        max_attempts: int,
        reason: str,
        message: str,
        **values: Any,
    ) -> Job:
        """Count a loss: FAILED when there were too many, STOPPED when that was wished, PENDING otherwise."""
        losses = row["losses"] + 1
        if row["stop_requested"]:
            return move(connection, row, self._now(), STOPPED)
        never_began = _never_began(connection, row)
        same = never_began if reason == LAUNCH else row["losses"] - never_began
        if same + 1 >= (row["max_attempts"] or max_attempts):
            return move(
                connection, row, self._now(), FAILED, losses=losses, reason=reason, message=message
            )
        return move(
            connection,
            row,
            self._now(),
            PENDING,
            losses=losses,
            reason=reason,
            message=message,
            **values,
        )


def _is_full(connection: Connection, cap: int | None) -> bool:
    """Whether as many jobs run as may."""
    if cap is None:
        return False
    return (
        int(
            connection.execute(
                sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.status == RUNNING)
            ).scalar_one()
        )
        >= cap
    )


def _never_began(connection: Connection, row: sa.RowMapping) -> int:
    """How many of a job's losses, since submit or resume, were launches that failed, or clusters: as its history tells."""
    if not row["losses"]:
        return 0
    moves = (
        sa.select(EVENTS.c.data)
        .where(EVENTS.c.job_id == row["id"], EVENTS.c.kind == "status")
        .order_by(EVENTS.c.seq.desc())
    )
    since = takewhile(
        lambda move: move["status"] not in TERMINAL, connection.execute(moves).scalars()
    )
    never_began = sum((move["status"], move.get("reason")) == (PENDING, LAUNCH) for move in since)
    return min(int(row["losses"]), never_began)
