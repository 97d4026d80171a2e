"""PostgreSQL connections that do not wait for ever: on the server by its own timeouts, here by a clock beside the socket.

A server that is stopped, or a network that swallows packets, sends nothing at all: then only this side can end the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection

CONNECT_SECONDS: Final = (2, 4)  # libpq takes no less than 2 in earnest
PING_SECONDS: Final = 2.0  # a question that waits for no lock
LEAST_SECONDS: Final = 1.0


def connector(busy_seconds: float) -> Callable[[Any, Any, Any, dict[str, Any]], Any]:
    """What SQLAlchemy calls to connect (its event do_connect): psycopg, with an end to every wait.

    Settings that the address names itself (connect_timeout, options, sslmode, ...) are kept.
    """
    import psycopg
    from psycopg.pq import TransactionStatus

    longest = max(LEAST_SECONDS, busy_seconds)

    class Patient(psycopg.Connection[Any]):
        """A connection that is closed when the server is silent for too long.

        seconds: how long an answer may take, in a transaction, and outside, where only SQLAlchemy speaks, asking a connection that
        lay idle whether it still lives.
        """

        seconds = (longest + 1.0, min(longest, PING_SECONDS))

        def wait(self, gen: Any, *_how: Any, **_named: Any) -> Any:
            """Run a conversation of psycopg's to its end. Raises OperationalError after a second more than the server may take."""
            try:
                return super().wait(gen, timeout=self.seconds[self.autocommit])
            except psycopg.OperationalError:
                if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                    self.pgconn.finish()  # an answer that comes later must not be taken for that to another question
                raise

    milliseconds = int(longest * 1000)
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    options = " ".join(f"-c {limit}={milliseconds}" for limit in limits)

    def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> Any:
        wished = {
            "connect_timeout": int(min(max(longest, CONNECT_SECONDS[0]), CONNECT_SECONDS[1])),
            "application_name": "xcray",
            "client_encoding": "utf8",  # texts of a database without an encoding (SQL_ASCII) would come as bytes
            **named,
        }
        wished["options"] = f"{options} {named.get('options', '')}".strip()
        return Patient.connect(**wished)

    return connect


@contextmanager
def unhurried(connection: Connection, seconds: float) -> Iterator[None]:
    """Let this side of a connection of `connector` wait for so long. The server's own timeouts are the caller's to set."""
    ours: Any = connection.connection.dbapi_connection
    before, ours.seconds = ours.seconds, (seconds + 1.0, seconds + 1.0)
    try:
        yield
    finally:
        ours.seconds = before
