"""Upgrade of a store to this program's schema while other programs use it.

Each step is one transaction under a lock, so a crash leaves the store between two complete scripts.
Any number of processes can open an old store at the same moment: one upgrades it, the others find
it upgraded. If an older program is running that a step would cut off, the upgrade is refused before
it has changed anything.
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
from xcray.jobs.database.clients import StoreClient, delete_clients, read_clients
from xcray.jobs.database.compatibility import (
    SCHEMA_OLDER,
    Compatibility,
    check_compatibility,
    older_message,
)
from xcray.jobs.database.db_errors import LockTimeout
from xcray.jobs.database.engine import POSTGRESQL, SQLITE, Database, parse_url
from xcray.jobs.database.leases import LeaseWatcher
from xcray.jobs.database.pg_timeouts import extended_timeout
from xcray.jobs.database.schema import HEAD, OLDEST_PROGRAM

LOG: Final = logging.getLogger(__name__)
# The key of PostgreSQL's advisory lock. SQLite's writers run one at a time anyway.
ADVISORY_LOCK_ID: Final = 0x78637261
# Limit for a step's wait on a table lock. All later transactions wait as long.
LOCK_TIMEOUT_SECONDS: Final = 1.0
STEP_TIMEOUT_SECONDS: Final = 3600.0  # limit for a statement of a step
RETRY_SECONDS: Final = 180.0  # for which a step is retried while others hold locks that it needs
RETRY_PAUSE_SECONDS: Final = (0.2, 2.0)  # between two attempts
POLL_SECONDS: Final = 0.5  # between two checks for active programs


class MigrationScripts(NamedTuple):
    """The migration scripts of a program: their directory and the newest revision."""

    folder: Path
    head: str


class MigrationStep(NamedTuple):
    """One step: the oldest program that can use its result, and whether it needs a transaction."""

    revision: str
    oldest: str
    in_transaction: bool


OWN_SCRIPTS: Final = MigrationScripts(Path(__file__).parent / "migrations", HEAD)


def upgrade_database(
    database: Database,
    *,
    may_upgrade: bool = True,
    force: bool = False,
    scripts: MigrationScripts | None = None,
) -> str | None:
    """Upgrade a store that is older than this program and return its previous revision.

    Returns None for an empty database.

    may_upgrade: whether anything can be changed. force: run scripts even while programs are active
    that they cut off. scripts: OWN_SCRIPTS by default.

    Raises Conflict: SCHEMA_NEWER if the store supports only newer programs, SCHEMA_OLDER if it
    needs an upgrade that is not allowed or not possible, SCHEMA_IN_USE if active programs must stop
    first. Raises Unavailable if others hold its tables for RETRY_SECONDS.
    """
    scripts = scripts or OWN_SCRIPTS
    with database.read() as connection:
        compatibility = check_compatibility(connection, scripts.head)
    if compatibility.supports(scripts.head):
        return compatibility.revision
    if not may_upgrade:
        raise Conflict(older_message(compatibility, scripts.head), code=SCHEMA_OLDER)
    ladder = _MigrationPlan(scripts)
    silent = (
        None
        if force or compatibility.revision is None
        else _wait_for_silence(database, ladder.oldest_supported(scripts.head))
    )
    for step in ladder.pending_steps(compatibility.revision):
        _retry_while_locked(database, partial(_apply_step, database, ladder, step, silent))
        LOG.info("the store is at revision %s", step.revision)
    return compatibility.revision


def inspect_store(url: str) -> dict[str, Any]:
    """Describe the store at a URL without changing it.

    Returns `store`: its kind; `revision`: None if it is empty; `oldest`: the oldest program that it
    supports, None if not recorded; `needed`: the revision of this program; `ready`: whether this
    program can use it; `programs`: how many clients are active (or ended lately without
    deregistering), by their revision. Raises Unavailable if the database cannot be reached,
    Conflict, code SCHEMA_NEWER or SCHEMA_OLDER, if no upgrade can make this program use it.
    """
    parsed = parse_url(url)
    # The check must not create a file.
    if parsed.get_backend_name() == SQLITE and not Path(str(parsed.database)).is_file():
        return _description(SQLITE, Compatibility(None, None), [])
    database = Database(url)
    try:
        with database.read() as connection:
            compatibility = check_compatibility(connection)
            programs = [] if compatibility.revision is None else read_clients(connection)
            return _description(database.kind, compatibility, programs)
    finally:
        database.close()


def upgrade_store(url: str, *, force: bool = False) -> dict[str, Any]:
    """Upgrade the store at a URL and return its description with `before`, the old revision."""
    database = Database(url)
    try:
        before = upgrade_database(database, force=force)
    finally:
        database.close()
    return {**inspect_store(url), "before": before}


def _description(
    kind: str, compatibility: Compatibility, programs: list[StoreClient]
) -> dict[str, Any]:
    """Return the description that `inspect_store` documents."""
    count = dict(sorted(Counter(each.revision for each in programs).items()))
    description = {
        "store": kind,
        "revision": compatibility.revision,
        "oldest": compatibility.oldest,
        "needed": HEAD,
    }
    return {**description, "ready": compatibility.supports(HEAD), "programs": count}


class _MigrationPlan:
    """All steps of a program, oldest first.

    A step that does not declare the oldest program it supports, supports none before itself.
    """

    def __init__(self, scripts: MigrationScripts) -> None:
        # Imported here: it takes 0.1 s, and most stores are up to date.
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        self.head = scripts.head
        self._config = Config()
        self._config.set_main_option("script_location", str(scripts.folder).replace("%", "%%"))
        self._config.set_main_option("path_separator", "os")
        self._script = ScriptDirectory.from_config(self._config)
        self._steps = [
            MigrationStep(
                each.revision,
                getattr(each.module, "oldest", each.revision),
                getattr(each.module, "in_transaction", True),
            )
            for each in self._script.walk_revisions("base", scripts.head)
        ][::-1]

    def oldest_supported(self, revision: str) -> str:
        """Return the oldest program that a store at a revision supports."""
        return max(step.oldest for step in self._steps if step.revision <= revision)

    def pending_steps(self, revision: str | None) -> list[MigrationStep]:
        """Return the missing steps."""
        return [step for step in self._steps if revision is None or step.revision > revision]

    def run_steps(self, connection: Connection, goal: str) -> None:
        """Run the missing steps up to `goal`, in the caller's transaction if there is one."""
        from alembic.runtime.environment import EnvironmentContext

        script = self._script
        with EnvironmentContext(
            self._config, script, fn=lambda now, _context: script._upgrade_revs(goal, now)
        ) as environment:
            environment.configure(connection=connection)
            environment.run_migrations()


