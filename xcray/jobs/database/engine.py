"""Connections to the store: write transactions that lock first, durable commits, own errors."""

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

from xcray.errors import ParameterError, Unavailable, missing_extra
from xcray.jobs.database.db_errors import (
    NO_CONNECTION,
    RetryableTransaction,
    is_unresponsive,
    translate_error,
)
from xcray.jobs.database.pg_timeouts import connect_with_timeouts

LOG: Final = logging.getLogger(__name__)
SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
# Seconds between two attempts of a writer to lock SQLite: about the duration of a commit.
BUSY_POLL_SECONDS: Final = (
    0.001,
    0.004,
)

# Seconds for which readers reuse the result of the schema guard.
GUARD_CACHE_SECONDS: Final = 1.0

# Arguments: mode (read or write), seconds, whether the database answered.
TransactionObserver: TypeAlias = Callable[[str, float, bool], None]

P = ParamSpec("P")
T = TypeVar("T")


def first_row(connection: Connection, query: Any) -> sa.RowMapping | None:
    """Return the first row of a query by column name, or None."""
    return connection.execute(query).mappings().first()


def retry_once(method: Callable[P, T]) -> Callable[P, T]:
    """Run a method that is one transaction again if the database rolled it back.

    The retry is safe: it happens only if the first transaction is known to have had no effect.
    """

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RetryableTransaction as error:
            LOG.info("retrying a transaction: %s", error.message)
            return method(*args, **kwargs)

    return run


class Database:
    """An engine with `read()` and `write()` transactions.

    `write()` holds SQLite's write lock from its first statement on. In PostgreSQL writers lock the
    rows they change, and `advisory_lock()` serialises decisions that two must not make at once.
    """

    def __init__(self, url: str, busy_seconds: float = 15.0) -> None:
        """busy_seconds: limit for waiting on other transactions and on PostgreSQL's answers."""
        parsed = parse_url(url)
        self.kind = parsed.get_backend_name()
        self._engine = _create_engine(parsed, busy_seconds)
        self._writer_lock = threading.Lock()
        self._busy_seconds = busy_seconds
        self._is_unresponsive = False  # the last query got no answer
        self._probe_lock = threading.Lock()
        self._read_engine = self._engine.execution_options(xcray_read=True)
        self.observer: TransactionObserver = lambda mode, seconds, answered: None
        # Raises if this program version can no longer use the store.
        self.guard: Callable[[Connection], None] = lambda connection: None
        self._guard_checked_at = -float("inf")  # monotonic seconds of its last success

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, committed to disk at the end, rolled back if the block raises.

        The schema guard runs first.
        """
        with (
            self._timed("write"),
            self._exclusive_writer(),
            self._fail_fast(),
            self._translated_errors(),
            self._engine.connect() as connection,
        ):
            with connection.begin() as transaction:
                self.guard(connection)
                yield connection
                with self._translated_errors(committing=True):
                    transaction.commit()

    @contextmanager
    def read(self, *, guarded: bool = True) -> Iterator[Connection]:
        """Open a read transaction: one snapshot, which waits for no lock.

        The schema guard runs at most once per GUARD_CACHE_SECONDS, or never if `guarded` is false.
        """
        with (
            self._timed("read"),
            self._fail_fast(),
            self._translated_errors(),
            self._read_engine.begin() as connection,
        ):
            if guarded and time.monotonic() - self._guard_checked_at >= GUARD_CACHE_SECONDS:
                checked_at = time.monotonic()
                self.guard(connection)
                self._guard_checked_at = checked_at
            yield connection

    def advisory_lock(self, connection: Connection, name: str) -> None:
        """Hold the lock of this name until the transaction ends.

        SQLite needs none: its writers run one at a time anyway.
        """
        if self.kind == POSTGRESQL:
            connection.execute(
                sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 0)))
            )

    def overwrite_deleted(self) -> None:
        """Remove deleted rows of SQLite from its write-ahead log, unless a reader needs it.

        In PostgreSQL they are removed by its next vacuum.
        """
        if self.kind == SQLITE:
            with self._translated_errors(), self._engine.connect() as connection:
                driver = connection.connection.driver_connection
                assert driver is not None
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def raw_connection(self) -> Any:
        """Return a connection of the driver. The caller closes it."""
        with self._translated_errors():
            return self._engine.raw_connection()

    @contextmanager
    def _timed(self, mode: str) -> Iterator[None]:
        """Report the duration of a transaction to `observer`, including its wait."""
        started, answered = time.perf_counter(), True
        try:
            yield
        except Unavailable:
            answered = False
            raise
        finally:
            self.observer(mode, time.perf_counter() - started, answered)

    @contextmanager
    def _exclusive_writer(self) -> Iterator[None]:
        """Let one writer per process reach SQLite at a time.

        SQLite makes waiting writers sleep and poll, some of them for a long time.
        """
        if self.kind != SQLITE:
            yield
            return
        if not self._writer_lock.acquire(timeout=self._busy_seconds):
            raise Unavailable(
                "the job store can't answer now (other writers are waiting): try again",
                code="STORE",
            )
        try:
            yield
        finally:
            self._writer_lock.release()

    @contextmanager
    def _fail_fast(self) -> Iterator[None]:
        """While the database is unresponsive, let one caller at a time probe it.

        All others fail at once. Otherwise each would wait for the full timeout, and a service would
        have no thread left for anything else.
        """
        if not self._is_unresponsive:
            yield
            return
        if not self._probe_lock.acquire(blocking=False):
            raise Unavailable(NO_CONNECTION[1], code=NO_CONNECTION[0])
        try:
            with self._translated_errors(), self._read_engine.begin() as connection:
                connection.execute(sa.select(1))
            self._is_unresponsive = False
        finally:
            self._probe_lock.release()
        yield

    @contextmanager
    def _translated_errors(self, *, committing: bool = False) -> Iterator[None]:
        """Translate driver errors, without SQL, parameters, hosts or paths in the message."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, TimeoutError) as error:
            self._is_unresponsive = self._is_unresponsive or is_unresponsive(error)
            raise translate_error(error, committing=committing) from error


