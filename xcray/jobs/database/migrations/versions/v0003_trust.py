"""Leases without dates, time limits, filters; keys, audit, duties, counters, turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
# Leases have no dates any more: older programs would take jobs from their runners.
oldest = "0003"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LEASE_SECONDS = 20.0  # of jobs that run while the store is upgraded


def upgrade() -> None:
    """Change existing tables, add new ones, and lock out xcray 0.1.

    xcray 0.1 reads only its own table of the version.
    """
    _jobs()
    _datasets()
    _keys_and_audit()
    _duties_counters_turns()
    op.execute("DELETE FROM schema_version")
    op.execute("INSERT INTO schema_version (version) VALUES (3)")


def _jobs() -> None:
    """Add the columns of jobs. Columns are renamed, because SQLite before 3.35 can't drop them."""
    op.execute("ALTER TABLE jobs RENAME COLUMN lease_until TO lease_seconds")
    op.execute(f"UPDATE jobs SET lease_seconds = {LEASE_SECONDS} WHERE lease_seconds IS NOT NULL")
    for column in (
        sa.Column("key_id", sa.Text),
        sa.Column("beats", sa.Integer, nullable=False, server_default="0"),
        sa.Column("timeout_seconds", sa.Float),
        sa.Column("ran_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("expires", sa.Float),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("model", sa.Text),
        sa.Column("dataset_id", sa.Text),
    ):
        op.add_column("jobs", column)
    jobs = sa.table(
        "jobs",
        *(sa.column(name) for name in ("kind", "model", "dataset_id")),
        sa.column("spec", sa.JSON),
    )
    values = {
        "model": jobs.c.spec["name"].as_string(),
        "dataset_id": jobs.c.spec["dataset_id"].as_string(),
    }
    op.execute(sa.update(jobs).where(jobs.c.kind == "train").values(values))
    op.drop_index("jobs_queue", "jobs")
    op.drop_index("jobs_tenant", "jobs")
    op.create_index("jobs_queue", "jobs", ["status", "priority", "tenant", "seq"])
    listed = [
        "tenant",
        "seq",
        "status",
        "kind",
        "priority",
        "created",
        "name",
        "model",
        "dataset_id",
    ]
    op.create_index("jobs_list", "jobs", listed)
    for name, columns in (("jobs_expires", ["status", "expires"]), ("jobs_ended", ["finished"])):
        there = sa.text(f"{columns[-1]} IS NOT NULL")
        op.create_index(name, "jobs", columns, sqlite_where=there, postgresql_where=there)


def _datasets() -> None:
    """Add idempotency keys and versions of data sets."""
    for column in (
        sa.Column("idempotency_key", sa.Text),
        sa.Column("digest", sa.Text),
        sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    ):
        op.add_column("datasets", column)
    op.create_index("datasets_key", "datasets", ["tenant", "idempotency_key"], unique=True)


def _keys_and_audit() -> None:
    """Add API keys and the audit log."""
    op.create_table(
        "keys",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("revoked", sa.Text),
        sa.Column("last_used", sa.Text),
        sa.Column("limits", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("request_id", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_tenant", "audit", ["tenant", "seq"])


def _duties_counters_turns() -> None:
    """Add leader leases, counters and the turns of tenants."""
    op.create_table(
        "duties",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text),
        sa.Column("beats", sa.Integer, nullable=False),
        sa.Column("term", sa.Integer, nullable=False),
        sa.Column("lease_seconds", sa.Float, nullable=False),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("labels", sa.Text, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("turn", SERIAL, nullable=False),
    )