def _older_clients(connection: Connection, oldest: str) -> list[StoreClient]:
    """Return the clients older than `oldest`."""
    return [each for each in read_clients(connection) if each.revision < oldest]


def _wait_for_silence(database: Database, oldest: str) -> dict[str, int]:
    """Wait until older clients have been silent for their leases; return name -> heartbeats.

    Raises Conflict, code SCHEMA_IN_USE, as soon as one of them sends a heartbeat.
    """
    watcher, first = LeaseWatcher(time.monotonic), dict[str, int]()
    LOG.info("waiting for the leases of programs older than %s, in case some are active", oldest)
    while True:
        with database.read() as connection:
            older = _older_clients(connection, oldest)
        moved = [each for each in older if first.setdefault(each.id, each.beats) != each.beats]
        if moved:
            raise _in_use_error(moved, oldest)
        if len(
            watcher.expired_leases({each.id: (each.beats, each.lease_seconds) for each in older})
        ) == len(older):
            return {each.id: each.beats for each in older}
        time.sleep(POLL_SECONDS)


def _in_use_error(older: list[StoreClient], oldest: str) -> Conflict:
    """Return the error for a step that active programs do not support."""
    revisions = ", ".join(sorted({each.revision for each in older}))
    names = ", ".join(each.id.rpartition(":")[0] for each in older[:5])
    return Conflict(
        f"{len(older)} programs of revision {revisions} use the store ({names}), and after this"
        f" upgrade it supports programs from {oldest} on: roll out the release between first, or"
        " stop them; `xcray store upgrade --force` upgrades anyway",
        code="SCHEMA_IN_USE",
        oldest=oldest,
    )


