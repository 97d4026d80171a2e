"""Leader leases: roles that one process at a time can hold, such as building data sets.

The leader is elected in the store. The term of a lease is a fencing token.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from xcray.jobs.database.engine import Database, first_row, retry_once
from xcray.jobs.database.leases import LeaseWatcher
from xcray.jobs.database.schema import DUTIES


class LeaderLeaseTable:
    """The table of leader leases (SQL table DUTIES)."""

    def __init__(self, database: Database, monotonic: Callable[[], float]) -> None:
        """monotonic: the clock for leases, in seconds."""
        self._database = database
        self._leases = LeaseWatcher(monotonic)

    @retry_once
    def try_acquire(self, role: str, owner: str, lease_seconds: float) -> int | None:
        """Acquire or renew a role; return its term, or None while another process has it.

        The term stays the same while `owner` renews it. Call this well within `lease_seconds`:
        another process takes the role, with a higher term, once it saw no renewal for that long.
        `owner` must be unique among processes. A leader that cannot renew, because the store is
        unavailable, must not act after that time.
        """
        with self._database.write() as connection:
            self._database.advisory_lock(connection, f"lease of {role}")
            row = first_row(
                connection, sa.select(DUTIES).where(DUTIES.c.name == role).with_for_update()
            )
            is_owner = row is not None and row["owner"] == owner
            if row is not None and not is_owner and row["owner"] and not self._is_expired(row):
                return None
            term = 1 if row is None else row["term"] + (not is_owner)
            values = {
                "owner": owner,
                "beats": 1 if row is None else row["beats"] + 1,
                "term": term,
                "lease_seconds": lease_seconds,
            }
            if row is None:
                connection.execute(sa.insert(DUTIES).values(name=role, **values))
            else:
                connection.execute(sa.update(DUTIES).where(DUTIES.c.name == role).values(**values))
            return int(term)

    @retry_once
    def release(self, role: str, owner: str) -> None:
        """Release a role if `owner` has it, so that the next candidate gets it at once."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(DUTIES)
                .where(DUTIES.c.name == role, DUTIES.c.owner == owner)
                .values(owner=None)
            )

    def _is_expired(self, row: sa.RowMapping) -> bool:
        """Return whether this process saw no renewal for the length of the lease."""
        return self._leases.is_expired(
            row["name"], (row["term"], row["beats"]), row["lease_seconds"]
        )
