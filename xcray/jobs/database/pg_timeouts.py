"""Timeouts for PostgreSQL: the server's own, and one on the client for when it sends nothing.

A stopped server, or a network that drops packets, sends nothing at all. Then only the client can
end the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection

CONNECT_SECONDS: Final = (2, 4)  # libpq rounds smaller values up to 2
PING_SECONDS: Final = 2.0  # for a query that waits for no lock
MIN_TIMEOUT_SECONDS: Final = 1.0


def connect_with_timeouts(busy_seconds: float) -> Callable[[Any, Any, Any, dict[str, Any]], Any]:
    """Return the connect function for SQLAlchemy's event do_connect.

    It opens psycopg connections with a limit on every wait. Settings in the URL (connect_timeout,
    options, sslmode, ...) take precedence.
    """
    import psycopg
    from psycopg.pq import TransactionStatus

    timeout = max(MIN_TIMEOUT_SECONDS, busy_seconds)

    class TimeoutConnection(psycopg.Connection[Any]):
        """A connection that is closed when the server does not answer in time.

        seconds: the limit for an answer in a transaction, and outside of one. Outside, SQLAlchemy
        only tests whether an idle connection still works.
        """

        seconds = (timeout + 1.0, min(timeout, PING_SECONDS))

        def wait(self, gen: Any, *_how: Any, **_named: Any) -> Any:
            """Run a protocol exchange of psycopg to its end.

            Raises OperationalError one second after the server's own limit.
            """
            try:
                return super().wait(gen, timeout=self.seconds[self.autocommit])
            except psycopg.OperationalError:
                if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                    # A late answer must not be read as the answer to the next query.
                    self.pgconn.finish()
                raise

    milliseconds = int(timeout * 1000)
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    options = " ".join(f"-c {limit}={milliseconds}" for limit in limits)

    def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> Any:
        parameters = {
            "connect_timeout": int(min(max(timeout, CONNECT_SECONDS[0]), CONNECT_SECONDS[1])),
            "application_name": "xcray",
            # Texts of a database without an encoding (SQL_ASCII) would arrive as bytes.
            "client_encoding": "utf8",
            **named,
        }
        parameters["options"] = f"{options} {named.get('options', '')}".strip()
        return TimeoutConnection.connect(**parameters)

    return connect


@contextmanager
def extended_timeout(connection: Connection, seconds: float) -> Iterator[None]:
    """Raise the client-side limit of a connection to `seconds` within the block.

    The server's own timeouts are set by the caller.
    """
    driver: Any = connection.connection.dbapi_connection
    before, driver.seconds = driver.seconds, (seconds + 1.0, seconds + 1.0)
    try:
        yield
    finally:
        driver.seconds = before
