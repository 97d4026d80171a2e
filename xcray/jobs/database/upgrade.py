"""Bringing a store to the schema of this program, beside those who use it: one step, one transaction, under a lock.

A crash leaves the store between two steps, of which each is whole. Any number of processes may open an old store at the same
moment: one upgrades, the others find it done. While an older program is at work that a step would cut off, the upgrade is refused
before it has changed anything.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Unavailable
from xcray.jobs.database.clients import Program, forget, noted
from xcray.jobs.database.compatibility import OLDER, Found, checked, too_old
from xcray.jobs.database.db_errors import Locked
from xcray.jobs.database.engine import POSTGRESQL, SQLITE, Database, parse_url
from xcray.jobs.database.pg_timeouts import unhurried
from xcray.jobs.database.schema import HEAD, OLDEST, PROGRAMS
from xcray.jobs.store.leases import Watch

LOG: Final = logging.getLogger(__name__)
LOCK: Final = (
    0x78637261  # of PostgreSQL's advisory locks; SQLite's writers wait for each other anyway
)
HOLD_SECONDS: Final = 1.0  # for which a step waits for a table: all who come after it wait as long
STEP_SECONDS: Final = 3600.0  # for which a statement of a step may take
PATIENCE_SECONDS: Final = 180.0  # for which a step is tried again while others hold what it needs
PAUSE_SECONDS: Final = (0.2, 2.0)  # between two tries
LOOK_SECONDS: Final = 0.5  # between two looks whether a program is at work


class Steps(NamedTuple):
    """What leads to the schema of a program: the folder of its steps, and the newest of them."""

    folder: Path
    head: str


class Step(NamedTuple):
    """One of them: the oldest program that may work beside what it leaves, and whether it runs in a transaction."""

    revision: str
    oldest: str
    in_transaction: bool


OURS: Final = Steps(Path(__file__).parent / "migrations", HEAD)


def bring_up(
    database: Database, *, allowed: bool = True, forced: bool = False, steps: Steps | None = None
) -> str | None:
    """Upgrade a store that is older than this program; the revision that was found, None for an empty database.

    allowed: whether to change anything. forced: whether to take steps also under programs that can't work beside them. steps: OURS,
    or those of another program. Raises Conflict: SCHEMA_NEWER when another xcray has made it one that serves newer programs alone,
    SCHEMA_OLDER when it would have to be upgraded and that is not allowed, SCHEMA_IN_USE when programs are at work that would have
    to end first. Raises Unavailable when others hold its tables for PATIENCE_SECONDS.
    """
    steps = steps or OURS
    with database.read() as connection:
        found = checked(connection, steps.head)
    if found.serves(steps.head):
        return found.revision
    if not allowed:
        raise Conflict(too_old(found, steps.head), code=OLDER)
    ladder = _Ladder(steps)
    silent = (
        None if forced or found.revision is None else _silent(database, ladder.oldest(steps.head))
    )
    for step in ladder.ahead(found.revision):
        _patiently(database, partial(_take, database, ladder, step, silent))
        LOG.info("the store is at revision %s", step.revision)
    return found.revision


def look(url: str) -> dict[str, Any]:
    """What is at an address, without changing it.

    `store`: its kind; `revision`, None when it is empty; `oldest`: the oldest program that it serves, None when it does not say;
    `needed`: the revision of this program; `ready`: whether it may work with it; `programs`: how many are at work (or ended of
    late without a word), by their revision. Raises Unavailable when the database can't be reached; Conflict, code SCHEMA_NEWER.
    """
    parsed = parse_url(url)
    if (
        parsed.get_backend_name() == SQLITE and not Path(str(parsed.database)).is_file()
    ):  # looking must not make one
        return _told(SQLITE, Found(None, None), [])
    database = Database(url)
    try:
        with database.read() as connection:
            return _told(database.kind, checked(connection), _at_work(connection))
    finally:
        database.close()


def upgrade(url: str, *, forced: bool = False) -> dict[str, Any]:
    """`bring_up` the store at an address; `look` at it afterwards, and `before`, the revision that it had."""
    database = Database(url)
    try:
        before = bring_up(database, forced=forced)
    finally:
        database.close()
    return {**look(url), "before": before}


def _told(kind: str, found: Found, programs: list[Program]) -> dict[str, Any]:
    """What `look` says."""
    count = dict(sorted(Counter(each.revision for each in programs).items()))
    told = {"store": kind, "revision": found.revision, "oldest": found.oldest, "needed": HEAD}
    return {**told, "ready": found.serves(HEAD), "programs": count}


class _Ladder:
    """All steps of a program, the first one first. One that does not say whom it serves, serves none before itself."""

    def __init__(self, steps: Steps) -> None:
        from alembic.config import Config  # here: it takes 0.1 s, and most stores are up to date
        from alembic.script import ScriptDirectory

        self.head = steps.head
        self._config = Config()
        self._config.set_main_option("script_location", str(steps.folder).replace("%", "%%"))
        self._config.set_main_option("path_separator", "os")
        self._script = ScriptDirectory.from_config(self._config)
        found = [
            (each.revision, each.module) for each in self._script.walk_revisions("base", steps.head)
        ][::-1]
        self._all = [
            Step(name, getattr(module, "oldest", name), getattr(module, "in_transaction", True))
            for name, module in found
        ]

    def oldest(self, revision: str) -> str:
        """The oldest program that a store at a revision serves."""
        return max(step.oldest for step in self._all if step.revision <= revision)

    def ahead(self, found: str | None) -> list[Step]:
        """Steps that lack. Of an empty store, which nobody uses, those that end a stretch of one transaction."""
        if found is not None:
            return [step for step in self._all if step.revision > found]
        following = [step.in_transaction for step in self._all[1:]] + [False]
        return [
            step
            for step, goes_on in zip(self._all, following, strict=True)
            if not (step.in_transaction and goes_on)
        ]

    def climb(self, connection: Connection, found: str | None, goal: str) -> None:
        """Run the steps that lack up to one, within the caller's transaction, if it has one."""
        from alembic.runtime.environment import EnvironmentContext

        script = self._script
        with EnvironmentContext(
            self._config, script, fn=lambda now, _context: script._upgrade_revs(goal, now)
        ) as environment:
            environment.configure(connection=connection)
            context = environment.get_context()
            if found is not None and not context.get_current_heads():
                context.stamp(
                    script, found
                )  # a store of xcray 0.1 is taken over at the version it counted itself
            environment.run_migrations()


