"""The tables of the store as they are now, for SQLite and PostgreSQL.

A change after a release needs a step in `migrations.py`. `seq` gives the order of rows, because
clocks jump and counters do not.
Leases have no date either: the holder increases `beats`, and an observer that sees the same number
for `lease_seconds` of its own monotonic clock can treat the lease as expired.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

METADATA: Final = MetaData()
DOCUMENT: Final = sa.JSON(none_as_null=True)
# SQLite increments only columns of type INTEGER
SERIAL: Final = sa.BigInteger().with_variant(Integer(), "sqlite")

# Never reuse the number of a deleted job: page tokens must stay valid.
JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
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
    Column("lease_seconds", Float),  # limit on the runner's silence; only while RUNNING
    Column("not_before", Float, nullable=False),  # Unix seconds; backoff after a failed launch
    # attempts that vanished or could not be launched, since submit or resume
    Column("losses", Integer, nullable=False),
    Column("advanced", Boolean, nullable=False),  # some work was reported since submit or resume
    Column("events", Integer, nullable=False),  # seq of the newest event
    Column("created", Text, nullable=False),
    Column("started", Text),
    Column("finished", Text),
    # see `xcray.jobs.job.KINDS`
    Column("kind", Text, nullable=False, server_default="train"),
    Column("key_id", Text),  # the key that submitted it
    Column("beats", Integer, nullable=False, server_default="0"),  # heartbeats of all attempts
    # running time allowed over all attempts since submit or resume
    Column("timeout_seconds", Float),
    # running time used, as counted by its runners
    Column("ran_seconds", Float, nullable=False, server_default="0"),
    Column("expires", Float),  # Unix seconds by which it must have ended
    # losses after which it fails; null: the caller of `expire_jobs` decides
    Column("max_attempts", Integer),
    Column("model", Text),  # the model that it trains or predicts with, for filters
    Column("dataset_id", Text),
    UniqueConstraint("tenant", "idempotency_key"),
    Index("jobs_queue", "status", "priority", "tenant", "seq"),
    Index("jobs_tenant_status", "tenant", "status", "seq"),
    # Covers all filters of a list, so that no filter reads rows that are not shown.
    Index(
        "jobs_list",
        "tenant",
        "seq",
        "status",
        "kind",
        "priority",
        "created",
        "name",
        "model",
        "dataset_id",
    ),
    Index(
        "jobs_expires",
        "status",
        "expires",
        sqlite_where=sa.text("expires IS NOT NULL"),
        postgresql_where=sa.text("expires IS NOT NULL"),
    ),
    Index(
        "jobs_ended",
        "finished",
        sqlite_where=sa.text("finished IS NOT NULL"),
        postgresql_where=sa.text("finished IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
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
    Column("idempotency_key", Text),
    Column("digest", Text),  # of the request that created it; only with a key
    Column("version", Integer, nullable=False, server_default="1"),  # counts changes, for ETags
    Index("datasets_tenant", "tenant", "seq"),
    Index("datasets_key", "tenant", "idempotency_key", unique=True),
    sqlite_autoincrement=True,
)

# corrections of answers; `seq` is never reused, because a data set records the last one it has
FEEDBACK: Final = Table(
    "feedback",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("version", Integer, nullable=False),  # that was corrected
    Column("content", DOCUMENT, nullable=False),  # instance, right and wrong labels
    Column("key_id", Text),  # the key that sent it
    Column("created", Text, nullable=False),
    UniqueConstraint("tenant", "model", "id"),
    Index("feedback_model", "tenant", "model", "seq"),
    sqlite_autoincrement=True,
)

KEYS: Final = Table(
    "keys",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scopes", DOCUMENT, nullable=False),  # a list of words
    # SHA-256 of the secret, hexadecimal; the secret itself is not stored
    Column("digest", Text, nullable=False, unique=True),
    Column("created", Text, nullable=False),
    Column("expires", Float),  # Unix seconds
    Column("revoked", Text),
    Column("last_used", Text),
    Column("limits", DOCUMENT, nullable=False),
    sqlite_autoincrement=True,
)

AUDIT: Final = Table(
    "audit",
    METADATA,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("time", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", DOCUMENT, nullable=False),
    Column("request_id", Text),
    Index("audit_tenant", "tenant", "seq"),
    sqlite_autoincrement=True,
)

DUTIES: Final = Table(
    "duties",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("owner", Text),  # null: no leader
    Column("beats", Integer, nullable=False),
    Column("term", Integer, nullable=False),  # increases with each new owner; a fencing token
    Column("lease_seconds", Float, nullable=False),
)

COUNTERS: Final = Table(
    "counters",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("labels", Text, primary_key=True),  # canonical JSON of an object
    Column("value", Float, nullable=False),
)

TURNS: Final = Table(
    "turns",
    METADATA,
    Column("tenant", Text, primary_key=True),
    # Number of the tenant's newest claim among all. The lowest is served next.
    Column("turn", SERIAL, nullable=False),
)

STORE_SCHEMA: Final = Table(  # one row
    "store_schema",
    METADATA,
    Column("revision", Integer, nullable=False),
    # the oldest program that can use the store as it is now
    Column("oldest", Integer, nullable=False),
)
