"""Upgrade of a store to this program's schema while other programs use it.

Each step is one transaction under a lock, so a crash leaves the store between two complete steps.
Any number of processes can open an old store at the same moment: one upgrades it, the others find
it upgraded. A running program that a step cuts off no longer uses the store (`SchemaGuard`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Unavailable
from xcray.jobs.database.compatibility import check_compatibility, unsupported
from xcray.jobs.database.db_errors import LockTimeout
from xcray.jobs.database.engine import POSTGRESQL, SQLITE, Database
from xcray.jobs.database.migrations import FIRST, HEAD, STEPS, MigrationStep
from xcray.jobs.database.pg_timeouts import extended_timeout
from xcray.jobs.database.schema import METADATA, STORE_SCHEMA

LOG: Final = logging.getLogger(__name__)
# The key of PostgreSQL's advisory lock. SQLite's writers run one at a time anyway.
ADVISORY_LOCK_ID: Final = 0x78637261
# Limit for a step's wait on a table lock. All later transactions wait as long.
LOCK_TIMEOUT_SECONDS: Final = 1.0
STEP_TIMEOUT_SECONDS: Final = 3600.0  # limit for a statement of a step
RETRY_SECONDS: Final = 180.0  # for which a step is retried while others hold locks that it needs
RETRY_PAUSE_SECONDS: Final = (0.2, 2.0)  # between two attempts


def upgrade_database(
    database: Database,
    *,
    may_upgrade: bool = True,
    steps: Sequence[MigrationStep] = STEPS,
) -> int | None:
    """Create the tables of an empty store, or upgrade an older one; return its revision before.

    Returns None for an empty database.

    may_upgrade: whether anything can be changed. steps: all steps of the program.

    Raises Conflict: SCHEMA_NEWER if the store supports only newer programs, SCHEMA_OLDER if it
    needs an upgrade that is not allowed. Raises Unavailable if others hold its
    tables for RETRY_SECONDS.
    """
    head = steps[-1].revision if steps else FIRST
    with database.read() as connection:
        compatibility = check_compatibility(connection, head)
    revision = compatibility.revision
    if compatibility.supports(head):
        return revision
    if not may_upgrade:
        raise unsupported(compatibility, head)
    if revision is None:
        oldest = max((step.oldest for step in steps), default=FIRST)
        _retry_while_locked(database, partial(_create_tables, database, head, oldest))
        return None
    for step in steps:
        if step.revision > revision:
            _retry_while_locked(database, partial(_apply_step, database, step, head))
            LOG.info("the store is at revision %s", step.revision)
    return revision


def inspect_store(url: str) -> dict[str, Any]:
    """Describe the store at a URL without changing it.

    Returns `store`: its kind; `revision`: None if it is empty; `oldest`: the oldest program that it
    supports, None if not recorded; `needed`: the revision of this program; `ready`: whether this
    program can use it. Raises Unavailable if the database cannot be reached, Conflict, code
    SCHEMA_NEWER, if it supports only newer programs.
    """
    database = Database(url)
    try:
        with database.read() as connection:
            compatibility = check_compatibility(connection)
    finally:
        database.close()
    return {
        "store": database.kind,
        "revision": compatibility.revision,
        "oldest": compatibility.oldest,
        "needed": HEAD,
        "ready": compatibility.supports(HEAD),
    }


def upgrade_store(url: str) -> dict[str, Any]:
    """Upgrade the store at a URL and return its description with `before`, the old revision."""
    database = Database(url)
    try:
        before = upgrade_database(database)
    finally:
        database.close()
    return {**inspect_store(url), "before": before}


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


def _create_tables(database: Database, head: int, oldest: int) -> None:
    """Create all tables, unless another process already did."""
    with _locked_transaction(database) as connection:
        if check_compatibility(connection, head).revision is None:
            METADATA.create_all(connection, checkfirst=False)
            connection.execute(sa.insert(STORE_SCHEMA).values(revision=head, oldest=oldest))


def _apply_step(database: Database, step: MigrationStep, head: int) -> None:
    """Apply a step, unless another process already did."""
    with _locked_transaction(database) as connection:
        compatibility = check_compatibility(connection, head)
        if compatibility.revision is not None and compatibility.revision >= step.revision:
            return
        for statement in step.statements:
            connection.exec_driver_sql(statement)
        oldest = max(step.oldest, compatibility.oldest or FIRST)
        connection.execute(sa.update(STORE_SCHEMA).values(revision=step.revision, oldest=oldest))


@contextmanager
def _locked_transaction(database: Database) -> Iterator[Connection]:
    """Open a write transaction under the upgrade lock.

    Raises LockTimeout if another process upgrades, or holds a table for LOCK_TIMEOUT_SECONDS.
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
