"""Clients of the store, and the oldest program that can use it: an online upgrade checks both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest = "0003"


def upgrade() -> None:
    """Add two tables. `xcray.jobs.database.upgrade` writes the row of the second."""
    op.create_table(
        "programs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("revision", sa.Text, nullable=False),
        sa.Column("beats", sa.Integer, nullable=False),
        sa.Column("lease_seconds", sa.Float, nullable=False),
    )
    op.create_table("oldest_program", sa.Column("revision", sa.Text, primary_key=True))
