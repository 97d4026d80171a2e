"""Whose turn it is: which waiting job a free runner takes.

The highest priority first; within it the tenant with the fewest running jobs, of equal ones the one that waited longest for a
turn; of that tenant the oldest job. No step reads more rows than there are tenants waiting, whatever the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from xcray.jobs.database.engine import POSTGRESQL
from xcray.jobs.database.schema import JOBS, TURNS
from xcray.jobs.job import KINDS
from xcray.jobs.states import PENDING, RUNNING

FIRST_BACKOFF: Final = 5.0  # seconds before the second try; doubles, up to LONGEST_BACKOFF
LONGEST_BACKOFF: Final = 300.0

Quota: TypeAlias = (
    Callable[[str], int | None] | Mapping[str, int | None] | None
)  # tenant -> most jobs that run, or None


def next_job(
    connection: Connection, now: float, most_running_of: Quota, but: Collection[str] = ()
) -> sa.RowMapping | None:
    """The row of the job to run next, held until the transaction ends; None when nothing may run. but: pools whose jobs wait."""
    running = _running(connection)
    for priority in _priorities(connection):
        tenants = [
            name
            for name in _tenants(connection, priority)
            if _has_room(name, running, most_running_of)
        ]
        turns = _turns(connection, tenants)
        for tenant in sorted(
            tenants, key=lambda name: (running.get(name, 0), turns.get(name, 0), name)
        ):
            row = _oldest(connection, priority, tenant, now, but)
            if row is not None:
                return row
    return None


def take_turn(connection: Connection, tenant: str) -> None:
    """Note that a tenant was just served."""
    newest = sa.select(sa.func.coalesce(sa.func.max(TURNS.c.turn), 0) + 1).scalar_subquery()
    insert: Any = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    row = insert(TURNS).values(tenant=tenant, turn=newest)
    connection.execute(
        row.on_conflict_do_update(index_elements=["tenant"], set_={"turn": row.excluded.turn})
    )


def anything_waits(connection: Connection) -> bool:
    """Whether any job is PENDING that this program knows how to run."""
    mine = (JOBS.c.status == PENDING, JOBS.c.kind.in_(KINDS))
    return connection.execute(sa.select(JOBS.c.seq).where(*mine).limit(1)).first() is not None


def _running(connection: Connection) -> dict[str, int]:
    """How many jobs of each tenant run now."""
    query = (
        sa.select(JOBS.c.tenant, sa.func.count())
        .where(JOBS.c.status == RUNNING)
        .group_by(JOBS.c.tenant)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _has_room(tenant: str, running: Mapping[str, int], most_running_of: Quota) -> bool:
    """Whether one more job of a tenant may run."""
    most = (
        most_running_of(tenant)
        if callable(most_running_of)
        else (most_running_of or {}).get(tenant)
    )
    return most is None or running.get(tenant, 0) < most


def _priorities(connection: Connection) -> Iterator[int]:
    """Priorities of waiting jobs, highest first, one look into the index each."""
    highest = sa.select(sa.func.max(JOBS.c.priority)).where(JOBS.c.status == PENDING)
    found = connection.execute(highest).scalar()
    while found is not None:
        yield found
        found = connection.execute(highest.where(JOBS.c.priority < found)).scalar()


def _tenants(connection: Connection, priority: int) -> list[str]:
    """Tenants with waiting jobs of a priority, one look into the index each."""
    return list(connection.execute(_WALK, {"priority": priority}).scalars())


def _walk() -> sa.Select[Any]:
    """The question for that: the first tenant, then for each tenant the one that follows. No database skips through an index
    by itself to find what is different in it."""
    waiting = (JOBS.c.status == PENDING, JOBS.c.priority == sa.bindparam("priority"))
    first = sa.select(sa.func.min(JOBS.c.tenant)).where(*waiting).scalar_subquery()
    walk = sa.select(first.label("tenant")).cte("walk", recursive=True)
    following = (
        sa.select(sa.func.min(JOBS.c.tenant))
        .where(*waiting, JOBS.c.tenant > walk.c.tenant)
        .correlate(walk)
        .scalar_subquery()
    )
    walk = walk.union_all(sa.select(following).where(walk.c.tenant.is_not(None)))
    return sa.select(walk.c.tenant).where(walk.c.tenant.is_not(None))


_WALK: Final = _walk()


def _turns(connection: Connection, tenants: list[str]) -> dict[str, int]:
    """When each tenant was last served. Of one tenant nobody needs to know."""
    if len(tenants) < 2:
        return {}
    return {row[0]: row[1] for row in connection.execute(sa.select(TURNS.c.tenant, TURNS.c.turn))}


def _oldest(
    connection: Connection, priority: int, tenant: str, now: float, but: Collection[str]
) -> sa.RowMapping | None:
    """The oldest job of a tenant and priority that may run now. Kinds of the future wait for who knows them: a newer xcray may be
    at work beside this one.

    A pause that ends later than the longest backoff was written by a clock that has been put back since.
    """
    mine = (
        JOBS.c.status == PENDING,
        JOBS.c.priority == priority,
        JOBS.c.tenant == tenant,
        JOBS.c.kind.in_(KINDS),
    )
    due = sa.or_(JOBS.c.not_before <= now, JOBS.c.not_before > now + LONGEST_BACKOFF)
    alive = sa.or_(JOBS.c.expires.is_(None), JOBS.c.expires > now)
    others = (sa.func.coalesce(JOBS.c.spec["pool"].as_string(), "").not_in(but),) if but else ()
    query = sa.select(JOBS).where(*mine, due, alive, *others).order_by(JOBS.c.seq).limit(1)
    return connection.execute(query.with_for_update(skip_locked=True)).mappings().first()
