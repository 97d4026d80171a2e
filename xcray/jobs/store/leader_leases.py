"""Duties that one process at a time may have: building data sets, sweeping, retention. Elected in the store, fenced by a term."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import DUTIES
from xcray.jobs.store.leases import Watch


class DutyTable:
    """Who has which duty."""

    _database: Database
    _duties: Watch
    _steady: Callable[[], float]

    @once_more
    def stand_for(self, duty: str, owner: str, lease_seconds: float) -> int | None:
        """Take a duty, or keep it: its term, the same while `owner` keeps it; None while another process has it.

        Call it again well within `lease_seconds`: another takes the duty, with a higher term, once it saw no renewal for that
        long. `owner` must be unique among processes. Who can't renew, because the store is away, must not act after that time.
        """
        with self._database.write() as connection:
            row = (
                connection.execute(sa.select(DUTIES).where(DUTIES.c.name == duty).with_for_update())
                .mappings()
                .first()
            )
            if row is None:
                return self._found(connection, duty, owner, lease_seconds)
            mine = row["owner"] == owner
            if not mine and row["owner"] is not None and not self._abandoned(row):
                return None
            term = row["term"] + (not mine)
            values = {
                "owner": owner,
                "beats": row["beats"] + 1,
                "term": term,
                "lease_seconds": lease_seconds,
            }
            connection.execute(sa.update(DUTIES).where(DUTIES.c.name == duty).values(**values))
            return int(term)

    @once_more
    def resign(self, duty: str, owner: str) -> None:
        """Give a duty up, if `owner` has it: the next who stands for it gets it at once."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(DUTIES)
                .where(DUTIES.c.name == duty, DUTIES.c.owner == owner)
                .values(owner=None)
            )

    def _found(
        self, connection: sa.Connection, duty: str, owner: str, lease_seconds: float
    ) -> int | None:
        """The first who ever stands for a duty. None when another was quicker."""
        first = {
            "name": duty,
            "owner": owner,
            "beats": 1,
            "term": 1,
            "lease_seconds": lease_seconds,
        }
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(DUTIES).values(**first))
        except IntegrityError:
            return None
        return 1

    def _abandoned(self, row: sa.RowMapping) -> bool:
        """Whether this process saw the same renewal for the length of the lease."""
        return self._duties.one_lost(row["name"], (row["term"], row["beats"]), row["lease_seconds"])