def _retry_while_locked(database: Database, apply: Callable[[], None]) -> None:
    """Apply a step, and retry while other transactions hold locks that it needs."""
    deadline = time.monotonic() + (RETRY_SECONDS if database.kind == POSTGRESQL else 0.0)
    while True:
        try:
            apply()
            return
        except LockTimeout as error:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "the schema can't be changed now: others hold the tables for long (a dump, an"
                    " open transaction, another upgrade); nothing of this step was done:"
                    " run it again when they have ended",
                    code="STORE",
                ) from error
        time.sleep(random.uniform(*RETRY_PAUSE_SECONDS))


def _apply_step(
    database: Database, ladder: _MigrationPlan, step: MigrationStep, silent: dict[str, int] | None
) -> None:
    """Apply all steps up to `step`, unless another process already did.

    silent: older clients that are gone, by name. None skips the check for active clients.
    """
    open_locked = (
        _locked_transaction if step.in_transaction or database.kind == SQLITE else _locked_session
    )
    with open_locked(database) as connection:
        compatibility = check_compatibility(connection, ladder.head)
        if compatibility.revision is not None and compatibility.revision >= step.revision:
            return
        if silent is not None:
            older = _older_clients(connection, step.oldest)
            active = [each for each in older if silent.get(each.id) != each.beats]
            if active:
                raise _in_use_error(active, step.oldest)
            delete_clients(connection, older)
        ladder.run_steps(connection, step.revision)
        connection.execute(sa.delete(OLDEST_PROGRAM))
        connection.execute(
            sa.insert(OLDEST_PROGRAM).values(revision=ladder.oldest_supported(step.revision))
        )


@contextmanager
def _locked_transaction(database: Database) -> Iterator[Connection]:
    """Open a write transaction under the upgrade lock.

    Raises LockTimeout if another process upgrades, or holds a table for LOCK_TIMEOUT_SECONDS. The
    lock is tried, not waited for: a waiting transaction would hold a snapshot, for which a
    concurrent index build would wait in turn.
    """
    with database.write() as connection:
        if database.kind == SQLITE:
            yield connection
            return
        with extended_timeout(connection, STEP_TIMEOUT_SECONDS):
            if not connection.execute(
                sa.select(sa.func.pg_try_advisory_xact_lock(ADVISORY_LOCK_ID))
            ).scalar_one():
                raise LockTimeout("another process upgrades the store", code="STORE")
            connection.exec_driver_sql(
                f"SET LOCAL statement_timeout = {int(STEP_TIMEOUT_SECONDS * 1000)}"
            )
            connection.exec_driver_sql(
                f"SET LOCAL lock_timeout = {int(LOCK_TIMEOUT_SECONDS * 1000)}"
            )
            yield connection


@contextmanager
def _locked_session(database: Database) -> Iterator[Connection]:
    """Hold the upgrade lock outside any transaction, for long statements of PostgreSQL."""
    with database.autocommit() as connection, extended_timeout(connection, STEP_TIMEOUT_SECONDS):
        if not connection.execute(
            sa.select(sa.func.pg_try_advisory_lock(ADVISORY_LOCK_ID))
        ).scalar_one():
            raise LockTimeout("another process upgrades the store", code="STORE")
        connection.exec_driver_sql(f"SET statement_timeout = {int(STEP_TIMEOUT_SECONDS * 1000)}")
        connection.exec_driver_sql(f"SET lock_timeout = {int(STEP_TIMEOUT_SECONDS * 1000)}")
        yield connection  # the lock ends with the connection
