"""The tables of the store and their upgrades. SQLite and PostgreSQL read the same definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, Connection, Float, Index, Integer, MetaData, Table, Text, UniqueConstraint

from xcray.errors import Conflict

METADATA: Final = MetaData()
DOCUMENT: Final = sa.JSON(none_as_null=True)
SERIAL: Final = sa.BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only in a column of type INTEGER

VERSIONS: Final = Table("schema_version", METADATA, Column("version", Integer, nullable=False))

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),  # order of submission: clocks jump, counters do not
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("spec", DOCUMENT, nullable=False),
    Column("digest", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("status", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("reason", Text),
    Column("message", Text),
    Column("attempt", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("progress", DOCUMENT, nullable=False),
    Column("result", DOCUMENT),
    Column("stop_requested", Boolean, nullable=False),
    Column("owner", Text),
    Column("lease_until", Float),  # Unix seconds; only while RUNNING
    Column("not_before", Float, nullable=False),  # Unix seconds; backoff after a failed launch
    Column("losses", Integer, nullable=False),  # attempts that vanished or could not be launched, since submit or resume
    Column("advanced", Boolean, nullable=False),  # some work was reported since submit or resume
    Column("events", Integer, nullable=False),  # seq of the newest event
    Column("created", Text, nullable=False),
    Column("started", Text),
    Column("finished", Text),
    Column("kind", Text, nullable=False, server_default="train"),  # what it does: see `xcray.jobs.job.KINDS`
    UniqueConstraint("tenant", "idempotency_key"),
    Index("jobs_queue", "status", sa.desc("priority"), "seq"),
    Index("jobs_tenant", "tenant", "seq"),
    Index("jobs_tenant_status", "tenant", "status", "seq"),
    sqlite_autoincrement=True,  # never reuse the number of a deleted job: page tokens stay right
)

EVENTS: Final = Table(
    "events",
    METADATA,
    Column("job_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", DOCUMENT, nullable=False),
)

DATASETS: Final = Table(
    "datasets",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("stats", DOCUMENT, nullable=False),
    Column("created", Text, nullable=False),
    Index("datasets_tenant", "tenant", "seq"),
    sqlite_autoincrement=True,
)


def _first(connection: Connection) -> None:
    """Version 1: jobs, events, datasets."""
    METADATA.create_all(connection)


def _kinds(connection: Connection) -> None:
    """Version 2: jobs have a kind; those that were there are trainings. A store made just now has the column already."""
    if "kind" not in {column["name"] for column in sa.inspect(connection).get_columns("jobs")}:
        connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'train'")


# UPGRADES[i] lifts version i to i + 1. Published steps never change; later steps name their columns, not the tables above.
UPGRADES: Final[tuple[Callable[[Connection], None], ...]] = (_first, _kinds)
VERSION: Final = len(UPGRADES)


def upgrade(connection: Connection) -> None:
    """Bring the schema to VERSION within the caller's transaction. Raises Conflict when the file is newer than this program."""
    VERSIONS.create(connection, checkfirst=True)
    found = connection.execute(sa.select(VERSIONS.c.version)).scalar()
    version = found or 0
    if version > VERSION:
        raise Conflict(
            f"the store has schema version {version}, this xcray knows {VERSION}: use a newer xcray", code="SCHEMA_NEWER"
        )
    for step in UPGRADES[version:]:
        step(connection)
    if found is None:
        connection.execute(sa.insert(VERSIONS).values(version=VERSION))
    elif version < VERSION:
        connection.execute(sa.update(VERSIONS).values(version=VERSION))
