"""Connections to the store: transactions that take the write lock first, durable commits, errors in xcray's words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError, TimeoutError

from xcray.errors import ParameterError, Unavailable


class Database:
    """An engine with two doors: `read()`, and `write()`, which holds the write lock from its first statement on."""

    def __init__(self, url: str, busy_seconds: float = 15.0) -> None:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise ParameterError("the store must be a file that several processes share: use a URL like sqlite:////path/xcray.db")
        self._engine = sa.create_engine(
            parsed, json_serializer=partial(json.dumps, allow_nan=False), pool_size=8, max_overflow=56, pool_timeout=busy_seconds
        )
        if self._engine.dialect.name == "sqlite":
            _sqlite(self._engine, busy_seconds)
        self._turn = threading.Lock()
        self._busy_seconds = busy_seconds
        self._reader = self._engine.execution_options(xcray_read=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: committed and on disk when the block ends, undone when it raises."""
        with _words(), self._our_turn(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: one snapshot, waits for nobody."""
        with _words(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def _our_turn(self) -> Iterator[None]:
        """One writer a process at SQLite's door: it makes those who wait sleep and poll, and some of them for long."""
        if self._engine.dialect.name != "sqlite":
            yield
            return
        if not self._turn.acquire(timeout=self._busy_seconds):
            raise Unavailable("the job store can't answer now (other writers are waiting): try again", code="STORE")
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


@contextmanager
def _words() -> Iterator[None]:
    """The driver's troubles as Unavailable, without SQL, parameters or paths in the message."""
    try:
        yield
    except (OperationalError, TimeoutError) as error:
        cause = str(getattr(error, "orig", None) or "no free connection").splitlines()[0]
        raise Unavailable(f"the job store can't answer now ({cause}): try again", code="STORE") from error


def _sqlite(engine: Engine, busy_seconds: float) -> None:
    """SQLite's settings: write-ahead log, synced commits, waiting writers, and our own BEGIN."""

    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN is deferred: a read that turns into a write would fail
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
        cursor.close()

    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("xcray_read", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
