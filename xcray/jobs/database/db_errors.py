"""Translation of database errors into errors of xcray.

The messages contain no SQL, values, hosts, paths or passwords.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, TimeoutError

from xcray.errors import Corrupt, InputError, Refused, Unavailable, XcrayError

LOG: Final = logging.getLogger(__name__)
STORE_CODE: Final = "STORE"
MAX_LOG_CHARS: Final = 300  # characters of a driver's message in a log

DISK_FULL: Final = ("DISK_FULL", "the disk of the job store is full: make room")
STORE_READ_ONLY: Final = (
    "STORE_READ_ONLY",
    "the job store is read-only: give the service write access",
)
STORE_LOCKED: Final = (
    STORE_CODE,
    "the job store can't answer now (other writers hold it): try again",
)

# SQLite's primary codes, by https://www.sqlite.org/rescode.html
SQLITE_ERRORS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_BUSY: STORE_LOCKED,
    sqlite3.SQLITE_LOCKED: STORE_LOCKED,
    sqlite3.SQLITE_READONLY: STORE_READ_ONLY,
    sqlite3.SQLITE_PERM: STORE_READ_ONLY,
    sqlite3.SQLITE_FULL: DISK_FULL,
    sqlite3.SQLITE_IOERR: (
        STORE_CODE,
        "the job store can't answer now (its disk reports an error): check the disk",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        STORE_CODE,
        "the file of the job store can't be opened: check its folder and its permissions",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "STORE_CORRUPT",
        "the file of the job store is damaged: restore it from a backup (docs/store.md)",
    ),
    sqlite3.SQLITE_NOTADB: (
        "STORE_CORRUPT",
        "the file of the job store is not an SQLite database: use another, or restore it",
    ),
}
# PostgreSQL's codes, by its Appendix A. Two characters stand for a class of codes.
POSTGRESQL_ERRORS: Final[dict[str, tuple[str, str]]] = {
    "25006": STORE_READ_ONLY,
    "53100": DISK_FULL,
    "53300": (
        STORE_CODE,
        "the job store has no free connection: try again (PostgreSQL's max_connections)",
    ),
    "55P03": STORE_LOCKED,
    "57014": (STORE_CODE, "the job store took too long: try again"),
    "3D000": (STORE_CODE, "the database of the job store does not exist: create it"),
    "42501": (
        "STORE_RIGHTS",
        "the job store denies access: grant its user rights on the database and the schema",
    ),
    "28": (
        "STORE_LOGIN",
        "the job store rejects the login: check the user and the password in its address",
    ),
}
# serialisation failure, deadlock: the whole transaction was rolled back
ROLLBACK_STATES: Final = (
    "40001",
    "40P01",
)
NO_CONNECTION: Final = (
    STORE_CODE,
    "the job store can't answer now (no connection to it): try again",
)


class RetryableTransaction(Unavailable):
    """The transaction was rolled back, or never started: it is safe to run it again."""


class LockTimeout(Unavailable):
    """Other transactions hold a lock that was needed: the transaction was rolled back."""


def translate_error(error: DBAPIError | TimeoutError, *, committing: bool = False) -> XcrayError:
    """Return the error of xcray for an error of the driver.

    committing: the error came from the commit, so the outcome of the transaction is unknown and it
    must not be run again.
    """
    driver: Any = getattr(error, "orig", None)
    LOG.warning("store: %s %s", type(driver or error).__name__, _error_name(driver))
    if is_unresponsive(error):
        # hosts and users are logged for operators only
        LOG.warning("store: %s", str(driver).partition("\n")[0][:MAX_LOG_CHARS])
    if driver is None:
        return Unavailable(
            "the job store can't answer now (no free connection): try again", code=STORE_CODE
        )
    entry = _lookup(driver)
    if entry is None and _is_unstorable(driver):
        return InputError(
            "the job store can't store a character of this text (NUL?): remove it",
            code="UNICODE",
        )
    gone = getattr(error, "connection_invalidated", False) and not is_unresponsive(error)
    code, sentence = entry or (
        NO_CONNECTION
        if gone or is_unresponsive(error)
        else (STORE_CODE, "the job store can't answer now: try again; see the log of the store")
    )
    if _sqlstate(driver) in ROLLBACK_STATES or (gone and not committing):
        return RetryableTransaction(sentence if entry else NO_CONNECTION[1], code=STORE_CODE)
    if entry is STORE_LOCKED:
        return LockTimeout(sentence, code=code)
    kinds: dict[str, type[XcrayError]] = {"DISK_FULL": Refused, "STORE_CORRUPT": Corrupt}
    return kinds.get(code, Unavailable)(sentence, code=code)


def is_unresponsive(error: DBAPIError | TimeoutError) -> bool:
    """Return whether PostgreSQL, or the network, did not answer at all or not in time."""
    driver: Any = getattr(error, "orig", None)
    name = type(driver).__name__
    if name not in ("OperationalError", "ConnectionTimeout", "_WaitTimeout") or hasattr(
        driver, "sqlite_errorcode"
    ):
        return False
    return not _sqlstate(driver) and (
        "Timeout" in name or not getattr(error, "connection_invalidated", False)
    )


def _lookup(driver: Any) -> tuple[str, str] | None:
    """Return code and message of a driver's error if the tables above have it."""
    number = getattr(driver, "sqlite_errorcode", None)
    if number is not None:
        return SQLITE_ERRORS.get(number & 0xFF)
    state = _sqlstate(driver)
    return POSTGRESQL_ERRORS.get(state) or POSTGRESQL_ERRORS.get(state[:2])


def _sqlstate(driver: Any) -> str:
    """Return PostgreSQL's error code, or "" if the server did not answer."""
    return str(getattr(driver, "sqlstate", None) or "")


def _error_name(driver: Any) -> str:
    """Return the code of a driver's error for the log."""
    return str(getattr(driver, "sqlite_errorname", None) or _sqlstate(driver) or "")


def _is_unstorable(driver: Any) -> bool:
    """Return whether the value can never be stored."""
    return type(driver).__name__ in ("DataError", "UntranslatableCharacter", "UnicodeEncodeError")
