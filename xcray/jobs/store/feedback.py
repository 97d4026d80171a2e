"""The table of feedback: corrections of answers, per tenant and model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from xcray.errors import Conflict, NotFound, Refused, excerpt
from xcray.jobs.database.engine import Table, first_row, retry_once
from xcray.jobs.database.schema import FEEDBACK
from xcray.jobs.job import format_utc
from xcray.jobs.store.paging import read_page

BATCH_ROWS: Final = 100  # read at a time: an instance can have a megabyte


@dataclass(frozen=True)
class Feedback:
    """What a caller says of one answer.

    id: of the caller, unique per model. version: of the model, which was corrected. content: the
    `instance` of the request, and its `right` and `wrong` labels by name.
    """

    seq: int
    tenant: str
    model: str
    id: str
    version: int
    content: dict[str, Any]
    key_id: str | None
    created: str


class FeedbackTable(Table):
    """Feedback. Names of tenants and models are part of every query."""

    @retry_once
    def add(
        self,
        tenant: str,
        model: str,
        feedback_id: str,
        content: dict[str, Any],
        *,
        version: int,
        key_id: str | None,
        limit: int,
    ) -> tuple[Feedback, bool]:
        """Store feedback durably; return it and whether it is new.

        limit: of entries of the tenant. Raises Conflict if the id has other content, Refused, code
        FEEDBACK_QUOTA, at the limit.
        """
        row: dict[str, Any] = {
            "tenant": tenant,
            "model": model,
            "id": feedback_id,
            "version": version,
            "content": content,
            "key_id": key_id,
            "created": format_utc(self._now()),
        }
        with self._database.write() as connection:
            # One writer per tenant: for the count, and so that entries are committed in the order
            # of `seq`.
            self._database.advisory_lock(connection, f"feedback of {tenant}")
            existing = first_row(
                connection, sa.select(FEEDBACK).where(_matches(tenant, model, feedback_id))
            )
            if existing is None:
                self._check_quota(connection, tenant, limit)
                inserted = connection.execute(sa.insert(FEEDBACK).values(row))
                assert inserted.inserted_primary_key is not None
                return Feedback(seq=inserted.inserted_primary_key[0], **row), True
        if existing["content"] != content:
            raise Conflict(
                f"feedback {excerpt(feedback_id)!r} has other content: delete it first, or use "
                "another id",
                code="FEEDBACK_EXISTS",
            )
        return Feedback(**existing), False

    @retry_once
    def get(self, tenant: str, model: str, feedback_id: str) -> Feedback:
        """Return an entry. Raises NotFound."""
        query = sa.select(FEEDBACK).where(_matches(tenant, model, feedback_id))
        with self._database.read() as connection:
            row = first_row(connection, query)
        if row is None:
            raise _not_found(model, feedback_id)
        return Feedback(**row)

    @retry_once
    def list_page(
        self, tenant: str, model: str, *, limit: int = 50, page_token: str | None = None
    ) -> tuple[list[Feedback], str | None]:
        """Return the feedback of a model, newest first, and the token of the next page or None."""
        conditions = [_of_model(tenant, model)]
        rows, token = read_page(self._database, FEEDBACK, conditions, limit, page_token)
        return [Feedback(**row) for row in rows], token

    def all_after(self, tenant: str, model: str, seq: int = 0) -> Iterator[Feedback]:
        """Yield the feedback of a model after an entry, oldest first. Memory: `BATCH_ROWS`."""
        batch = self._batch_after(tenant, model, seq)
        while batch:
            yield from batch
            batch = self._batch_after(tenant, model, batch[-1].seq)

    @retry_once
    def _batch_after(self, tenant: str, model: str, seq: int) -> list[Feedback]:
        """Return the next entries."""
        query = sa.select(FEEDBACK).where(_of_model(tenant, model), FEEDBACK.c.seq > seq)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(FEEDBACK.c.seq).limit(BATCH_ROWS)).mappings()
            return [Feedback(**row) for row in rows]

    @retry_once
    def delete(self, tenant: str, model: str, feedback_id: str) -> None:
        """Delete an entry and its text. Raises NotFound."""
        with self._database.write() as connection:
            deleted = connection.execute(
                sa.delete(FEEDBACK).where(_matches(tenant, model, feedback_id))
            ).rowcount
        if not deleted:
            raise _not_found(model, feedback_id)
        self._database.overwrite_deleted()

    def _check_quota(self, connection: sa.Connection, tenant: str, limit: int) -> None:
        """Raise Refused if the tenant has `limit` entries."""
        count = sa.select(sa.func.count()).where(FEEDBACK.c.tenant == tenant)
        if connection.execute(count).scalar_one() >= limit:
            raise Refused(
                f"this tenant has {limit:,} feedback entries, which is the limit: delete some",
                code="FEEDBACK_QUOTA",
                limit=limit,
            )


def _of_model(tenant: str, model: str) -> sa.ColumnElement[bool]:
    """Return the condition for all entries of a model."""
    return sa.and_(FEEDBACK.c.tenant == tenant, FEEDBACK.c.model == model)


def _matches(tenant: str, model: str, feedback_id: str) -> sa.ColumnElement[bool]:
    """Return the condition for one entry."""
    return sa.and_(_of_model(tenant, model), FEEDBACK.c.id == feedback_id)


def _not_found(model: str, feedback_id: str) -> NotFound:
    """Return the error for a missing entry."""
    return NotFound(f"model {model} has no feedback {excerpt(feedback_id)!r}")