class Table:
    """A part of the store. now: the wall clock in Unix seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now


def parse_url(url: str) -> URL:
    """Return the parsed URL of a store.

    Raises ParameterError, whose message never contains the URL, because it can hold a password.
    """
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        backend = ""
    if backend == "postgres":
        backend = POSTGRESQL
    if backend not in (SQLITE, POSTGRESQL):
        raise ParameterError(
            "the store's address can't be read: use sqlite:////path/xcray.db or"
            " postgresql://user:password@host/database"
        )
    if backend == SQLITE and parsed.database in (None, "", ":memory:"):
        raise ParameterError(
            "the store must be a file that several processes share:"
            " use a URL like sqlite:////path/xcray.db"
        )
    return parsed.set(drivername="postgresql+psycopg") if backend == POSTGRESQL else parsed


def _create_engine(url: URL, busy_seconds: float) -> Engine:
    """Return a configured engine for a URL."""
    options: dict[str, Any] = {
        "json_serializer": partial(json.dumps, allow_nan=False),
        "pool_timeout": busy_seconds,
        "hide_parameters": True,  # names and specs of tenants must not be logged
    }
    if url.get_backend_name() == SQLITE:
        engine = sa.create_engine(url, pool_size=8, max_overflow=56, **options)
        _configure_sqlite(engine, busy_seconds)
        return engine
    try:
        engine = sa.create_engine(
            url,
            pool_size=8,
            max_overflow=24,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            **options,
        )
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    event.listen(engine, "do_connect", connect_with_timeouts(busy_seconds))
    return engine


def _configure_sqlite(engine: Engine, busy_seconds: float) -> None:
    """Configure SQLite: write-ahead log, synced commits, explicit BEGIN."""
    timeout = f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}"

    def connect(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN is deferred: a read that turns into a write would fail.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 0")
        _retry_while_busy(lambda: cursor.execute("PRAGMA journal_mode = WAL"), busy_seconds)
        cursor.execute(timeout)
        cursor.execute("PRAGMA synchronous = FULL")  # acknowledged writes survive a power failure
        cursor.execute("PRAGMA secure_delete = ON")  # deleted texts are overwritten
        cursor.close()

    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("xcray_read", False):
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            _retry_while_busy(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"), busy_seconds)
        finally:
            connection.exec_driver_sql(timeout)

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)


def _retry_while_busy(attempt: Callable[[], object], busy_seconds: float) -> None:
    """Attempt to take a lock of SQLite, at the same short interval for the whole wait.

    SQLite's own busy handler polls less and less often, so next to busy processes the longest
    waiter would get in last. It also does not wait at all for a change of the journal mode, so
    processes that open an old store together would find it locked.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            attempt()
            return
        except (DBAPIError, sqlite3.OperationalError) as error:
            code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
            if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(*BUSY_POLL_SECONDS))
