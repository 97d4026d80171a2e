"""Connections to the store: transactions that take the write lock first, durable commits, errors in xcray's words."""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, TimeoutError

from xcray.errors import ParameterError, Unavailable, lacking
from xcray.jobs.database.db_errors import SILENT, Again, in_words, is_silence
from xcray.jobs.database.pg_timeouts import connector

LOG: Final = logging.getLogger(__name__)
SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
KNOCK_SECONDS: Final = (
    0.001,
    0.004,
)  # between two tries of a writer at SQLite's door: about as long as a commit takes

BELIEVED_SECONDS: Final = (
    1.0  # for which readers do not ask again whether the store is still one of ours
)

Heard: TypeAlias = Callable[
    [str, float, bool], None
]  # door (read or write), seconds, whether the database answered

P = ParamSpec("P")
T = TypeVar("T")


def once_more(method: Callable[P, T]) -> Callable[P, T]:
    """A method that is one transaction, run again when the database undid it and said so: nothing is ever done twice."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except Again as error:
            LOG.info("a transaction is tried again: %s", error.message)
            return method(*args, **kwargs)

    return run


class Database:
    """An engine with two doors: `read()`, and `write()`, which holds SQLite's write lock from its first statement on.

    In PostgreSQL writers lock the rows they change, and `alone()` what must not be decided by two at once.
    """

    def __init__(self, url: str, busy_seconds: float = 15.0) -> None:
        """busy_seconds: how long a transaction may wait for others, and PostgreSQL for an answer."""
        parsed = parse_url(url)
        self.kind = parsed.get_backend_name()
        self._engine = _engine_of(parsed, busy_seconds)
        self._turn = threading.Lock()
        self._busy_seconds = busy_seconds
        self._silent = False  # the database gave no answer when it was asked last
        self._probe = threading.Lock()
        self._reader = self._engine.execution_options(xcray_read=True)
        self.heard: Heard = lambda door, seconds, answered: None
        self.guard: Callable[[Connection], None] = lambda connection: (
            None
        )  # raises when our kind may not use the store any more
        self._believed = -float("inf")  # monotonic seconds when it last did not

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: committed and on disk when the block ends, undone when it raises. First of all it asks the guard."""
        with (
            self._timed("write"),
            self._our_turn(),
            self._answering(),
            self._words(),
            self._engine.connect() as connection,
        ):
            with connection.begin() as transaction:
                self.guard(connection)
                yield connection
                with self._words(committing=True):
                    transaction.commit()

    @contextmanager
    def read(self, *, guarded: bool = True) -> Iterator[Connection]:
        """A read transaction: one snapshot, waits for nobody. The guard is asked once in BELIEVED_SECONDS, or not at all."""
        with (
            self._timed("read"),
            self._answering(),
            self._words(),
            self._reader.begin() as connection,
        ):
            if guarded and time.monotonic() - self._believed >= BELIEVED_SECONDS:
                asked = time.monotonic()
                self.guard(connection)
                self._believed = asked
            yield connection

    @contextmanager
    def outside(self) -> Iterator[Connection]:
        """A connection outside any transaction, which nobody uses after the block: its settings and locks go with it."""
        with (
            self._words(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.detach()
            yield connection

    def alone(self, connection: Connection, what: str) -> None:
        """Hold the lock of this name until the transaction ends. SQLite's writers are alone anyway."""
        if self.kind == POSTGRESQL:
            connection.execute(
                sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(what, 0)))
            )

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def raw(self) -> Any:
        """A connection of the driver's own, for what only it can do. The caller closes it."""
        with self._words():
            return self._engine.raw_connection()

    @contextmanager
    def _timed(self, door: str) -> Iterator[None]:
        """Tell `heard` how long a transaction took, its wait included."""
        begun, answered = time.perf_counter(), True
        try:
            yield
        except Unavailable:
            answered = False
            raise
        finally:
            self.heard(door, time.perf_counter() - begun, answered)

    @contextmanager
    def _our_turn(self) -> Iterator[None]:
        """One writer a process at SQLite's door: it makes those who wait sleep and poll, and some of them for long."""
        if self.kind != SQLITE:
            yield
            return
        if not self._turn.acquire(timeout=self._busy_seconds):
            raise Unavailable(
                "the job store can't answer now (other writers are waiting): try again",
                code="STORE",
            )
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """While the database is silent one caller at a time finds out whether it still is; all others hear so at once.

        Otherwise each would wait for as long, and a service would have no thread left for anything else.
        """
        if not self._silent:
            yield
            return
        if not self._probe.acquire(blocking=False):
            raise Unavailable(SILENT[1], code=SILENT[0])
        try:
            with self._words(), self._reader.begin() as connection:
                connection.execute(sa.select(1))
            self._silent = False
        finally:
            self._probe.release()
        yield

    @contextmanager
    def _words(self, *, committing: bool = False) -> Iterator[None]:
        """The driver's troubles as errors of ours, without SQL, parameters, hosts or paths in the message."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, TimeoutError) as error:
            self._silent = self._silent or is_silence(error)
            raise in_words(error, committing=committing) from error


def parse_url(url: str) -> URL:
    """The address of a store. Raises ParameterError, which never repeats it: it may hold a password."""
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        backend = ""
    if backend == "postgres":
        backend = POSTGRESQL
    if backend not in (SQLITE, POSTGRESQL):
        raise ParameterError(
            "the store's address can't be read: use sqlite:////path/xcray.db or postgresql://user:password@host/database"
        )
    if backend == SQLITE and parsed.database in (None, "", ":memory:"):
        raise ParameterError(
            "the store must be a file that several processes share: use a URL like sqlite:////path/xcray.db"
        )
    return parsed.set(drivername="postgresql+psycopg") if backend == POSTGRESQL else parsed


def _engine_of(url: URL, busy_seconds: float) -> Engine:
    """The engine of an address, with its settings."""
    how: dict[str, Any] = {
        "json_serializer": partial(json.dumps, allow_nan=False),
        "pool_timeout": busy_seconds,
        "hide_parameters": True,  # names and specs of tenants belong in no log
    }
    if url.get_backend_name() == SQLITE:
        engine = sa.create_engine(url, pool_size=8, max_overflow=56, **how)
        _sqlite(engine, busy_seconds)
        return engine
    try:
        engine = sa.create_engine(
            url,
            pool_size=8,
            max_overflow=24,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            **how,
        )
    except ModuleNotFoundError as error:
        raise lacking(error) from None
    event.listen(engine, "do_connect", connector(busy_seconds))
    return engine


def _sqlite(engine: Engine, busy_seconds: float) -> None:
    """SQLite's settings: write-ahead log, synced commits, and our own BEGIN."""
    timeout = f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}"

    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = (
            None  # the driver's own BEGIN is deferred: a read that turns into a write would fail
        )
        cursor = connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 0")
        _knocking(lambda: cursor.execute("PRAGMA journal_mode = WAL"), busy_seconds)
        cursor.execute(timeout)
        cursor.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
        cursor.close()

    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("xcray_read", False):
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            _knocking(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"), busy_seconds)
        finally:
            connection.exec_driver_sql(timeout)

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)


def _knocking(ask: Callable[[], object], busy_seconds: float) -> None:
    """Ask SQLite for what others may hold, as often after a second as at first.

    SQLite's own wait knocks less and less often: beside busy processes, who has waited longest would get in last. And it does not
    wait at all for a log of another kind while somebody writes: many who open an old store at once would find it locked.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            ask()
            return
        except (DBAPIError, sqlite3.OperationalError) as error:
            code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
            if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(*KNOCK_SECONDS))
