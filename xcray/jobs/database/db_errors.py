"""What a database complains of, in words for those who ask the service: no SQL, no values, no hosts, no paths, no passwords."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, TimeoutError

from xcray.errors import Corrupt, InputError, Refused, Unavailable, XcrayError

LOG: Final = logging.getLogger(__name__)
STORE: Final = "STORE"
LONGEST: Final = 300  # characters of a driver's complaint in a log

FULL: Final = ("DISK_FULL", "the disk of the job store is full: make room")
READ_ONLY: Final = (
    "STORE_READ_ONLY",
    "the job store can only be read now: let the service write to it",
)
LOCKED: Final = (STORE, "the job store can't answer now (other writers hold it): try again")

# SQLite's primary codes, by https://www.sqlite.org/rescode.html
OF_SQLITE: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_IOERR: (
        STORE,
        "the job store can't answer now (its disk reports an error): look at the disk, then try again",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        STORE,
        "the file of the job store can't be opened: look at its folder and its rights",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "STORE_CORRUPT",
        "the file of the job store is damaged: restore it from a backup (docs/store.md)",
    ),
    sqlite3.SQLITE_NOTADB: (
        "STORE_CORRUPT",
        "the file of the job store is no SQLite database: name another, or restore it",
    ),
}
# PostgreSQL's codes, by its Appendix A; two letters and digits stand for a class of them
OF_POSTGRESQL: Final[dict[str, tuple[str, str]]] = {
    "25006": READ_ONLY,
    "53100": FULL,
    "53300": (
        STORE,
        "the job store has no connection left: try again (PostgreSQL's max_connections)",
    ),
    "55P03": LOCKED,
    "57014": (STORE, "the job store took too long: try again"),
    "3D000": (STORE, "the database of the job store does not exist: create it"),
    "42501": (
        "STORE_RIGHTS",
        "the job store refuses: its user lacks a right on the database or the schema",
    ),
    "28": (
        "STORE_LOGIN",
        "the job store refuses the login: look at the user and the password of its address",
    ),
}
UNDONE: Final = (
    "40001",
    "40P01",
)  # serialisation failure, deadlock: the transaction was undone as a whole
SILENT: Final = (STORE, "the job store can't answer now (no connection to it): try again")


class Again(Unavailable):
    """The database undid the transaction, or never began it: doing it once more is safe."""


class Locked(Unavailable):
    """Others hold what a transaction needs: it was undone as a whole."""


def in_words(error: DBAPIError | TimeoutError, *, committing: bool = False) -> XcrayError:
    """The error for a driver's; whether its transaction may be done again depends on `committing`: then nobody knows its end."""
    driver: Any = getattr(error, "orig", None)
    LOG.warning("store: %s %s", type(driver or error).__name__, _code_of(driver))
    if is_silence(error):
        LOG.warning(
            "store: %s", str(driver).partition("\n")[0][:LONGEST]
        )  # hosts and users are for operators only
    if driver is None:
        return Unavailable(
            "the job store can't answer now (no free connection): try again", code=STORE
        )
    known = _known(driver)
    if known is None and _is_foreign(driver):
        return InputError(
            "the job store can't hold this: a text has a character that it does not know (NUL?)",
            code="UNICODE",
        )
    gone = getattr(error, "connection_invalidated", False) and not is_silence(error)
    code, sentence = known or (
        SILENT
        if gone or is_silence(error)
        else (STORE, "the job store can't answer now: try again; its log says more")
    )
    if _state(driver) in UNDONE or (gone and not committing):
        return Again(sentence if known else SILENT[1], code=STORE)
    if known is LOCKED:
        return Locked(sentence, code=code)
    kinds: dict[str, type[XcrayError]] = {"DISK_FULL": Refused, "STORE_CORRUPT": Corrupt}
    return kinds.get(code, Unavailable)(sentence, code=code)


def is_silence(error: DBAPIError | TimeoutError) -> bool:
    """Whether PostgreSQL, or what lies between, did not answer at all: not when it was called, or for too long."""
    driver: Any = getattr(error, "orig", None)
    name = type(driver).__name__
    if name not in ("OperationalError", "ConnectionTimeout", "_WaitTimeout") or hasattr(
        driver, "sqlite_errorcode"
    ):
        return False
    return not _state(driver) and (
        "Timeout" in name or not getattr(error, "connection_invalidated", False)
    )


def _known(driver: Any) -> tuple[str, str] | None:
    """Code and sentence of a driver's error that the tables above have."""
    number = getattr(driver, "sqlite_errorcode", None)
    if number is not None:
        return OF_SQLITE.get(number & 0xFF)
    state = _state(driver)
    return OF_POSTGRESQL.get(state) or OF_POSTGRESQL.get(state[:2])


def _state(driver: Any) -> str:
    """PostgreSQL's code of an error, empty when it has none: the server did not speak."""
    return str(getattr(driver, "sqlstate", None) or "")


def _code_of(driver: Any) -> str:
    """What a log may say of it."""
    return str(getattr(driver, "sqlite_errorname", None) or _state(driver) or "")


def _is_foreign(driver: Any) -> bool:
    """Whether a value can't be stored, whatever is tried."""
    return type(driver).__name__ in ("DataError", "UntranslatableCharacter", "UnicodeEncodeError")
