"""Changes of large tables beside those who use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic import op


def index(name: str, table: str, columns: Sequence[Any], **how: Any) -> None:
    """Make an index while others read and write the table, in a step that is not `in_transaction`. how: as of Alembic's.

    PostgreSQL leaves an index without use behind when that fails: so one that is there goes first. SQLite has no such way; there
    readers go on, and writers wait, 0.1 s for 100,000 rows.
    """
    if op.get_context().dialect.name != "postgresql":
        op.create_index(name, table, list(columns), **how)
        return
    op.drop_index(name, table, postgresql_concurrently=True, if_exists=True)
    op.create_index(name, table, list(columns), postgresql_concurrently=True, **how)
