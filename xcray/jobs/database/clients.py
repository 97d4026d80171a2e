"""Connected clients of the store. Each process registers itself and sends heartbeats.

An upgrade reads the table, so that the schema never changes under a running client unnoticed.
"""

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

from xcray.jobs.database.engine import POSTGRESQL, Database, retry_once
from xcray.jobs.database.leases import LeaseWatcher
from xcray.jobs.database.migrations import HEAD
from xcray.jobs.database.schema import PROGRAMS

HEARTBEAT_SECONDS: Final = 3.0  # between two heartbeats
LEASE_SECONDS: Final = 15.0  # without a heartbeat, after which a client counts as gone


class StoreClient(NamedTuple):
    """A process that uses the store. `id` contains its host, `revision` is its schema revision."""

    id: str
    revision: int
    beats: int
    lease_seconds: float


class ClientTable:
    """The store's table of clients."""

    def __init__(self, database: Database, monotonic: Callable[[], float]) -> None:
        """monotonic: the clock for heartbeats and leases, in seconds."""
        self._database = database
        self._monotonic = monotonic
        self._leases = LeaseWatcher(monotonic)
        self._client_id = process_name()
        self._is_registered = False
        self._last_heartbeat = -float("inf")
        self._heartbeat_lock = threading.Lock()

    def heartbeat(self) -> None:
        """Register this process as a client, or renew its heartbeat.

        Does nothing within HEARTBEAT_SECONDS of the last call. Long-running processes call it
        often. Clients without a heartbeat for their lease are deleted.
        """
        with self._heartbeat_lock:
            now = self._monotonic()
            # The margin keeps a caller with exactly this interval from being too early.
            if now - self._last_heartbeat < HEARTBEAT_SECONDS * 0.9:
                return
            self._last_heartbeat = now
            self._write_heartbeat()
            self._is_registered = True

    def list_all(self) -> list[StoreClient]:
        """Return the clients, including those that ended lately without deregistering."""
        with self._database.read() as connection:
            return read_clients(connection)

    @retry_once
    def _write_heartbeat(self) -> None:
        """Write one heartbeat and delete expired clients."""
        with self._database.write() as connection:
            insert: Any = postgresql.insert if self._database.kind == POSTGRESQL else sqlite.insert
            row = insert(PROGRAMS).values(
                id=self._client_id, revision=HEAD, beats=1, lease_seconds=LEASE_SECONDS
            )
            renewed = {"beats": PROGRAMS.c.beats + 1, "revision": HEAD}
            connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=renewed))
            others = {
                each.id: each for each in read_clients(connection) if each.id != self._client_id
            }
            expired = self._leases.expired_leases(
                {name: (each.beats, each.lease_seconds) for name, each in others.items()}
            )
            delete_clients(connection, [each for name, each in others.items() if name in expired])

    @retry_once
    def deregister(self) -> None:
        """Delete this process from the table, if it is registered."""
        if not self._is_registered:
            return
        with self._database.write() as connection:
            connection.execute(sa.delete(PROGRAMS).where(PROGRAMS.c.id == self._client_id))


def read_clients(connection: Connection) -> list[StoreClient]:
    """Return all registered clients by name."""
    columns = (PROGRAMS.c[name] for name in StoreClient._fields)
    return [
        StoreClient(*row) for row in connection.execute(sa.select(*columns).order_by(PROGRAMS.c.id))
    ]


def delete_clients(connection: Connection, gone: list[StoreClient]) -> None:
    """Delete clients whose heartbeat count has not changed since it was read."""
    for each in gone:
        connection.execute(
            sa.delete(PROGRAMS).where(PROGRAMS.c.id == each.id, PROGRAMS.c.beats == each.beats)
        )


def process_name() -> str:
    """Return a unique name of this process that contains its host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
