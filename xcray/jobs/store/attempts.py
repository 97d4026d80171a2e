"""The part of the store for runners: claim, heartbeat, append, finish, release, expire.

Each write names its attempt. It is rejected with Fenced if another attempt, or none, is running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from itertools import takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict
from xcray.jobs.database.engine import Database, Table, retry_once
from xcray.jobs.database.leases import LeaseWatcher
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import EXPIRED, Job, format_utc
from xcray.jobs.states import FAILED, PENDING, RUNNING, STARTING, STOPPED, TERMINAL
from xcray.jobs.store.counters import Increments, add_increments
from xcray.jobs.store.fair_queue import (
    FIRST_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    Quota,
    has_pending,
    next_job,
    record_turn,
)
from xcray.jobs.store.transitions import (
    JOB_COLUMNS,
    append_event,
    owned_row,
    to_job,
    transition,
    update_row,
)

CLAIM_LOCK = "claim"  # name of the advisory lock for claims
LAUNCH = "LAUNCH"  # reason of attempts that did not start or were lost with their cluster
DISK_FULL = "DISK_FULL"  # reason of attempts that ended because the disk was full
# Reasons that are not faults of the job. Such losses are counted apart from all others.
EXTERNAL_REASONS = (LAUNCH, DISK_FULL)
MAX_LAUNCH_ATTEMPTS = 20  # attempts of one job that can be lost for these reasons


class AttemptTable(Table):
    """Attempts at running jobs."""

    def __init__(
        self, database: Database, now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        """now: see `Table`. monotonic: the clock for leases, in seconds."""
        super().__init__(database, now)
        self._leases = LeaseWatcher(monotonic)

    @retry_once
    def claim(
        self,
        owner: str,
        *,
        lease_seconds: float,
        max_running: int | None = None,
        quota: Quota | None = None,
        excluded_pools: Collection[str] = (),
    ) -> Job | None:
        """Take the next job (see `xcray.jobs.store.fair_queue`), or return None.

        The job becomes RUNNING with attempt + 1 and a lease for `owner`.

        max_running: return None while this many jobs are RUNNING in total, counted in the same
        transaction. quota: the same limit per tenant. excluded_pools: pools whose jobs are skipped,
        for example while their cluster is unavailable. They keep their place in the queue.
        """
        # Reading needs no lock, and most polls find nothing.
        with self._database.read() as connection:
            if not has_pending(connection) or _is_full(connection, max_running):
                return None
        with self._database.write() as connection:
            self._database.advisory_lock(connection, CLAIM_LOCK)
            row = (
                None
                if _is_full(connection, max_running)
                else next_job(connection, self._now(), quota, excluded_pools)
            )
            if row is None:
                return None
            record_turn(connection, row["tenant"])
            values: dict[str, Any] = {
                "attempt": row["attempt"] + 1,
                "owner": owner,
                "lease_seconds": lease_seconds,
            }
            values |= {
                "phase": STARTING,
                "progress": {},
                "reason": None,  # the reason of an earlier attempt stays in its event
                "message": None,
                "started": row["started"] or max(format_utc(self._now()), row["created"]),
            }
            return transition(connection, row, self._now(), RUNNING, **values)

    @retry_once
    def heartbeat(
        self,
        job_id: str,
        attempt: int,
        *,
        lease_seconds: float,
        ran_seconds: float = 0.0,
    ) -> bool:
        """Renew the lease; return True if the job must stop.

        It must stop if a stop was requested or its time is up (see `Job.overtime_reason`).

        ran_seconds: running time since the last successful heartbeat, by the runner's monotonic
        clock.

        Raises Fenced if `attempt` is not the running one.
        """
        with self._database.write() as connection:
            row = owned_row(connection, job_id, attempt)
            total_seconds = row["ran_seconds"] + ran_seconds
            update_row(
                connection,
                row,
                beats=row["beats"] + 1,
                lease_seconds=lease_seconds,
                ran_seconds=total_seconds,
            )
            return (
                bool(row["stop_requested"])
                or to_job({**row, "ran_seconds": total_seconds}).overtime_reason(self._now())
                is not None
            )

    @retry_once
    def append_event(
        self,
        job_id: str,
        attempt: int,
        kind: str,
        data: dict[str, Any],
        *,
        increments: Increments | None = None,
    ) -> None:
        """Append an event. Raises Fenced.

        Kinds `phase` and `progress` also set the job's phase and progress. Long series are thinned
        while the job runs, see `xcray.jobs.store.event_retention`. increments: what to add to
        counters in the same transaction.
        """
        with self._database.write() as connection:
            row = owned_row(connection, job_id, attempt)
            values: dict[str, Any] = {}
            if kind in ("phase", "progress"):
                values["phase"] = data.get("phase", row["phase"])
            if kind == "progress":
                values |= {"progress": data, "advanced": row["advanced"] or bool(data.get("done"))}
            append_event(connection, row, self._now(), kind, data, **values)
            add_increments(connection, increments)

    @retry_once
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
        """End a job as STOPPED, SUCCEEDED or FAILED.

        Raises Fenced if `attempt` is not the running one; its result is dropped.
        """
        if status not in TERMINAL:
            raise Conflict(
                f"a job can't finish as {status}: use one of {sorted(TERMINAL)}", code="STATE"
            )
        with self._database.write() as connection:
            row = owned_row(connection, job_id, attempt)
            return transition(
                connection, row, self._now(), status, reason=reason, message=message, result=result
            )

    @retry_once
    def release(self, job_id: str, attempt: int) -> Job:
        """Release a running job, to be claimed again at once. Raises Fenced.

        The job becomes STOPPED if a stop was requested.
        """
        with self._database.write() as connection:
            row = owned_row(connection, job_id, attempt)
            return transition(
                connection, row, self._now(), STOPPED if row["stop_requested"] else PENDING
            )

    @retry_once
    def retry_later(
        self, job_id: str, attempt: int, *, reason: str, message: str, max_attempts: int = 3
    ) -> Job:
        """Release a job that needs something unavailable, to be retried after a pause.

        The pause is FIRST_BACKOFF_SECONDS and doubles each time. The job becomes FAILED after
        `max_attempts`; the job's own `max_attempts` takes precedence. Losses for EXTERNAL_REASONS
        are counted apart from others, so an unavailable Ray or a full disk costs no attempt. Raises
        Fenced.
        """
        with self._database.write() as connection:
            row, now = owned_row(connection, job_id, attempt), self._now()
            pause = min(FIRST_BACKOFF_SECONDS * 2 ** row["losses"], MAX_BACKOFF_SECONDS)
            return self._record_loss(
                connection, row, max_attempts, reason, message, not_before=now + pause
            )

    @retry_once
    def expire(self, *, max_attempts: int = 3, unstable_pools: Collection[str] = ()) -> list[Job]:
        """Expire lost leases, and end pending jobs whose time is up; return the changed jobs.

        Call it often: a lease is lost if two calls, further apart than its length, saw no heartbeat
        in between. The returned jobs are PENDING again, STOPPED if a stop was requested, or FAILED.
        Reasons: TIMEOUT or EXPIRED if their time was up; after `max_attempts` losses (or the job's
        own) CRASH_LOOP if no attempt made progress, else LOST.

        unstable_pools: pools whose cluster is or recently was unavailable. Attempts lost with it
        count as failed launches, of which MAX_LAUNCH_ATTEMPTS are allowed.
        """
        columns = ("id", "attempt", "beats", "lease_seconds")
        # Reading needs no lock, and most polls find nothing.
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(*(JOBS.c[name] for name in columns)).where(JOBS.c.status == RUNNING)
            ).all()
            lost = self._leases.expired_leases(
                {row.id: ((row.attempt, row.beats), row.lease_seconds or 0.0) for row in rows}
            )
            observed = {row.id: (row.attempt, row.beats) for row in rows if row.id in lost}
            overdue = (
                connection.execute(sa.select(JOBS.c.id).where(*self._is_pending_expired()))
                .scalars()
                .all()
            )
        if not observed and not overdue:
            return []
        with self._database.write() as connection:
            mine = (JOBS.c.id.in_([*observed, *overdue]), JOBS.c.status.in_((RUNNING, PENDING)))
            candidates = (
                connection.execute(
                    sa.select(JOBS).where(*mine).order_by(JOBS.c.seq).with_for_update()
                )
                .mappings()
                .all()
            )
            pending = [
                row for row in candidates if row["status"] == PENDING and row["id"] in overdue
            ]
            lost_attempts = [
                row
                for row in candidates
                if row["status"] == RUNNING
                and observed.get(row["id"]) == (row["attempt"], row["beats"])
            ]
            return [self._fail_expired(connection, row) for row in pending] + [
                self._handle_lost_runner(connection, row, max_attempts, unstable_pools)
                for row in lost_attempts
            ]

    @retry_once
    def mark_lost(
        self,
        job_id: str,
        attempt: int,
        *,
        max_attempts: int = 3,
        unstable_pools: Collection[str] = (),
    ) -> Job:
        """Handle one attempt as lost, because its process is known to be gone. Raises Fenced."""
        with self._database.write() as connection:
            return self._handle_lost_runner(
                connection, owned_row(connection, job_id, attempt), max_attempts, unstable_pools
            )

    @retry_once
    def get_owned(self, job_id: str, attempt: int) -> Job:
        """Return the job of a running attempt, for the process that runs it. Raises Fenced."""
        with self._database.write() as connection:
            return to_job(owned_row(connection, job_id, attempt))

    @retry_once
    def list_running(self) -> list[Job]:
        """Return the RUNNING jobs of all tenants, oldest first."""
        query = sa.select(*JOB_COLUMNS).where(JOBS.c.status == RUNNING).order_by(JOBS.c.seq)
        with self._database.read() as connection:
            return [to_job(row) for row in connection.execute(query).mappings()]

    def queue_times(self, job_id: str) -> tuple[float, float]:
        """Return the Unix seconds at which a RUNNING job was last queued and claimed.

        Returns the same time twice if its events are missing.
        """
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

    def _is_pending_expired(self) -> tuple[sa.ColumnElement[bool], ...]:
        """Return the conditions for pending jobs that must have ended by now."""
        return JOBS.c.status == PENDING, JOBS.c.expires.is_not(None), JOBS.c.expires <= self._now()

    def _fail_expired(self, connection: Connection, row: sa.RowMapping) -> Job:
        """Fail one job that was not started in time."""
        sentence = (
            "it expired in the queue; submit it again with a later time to end,"
            " or with a higher priority"
        )
        return transition(connection, row, self._now(), FAILED, reason=EXPIRED, message=sentence)

    def _handle_lost_runner(
        self,
        connection: Connection,
        row: sa.RowMapping,
        max_attempts: int,
        unstable_pools: Collection[str],
    ) -> Job:
        """Handle one job whose runner vanished.

        The first loss can be a node's fault, so the job continues at once. Later pauses grow.
        """
        if row["stop_requested"]:
            return transition(connection, row, self._now(), STOPPED)
        overtime = to_job(row).overtime_reason(self._now())
        if overtime is not None:
            sentence = (
                "its time was up when its runner vanished;"
                " resume it to continue, or submit it with more time"
            )
            return transition(
                connection, row, self._now(), FAILED, reason=overtime, message=sentence
            )
        if row["spec"].get("pool") in unstable_pools:
            sentence = (
                "its cluster became unavailable;"
                " it continues from its finished work when the cluster is back"
            )
            return self._record_loss(
                connection, row, MAX_LAUNCH_ATTEMPTS, LAUNCH, sentence, not_before=self._now()
            )
        before = row["losses"] - _count_external_losses(connection, row)
        sentence = f"its runner vanished {before + 1} times; see the log of the job, then resume it"
        pause = (
            min(FIRST_BACKOFF_SECONDS * 2 ** (before - 1), MAX_BACKOFF_SECONDS) if before else 0.0
        )
        reason = "LOST" if row["advanced"] else "CRASH_LOOP"
        return self._record_loss(
            connection, row, max_attempts, reason, sentence, not_before=self._now() + pause
        )

    def _record_loss(
        self,
        connection: Connection,
        row: sa.RowMapping,
        max_attempts: int,
        reason: str,
        message: str,
        **values: Any,
    ) -> Job:
        """Count a loss: FAILED after too many, STOPPED if requested, else PENDING."""
        losses = row["losses"] + 1
        if row["stop_requested"]:
            return transition(connection, row, self._now(), STOPPED)
        external = _count_external_losses(connection, row)
        same_kind = external if reason in EXTERNAL_REASONS else row["losses"] - external
        if same_kind + 1 >= (row["max_attempts"] or max_attempts):
            return transition(
                connection, row, self._now(), FAILED, losses=losses, reason=reason, message=message
            )
        return transition(
            connection,
            row,
            self._now(),
            PENDING,
            losses=losses,
            reason=reason,
            message=message,
            **values,
        )


def _is_full(connection: Connection, max_running: int | None) -> bool:
    """Return whether `max_running` jobs are running."""
    if max_running is None:
        return False
    return (
        int(
            connection.execute(
                sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.status == RUNNING)
            ).scalar_one()
        )
        >= max_running
    )


def _count_external_losses(connection: Connection, row: sa.RowMapping) -> int:
    """Return how many of a job's losses since submit or resume had one of EXTERNAL_REASONS.

    The events of the job are the source.
    """
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
    moves_out = [(move["status"], move.get("reason")) for move in since]
    external = sum(moves_out.count((PENDING, reason)) for reason in EXTERNAL_REASONS)
    return min(int(row["losses"]), external)
