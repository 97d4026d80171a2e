"""Jobs have a kind. Existing jobs are trainings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
oldest = "0001"  # a column with a default of the database


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("kind", sa.Text, nullable=False, server_default="train"))
