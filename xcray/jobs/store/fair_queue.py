"""The fair-share queue: which pending job a free runner takes.

The highest priority comes first. Within it, the tenant with the fewest running jobs, among equals
the one whose last turn is longest ago, and of that tenant the oldest job. No step reads more rows
than there are tenants with pending jobs, whatever the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from xcray.jobs.database.engine import POSTGRESQL, first_row
from xcray.jobs.database.schema import JOBS, TURNS
from xcray.jobs.job import KINDS
from xcray.jobs.states import PENDING, RUNNING

# seconds before the second attempt; doubles up to MAX_BACKOFF_SECONDS
FIRST_BACKOFF_SECONDS: Final = 5.0
MAX_BACKOFF_SECONDS: Final = 300.0

Quota: TypeAlias = Callable[[str], int | None]  # tenant -> limit of running jobs, or None


def next_job(
    connection: Connection, now: float, quota: Quota | None, excluded_pools: Collection[str] = ()
) -> sa.RowMapping | None:
    """Lock and return the row of the job to run next, or None.

    excluded_pools: pools whose jobs are skipped.
    """
    running = _running_by_tenant(connection)
    for priority in _pending_priorities(connection):
        tenants = [
            name
            for name in _pending_tenants(connection, priority)
            if _is_below_quota(name, running, quota)
        ]
        turns = _last_turns(connection, tenants)
        for tenant in sorted(
            tenants, key=lambda name: (running.get(name, 0), turns.get(name, 0), name)
        ):
            row = _oldest_job(connection, priority, tenant, now, excluded_pools)
            if row is not None:
                return row
    return None


def record_turn(connection: Connection, tenant: str) -> None:
    """Record that a tenant was just served."""
    newest = sa.select(sa.func.coalesce(sa.func.max(TURNS.c.turn), 0) + 1).scalar_subquery()
    insert: Any = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    row = insert(TURNS).values(tenant=tenant, turn=newest)
    connection.execute(
        row.on_conflict_do_update(index_elements=["tenant"], set_={"turn": row.excluded.turn})
    )


def has_pending(connection: Connection) -> bool:
    """Return whether any job is PENDING that this program can run."""
    mine = (JOBS.c.status == PENDING, JOBS.c.kind.in_(KINDS))
    return connection.execute(sa.select(JOBS.c.seq).where(*mine).limit(1)).first() is not None


def _running_by_tenant(connection: Connection) -> dict[str, int]:
    """Return the number of running jobs per tenant."""
    query = (
        sa.select(JOBS.c.tenant, sa.func.count())
        .where(JOBS.c.status == RUNNING)
        .group_by(JOBS.c.tenant)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _is_below_quota(tenant: str, running: Mapping[str, int], quota: Quota | None) -> bool:
    """Return whether one more job of a tenant can run."""
    limit = None if quota is None else quota(tenant)
    return limit is None or running.get(tenant, 0) < limit


def _pending_priorities(connection: Connection) -> Iterator[int]:
    """Yield the priorities of pending jobs, highest first, with one index lookup each."""
    highest = sa.select(sa.func.max(JOBS.c.priority)).where(JOBS.c.status == PENDING)
    priority = connection.execute(highest).scalar()
    while priority is not None:
        yield priority
        priority = connection.execute(highest.where(JOBS.c.priority < priority)).scalar()


def _pending_tenants(connection: Connection, priority: int) -> list[str]:
    """Return the tenants with pending jobs of a priority, with one index lookup each."""
    return list(connection.execute(_TENANTS_QUERY, {"priority": priority}).scalars())


def _tenants_query() -> sa.Select[Any]:
    """Return the query for that: the first tenant, then from each tenant the next one.

    Databases do not skip through an index by themselves to find its distinct values.
    """
    waiting = (JOBS.c.status == PENDING, JOBS.c.priority == sa.bindparam("priority"))
    first = sa.select(sa.func.min(JOBS.c.tenant)).where(*waiting).scalar_subquery()
    tenants = sa.select(first.label("tenant")).cte("walk", recursive=True)
    following = (
        sa.select(sa.func.min(JOBS.c.tenant))
        .where(*waiting, JOBS.c.tenant > tenants.c.tenant)
        .correlate(tenants)
        .scalar_subquery()
    )
    tenants = tenants.union_all(sa.select(following).where(tenants.c.tenant.is_not(None)))
    return sa.select(tenants.c.tenant).where(tenants.c.tenant.is_not(None))


_TENANTS_QUERY: Final = _tenants_query()


def _last_turns(connection: Connection, tenants: list[str]) -> dict[str, int]:
    """Return the last turn per tenant. A single tenant needs none."""
    if len(tenants) < 2:
        return {}
    return {row[0]: row[1] for row in connection.execute(sa.select(TURNS.c.tenant, TURNS.c.turn))}


def _oldest_job(
    connection: Connection, priority: int, tenant: str, now: float, excluded_pools: Collection[str]
) -> sa.RowMapping | None:
    """Lock and return the oldest job of a tenant and priority that can run now, or None.

    Jobs of unknown kinds wait for a newer xcray, which can run next to this one. A pause that ends
    later than the longest backoff was written by a clock that has been set back since.
    """
    mine = (
        JOBS.c.status == PENDING,
        JOBS.c.priority == priority,
        JOBS.c.tenant == tenant,
        JOBS.c.kind.in_(KINDS),
    )
    due = sa.or_(JOBS.c.not_before <= now, JOBS.c.not_before > now + MAX_BACKOFF_SECONDS)
    alive = sa.or_(JOBS.c.expires.is_(None), JOBS.c.expires > now)
    others = (
        (sa.func.coalesce(JOBS.c.spec["pool"].as_string(), "").not_in(excluded_pools),)
        if excluded_pools
        else ()
    )
    query = sa.select(JOBS).where(*mine, due, alive, *others).order_by(JOBS.c.seq).limit(1)
    return first_row(connection, query.with_for_update(skip_locked=True))
