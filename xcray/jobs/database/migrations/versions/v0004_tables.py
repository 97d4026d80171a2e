"""The tables of the first release. Schemas before 0004 were never released."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy import JSON, Boolean, Column, Float, Integer, Text

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None
oldest = "0004"

SERIAL = sa.BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables. `xcray.jobs.database.upgrade` writes the row of oldest_program."""
    _jobs_and_events()
    _datasets()
    _keys_and_audit()
    _duties_counters_turns()
    _programs()


def _jobs_and_events() -> None:
    """Create jobs and their events."""
    op.create_table(
        "jobs",
        Column("seq", SERIAL, primary_key=True, autoincrement=True),
        Column("id", Text, nullable=False, unique=True),
        Column("tenant", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("spec", JSON, nullable=False),
        Column("digest", Text, nullable=False),
        Column("idempotency_key", Text),
        Column("status", Text, nullable=False),
        Column("phase", Text, nullable=False),
        Column("reason", Text),
        Column("message", Text),
        Column("attempt", Integer, nullable=False),
        Column("priority", Integer, nullable=False),
        Column("progress", JSON, nullable=False),
        Column("result", JSON),
        Column("stop_requested", Boolean, nullable=False),
        Column("owner", Text),
        Column("lease_seconds", Float),
        Column("not_before", Float, nullable=False),
        Column("losses", Integer, nullable=False),
        Column("advanced", Boolean, nullable=False),
        Column("events", Integer, nullable=False),
        Column("created", Text, nullable=False),
        Column("started", Text),
        Column("finished", Text),
        Column("kind", Text, nullable=False, server_default="train"),
        Column("key_id", Text),
        Column("beats", Integer, nullable=False, server_default="0"),
        Column("timeout_seconds", Float),
        Column("ran_seconds", Float, nullable=False, server_default="0"),
        Column("expires", Float),
        Column("max_attempts", Integer),
        Column("model", Text),
        Column("dataset_id", Text),
        sa.UniqueConstraint("tenant", "idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_queue", "jobs", ["status", "priority", "tenant", "seq"])
    op.create_index("jobs_tenant_status", "jobs", ["tenant", "status", "seq"])
    filters = ["status", "kind", "priority", "created", "name", "model", "dataset_id"]
    op.create_index("jobs_list", "jobs", ["tenant", "seq", *filters])
    for name, columns in (("jobs_expires", ["status", "expires"]), ("jobs_ended", ["finished"])):
        there = sa.text(f"{columns[-1]} IS NOT NULL")
        op.create_index(name, "jobs", columns, sqlite_where=there, postgresql_where=there)
    op.create_table(
        "events",
        Column("job_id", Text, primary_key=True),
        Column("seq", Integer, primary_key=True),
        Column("time", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("data", JSON, nullable=False),
    )


def _datasets() -> None:
    """Create data sets."""
    op.create_table(
        "datasets",
        Column("seq", SERIAL, primary_key=True, autoincrement=True),
        Column("id", Text, nullable=False, unique=True),
        Column("tenant", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("path", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("stats", JSON, nullable=False),
        Column("created", Text, nullable=False),
        Column("idempotency_key", Text),
        Column("digest", Text),
        Column("version", Integer, nullable=False, server_default="1"),
        sqlite_autoincrement=True,
    )
    op.create_index("datasets_tenant", "datasets", ["tenant", "seq"])
    op.create_index("datasets_key", "datasets", ["tenant", "idempotency_key"], unique=True)


def _keys_and_audit() -> None:
    """Create API keys and the audit log."""
    op.create_table(
        "keys",
        Column("seq", SERIAL, primary_key=True, autoincrement=True),
        Column("id", Text, nullable=False, unique=True),
        Column("tenant", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("scopes", JSON, nullable=False),
        Column("digest", Text, nullable=False, unique=True),
        Column("created", Text, nullable=False),
        Column("expires", Float),
        Column("revoked", Text),
        Column("last_used", Text),
        Column("limits", JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        Column("seq", SERIAL, primary_key=True, autoincrement=True),
        Column("time", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("key_id", Text),
        Column("action", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("detail", JSON, nullable=False),
        Column("request_id", Text),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_tenant", "audit", ["tenant", "seq"])


def _duties_counters_turns() -> None:
    """Create leader leases, counters and the turns of tenants."""
    op.create_table(
        "duties",
        Column("name", Text, primary_key=True),
        Column("owner", Text),
        Column("beats", Integer, nullable=False),
        Column("term", Integer, nullable=False),
        Column("lease_seconds", Float, nullable=False),
    )
    op.create_table(
        "counters",
        Column("name", Text, primary_key=True),
        Column("labels", Text, primary_key=True),
        Column("value", Float, nullable=False),
    )
    op.create_table(
        "turns",
        Column("tenant", Text, primary_key=True),
        Column("turn", SERIAL, nullable=False),
    )


def _programs() -> None:
    """Create clients of the store, and the oldest program that can use it."""
    op.create_table(
        "programs",
        Column("id", Text, primary_key=True),
        Column("revision", Text, nullable=False),
        Column("beats", Integer, nullable=False),
        Column("lease_seconds", Float, nullable=False),
    )
    op.create_table("oldest_program", Column("revision", Text, primary_key=True))
