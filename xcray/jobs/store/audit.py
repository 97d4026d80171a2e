"""The audit log: new entries are appended, old ones trimmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from xcray.jobs.database.engine import Table, retry_once
from xcray.jobs.database.schema import AUDIT
from xcray.jobs.job import format_utc
from xcray.jobs.store.paging import read_page


@dataclass(frozen=True)
class AuditEntry:
    """One audited action. `subject` is its object, `detail` holds more, never secrets."""

    seq: int
    time: str
    tenant: str
    key_id: str | None
    action: str
    subject: str
    detail: dict[str, Any]
    request_id: str | None


class AuditTable(Table):
    """The audit log."""

    @retry_once
    def record(
        self,
        tenant: str,
        key_id: str | None,
        action: str,
        subject: str,
        detail: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Record, durably, an action by a key of a tenant."""
        entry = {
            "tenant": tenant,
            "key_id": key_id,
            "action": action,
            "subject": subject,
            "request_id": request_id,
        }
        with self._database.write() as connection:
            connection.execute(
                sa.insert(AUDIT).values(**entry, detail=detail or {}, time=format_utc(self._now()))
            )

    @retry_once
    def list_page(
        self,
        tenant: str | None = None,
        *,
        action: str | None = None,
        limit: int = 50,
        page_token: str | None = None,
    ) -> tuple[list[AuditEntry], str | None]:
        """Return entries, newest first, and the token of the next page or None.

        Filtered by tenant and by action if given.
        """
        same = {"tenant": tenant, "action": action}
        conditions = [AUDIT.c[name] == value for name, value in same.items() if value is not None]
        rows, token = read_page(self._database, AUDIT, conditions, limit, page_token)
        return [AuditEntry(**row) for row in rows], token

    @retry_once
    def trim(self, keep: int) -> int:
        """Delete all entries except the newest `keep` and return how many were deleted."""
        first = sa.select(AUDIT.c.seq).order_by(AUDIT.c.seq.desc()).offset(keep).limit(1)
        with self._database.write() as connection:
            last = connection.execute(first).scalar()
            if last is None:
                return 0
            return int(connection.execute(sa.delete(AUDIT).where(AUDIT.c.seq <= last)).rowcount)
