"""Changes of large tables while other programs use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic import op


def create_index(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Create an index while others read and write the table; not for steps in a transaction.

    options: those of Alembic's create_index. PostgreSQL leaves an invalid index behind if this
    fails, so an existing one is dropped first. SQLite has no such mode: readers continue, writers
    wait 0.1 s per 100,000 rows.
    """
    if op.get_context().dialect.name != "postgresql":
        op.create_index(name, table, list(columns), **options)
        return
    op.drop_index(name, table, postgresql_concurrently=True, if_exists=True)
    op.create_index(name, table, list(columns), postgresql_concurrently=True, **options)