def _at_work(connection: Connection, before: str | None = None) -> list[Program]:
    """Programs noted in a store, also in one that has no such table yet: those older than `before`, or all."""
    if not sa.inspect(connection).has_table(PROGRAMS.name):
        return []
    return [each for each in noted(connection) if before is None or each.revision < before]


def _silent(database: Database, oldest: str) -> dict[str, int]:
    """Programs older than that which are noted and gone: name -> beats. Watches them for their leases.

    Raises Conflict, code SCHEMA_IN_USE, as soon as one beats.
    """
    watch, first = Watch(time.monotonic), dict[str, int]()
    LOG.info(
        "looking whether programs older than %s are at work, for as long as their leases", oldest
    )
    while True:
        with database.read() as connection:
            older = _at_work(connection, oldest)
        moved = [each for each in older if first.setdefault(each.id, each.beats) != each.beats]
        if moved:
            raise _in_use(moved, oldest)
        if len(watch.lost({each.id: (each.beats, each.lease_seconds) for each in older})) == len(
            older
        ):
            return {each.id: each.beats for each in older}
        time.sleep(LOOK_SECONDS)


def _in_use(older: list[Program], oldest: str) -> Conflict:
    """The refusal of a step that programs at work can't live with."""
    revisions = ", ".join(sorted({each.revision for each in older}))
    names = ", ".join(each.id.rpartition(":")[0] for each in older[:5])
    return Conflict(
        f"{len(older)} programs of revision {revisions} use the store ({names}), and this upgrade leaves one that serves programs"
        f" from {oldest} on: roll out the release between first, or end them; `xcray store upgrade --force` does it all the same",
        code="SCHEMA_IN_USE",
        oldest=oldest,
    )


def _patiently(database: Database, take: Callable[[], None]) -> None:
    """Take a step, again and again while others hold what it needs."""
    deadline = time.monotonic() + (PATIENCE_SECONDS if database.kind == POSTGRESQL else 0.0)
    while True:
        try:
            take()
            return
        except Locked as error:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "the schema can't be changed now: others hold the tables for long (a dump, an open transaction, another"
                    " upgrade); nothing of this step was done: run it again when they have ended",
                    code="STORE",
                ) from error
        time.sleep(random.uniform(*PAUSE_SECONDS))


def _take(database: Database, ladder: _Ladder, step: Step, silent: dict[str, int] | None) -> None:
    """Take the steps up to one, unless another process did. silent: older programs that are gone; None: none are asked for."""
    alone = _turn if step.in_transaction or database.kind == SQLITE else _session
    with alone(database) as connection:
        found = checked(connection, ladder.head)
        if found.revision is not None and found.revision >= step.revision:
            return
        if silent is not None and found.revision is not None:
            older = _at_work(connection, step.oldest)
            come = [each for each in older if silent.get(each.id) != each.beats]
            if come:
                raise _in_use(come, step.oldest)
            forget(connection, older)
        ladder.climb(connection, found.revision, step.revision)
        _note_oldest(connection, ladder.oldest(step.revision))


@contextmanager
def _turn(database: Database) -> Iterator[Connection]:
    """A write transaction in which nobody else upgrades. Raises Locked when somebody does, or holds a table for HOLD_SECONDS.

    Who waits here has no snapshot that an index made beside it would wait for: it asks, and comes again.
    """
    with database.write() as connection:
        if database.kind == SQLITE:
            yield connection
            return
        with unhurried(connection, STEP_SECONDS):
            if not connection.execute(
                sa.select(sa.func.pg_try_advisory_xact_lock(LOCK))
            ).scalar_one():
                raise Locked("another process upgrades the store", code="STORE")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(STEP_SECONDS * 1000)}")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(HOLD_SECONDS * 1000)}")
            yield connection


@contextmanager
def _session(database: Database) -> Iterator[Connection]:
    """The same outside any transaction, for PostgreSQL's statements that run for long and hold up nobody."""
    with database.outside() as connection, unhurried(connection, STEP_SECONDS):
        if not connection.execute(sa.select(sa.func.pg_try_advisory_lock(LOCK))).scalar_one():
            raise Locked("another process upgrades the store", code="STORE")
        connection.exec_driver_sql(f"SET statement_timeout = {int(STEP_SECONDS * 1000)}")
        connection.exec_driver_sql(f"SET lock_timeout = {int(STEP_SECONDS * 1000)}")
        yield connection  # the lock goes with the connection


def _note_oldest(connection: Connection, oldest: str) -> None:
    """Write down whom the store serves now; before it has the table, only those of its own revision."""
    if sa.inspect(connection).has_table(OLDEST.name):
        connection.execute(sa.delete(OLDEST))
        connection.execute(sa.insert(OLDEST).values(revision=oldest))
