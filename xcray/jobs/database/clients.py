"""Which programs work with the store: each process notes that it does, so that nobody changes the schema under it unasked."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from xcray.jobs.database.engine import POSTGRESQL, Database, once_more
from xcray.jobs.database.schema import HEAD, PROGRAMS
from xcray.jobs.store.leases import Watch

EVERY_SECONDS: Final = 3.0  # between two notes
LEASE_SECONDS: Final = 15.0  # after which one that is not heard counts as gone


class Program(NamedTuple):
    """A process that works with the store: its name, which says its host, the newest revision that it knows, its beats."""

    id: str
    revision: str
    beats: int
    lease_seconds: float


class ProgramTable:
    """The store's list of those who use it."""

    _database: Database
    _steady: Callable[[], float]
    _programs: Watch
    _program: str
    _attended: bool
    _asked: float  # seconds of `_steady`
    _attending: threading.Lock

    def attend(self) -> None:
        """Note that this process works with the store, unless that was done within EVERY_SECONDS. Who runs for long calls it often.

        Those that were not heard for their lease are forgotten.
        """
        with self._attending:
            now = self._steady()
            if (
                now - self._asked < EVERY_SECONDS * 0.9
            ):  # who comes every so many seconds is never a hair too early
                return
            self._asked = now
            self._attend()
            self._attended = True

    def programs(self) -> list[Program]:
        """Who works with the store, and those of late that ended without a word."""
        with self._database.read() as connection:
            return noted(connection)

    @once_more
    def _attend(self) -> None:
        """One note."""
        with self._database.write() as connection:
            insert: Any = postgresql.insert if self._database.kind == POSTGRESQL else sqlite.insert
            row = insert(PROGRAMS).values(
                id=self._program, revision=HEAD, beats=1, lease_seconds=LEASE_SECONDS
            )
            more = {"beats": PROGRAMS.c.beats + 1, "revision": HEAD}
            connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=more))
            others = {each.id: each for each in noted(connection) if each.id != self._program}
            lost = self._programs.lost(
                {name: (each.beats, each.lease_seconds) for name, each in others.items()}
            )
            forget(connection, [each for name, each in others.items() if name in lost])

    @once_more
    def _leave(self) -> None:
        """Take the note away."""
        with self._database.write() as connection:
            connection.execute(sa.delete(PROGRAMS).where(PROGRAMS.c.id == self._program))


def noted(connection: Connection) -> list[Program]:
    """All that are noted, by name."""
    columns = (PROGRAMS.c[name] for name in Program._fields)
    return [
        Program(*row) for row in connection.execute(sa.select(*columns).order_by(PROGRAMS.c.id))
    ]


def forget(connection: Connection, gone: list[Program]) -> None:
    """Take notes away that are as they were seen."""
    for each in gone:
        connection.execute(
            sa.delete(PROGRAMS).where(PROGRAMS.c.id == each.id, PROGRAMS.c.beats == each.beats)
        )


def process_name() -> str:
    """A name that no other process has, on any host, at any time; it says which one it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
