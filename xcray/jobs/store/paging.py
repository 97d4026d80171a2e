"""Keyset pagination: a token names the row to continue after, so that pages stay consistent."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from xcray.errors import ParameterError
from xcray.jobs.database.engine import Database

MAX_PAGE_ROWS = 1000

T = TypeVar("T")


def page_start(page_token: str | None, limit: int) -> int | None:
    """Return the sequence number below which a page starts, or None for the first page.

    Raises ParameterError for an invalid token, or a limit outside of 1 to 1000.
    """
    if not 1 <= limit <= MAX_PAGE_ROWS:
        raise ParameterError(f"limit is {limit}: use 1 to {MAX_PAGE_ROWS}")
    if page_token is None:
        return None
    try:
        start = int(
            base64.urlsafe_b64decode(page_token[:64].encode()).decode().removeprefix("before:")
        )
    except (binascii.Error, ValueError):
        start = 0
    if not 0 < start < 1 << 62:
        raise ParameterError(
            "page_token is invalid: omit it to start from the first page", loc="page_token"
        )
    return start


def page_token_after(rows: Sequence[Any], limit: int) -> str | None:
    """Return the token of the next page, or None.

    There is a next page if `rows` holds more than `limit` rows.
    """
    return (
        base64.urlsafe_b64encode(f"before:{rows[limit - 1]['seq']}".encode()).decode()
        if len(rows) > limit
        else None
    )


def read_page(
    database: Database,
    table: sa.Table,
    conditions: Sequence[sa.ColumnElement[bool]],
    limit: int,
    page_token: str | None,
) -> tuple[Sequence[sa.RowMapping], str | None]:
    """Return the rows of a table that meet all conditions, newest first, and the next token.

    The token is None after the last page. Raises ParameterError for an invalid page.
    """
    start = page_start(page_token, limit)
    if start is not None:
        conditions = [*conditions, table.c.seq < start]
    # The inner query uses an index only; just the rows of the page are read.
    newest = table.c.seq.desc()
    page = sa.select(table.c.seq).where(*conditions).order_by(newest).limit(limit + 1)
    query = sa.select(table).where(table.c.seq.in_(page)).order_by(newest)
    with database.read() as connection:
        rows = connection.execute(query).mappings().all()
    return rows[:limit], page_token_after(rows, limit)


def all_rows(list_page: Callable[..., tuple[list[T], str | None]], *args: Any) -> Iterator[T]:
    """Yield the rows of all pages. list_page: of a table, called with `args`."""
    token = None
    while True:
        rows, token = list_page(*args, limit=MAX_PAGE_ROWS, page_token=token)
        yield from rows
        if token is None:
            return
