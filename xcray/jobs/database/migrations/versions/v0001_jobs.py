"""Jobs, their events, data sets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
oldest = "0001"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the first tables.

    The table schema_version held the version before Alembic did. xcray 0.1 reads it.
    """
    op.create_table("schema_version", sa.Column("version", sa.Integer, nullable=False))
    op.create_table(
        "jobs",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("lease_until", sa.Float),
        sa.Column("not_before", sa.Float, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("advanced", sa.Boolean, nullable=False),
        sa.Column("events", sa.Integer, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("started", sa.Text),
        sa.Column("finished", sa.Text),
        sa.UniqueConstraint("tenant", "idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_queue", "jobs", ["status", sa.text("priority DESC"), "seq"])
    op.create_index("jobs_tenant", "jobs", ["tenant", "seq"])
    op.create_index("jobs_tenant_status", "jobs", ["tenant", "status", "seq"])
    op.create_table(
        "events",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_table(
        "datasets",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("stats", sa.JSON, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("datasets_tenant", "datasets", ["tenant", "seq"])
