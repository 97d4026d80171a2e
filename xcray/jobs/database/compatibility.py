"""Which programs may work with a store: the rule by which it is upgraded under those that use it.

A program is called by the revision of its own store, `HEAD`. A store tells its revision, and the oldest program that may work
with it: what its steps say of themselves (`xcray.jobs.database.migrations`). So a program reads and writes a store that newer ones have
only added to, and keeps its hands off any other: it neither writes what nobody would find, nor believes keys that it might misread.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Unavailable
from xcray.jobs.database.schema import HEAD, OLDEST

LOG: Final = logging.getLogger(__name__)
NEWER: Final = "SCHEMA_NEWER"
OLDER: Final = "SCHEMA_OLDER"
MEND: Final = "run `xcray store upgrade` (with XCRAY_STORE_UPGRADE=true every start does)"
VERSION: Final[sa.Select[Any]] = sa.select(sa.column("version_num")).select_from(
    sa.table("alembic_version")
)


class Found(NamedTuple):
    """What a store tells. revision: None for an empty one; oldest: the oldest program it serves, None when it does not say."""

    revision: str | None
    oldest: str | None

    def serves(self, program: str) -> bool:
        """Whether a program may work with it."""
        if self.revision is None or self.revision < program:
            return False
        return self.revision == program or (self.oldest is not None and self.oldest <= program)


def found_in(connection: Connection) -> Found:
    """What a store tells, whoever wrote it."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" in tables:
        revision = connection.execute(VERSION).scalar()
        oldest = (
            connection.execute(sa.select(sa.func.max(OLDEST.c.revision))).scalar()
            if OLDEST.name in tables
            else None
        )
        return Found(revision, oldest)
    if "schema_version" in tables:  # of xcray 0.1, which counted by itself
        number = connection.exec_driver_sql("SELECT version FROM schema_version").scalar()
        return Found(None if number is None else f"{number:04}", None)
    return Found(None, None)


def checked(connection: Connection, program: str = HEAD) -> Found:
    """What a store tells, when it is no newer than a program may use. Raises Conflict, code SCHEMA_NEWER."""
    found = found_in(connection)
    if found.revision is not None and found.revision > program and not found.serves(program):
        raise Conflict(
            too_new(found, program), code=NEWER, revision=found.revision, oldest=found.oldest
        )
    return found


def too_new(found: Found, program: str = HEAD) -> str:
    """The sentence for a store that is too new."""
    served = (
        "serves no older one" if found.oldest is None else f"serves programs from {found.oldest} on"
    )
    return f"the store is at schema revision {found.revision} and {served}, this xcray knows {program}: use a newer xcray"


def too_old(found: Found, program: str = HEAD) -> str:
    """The sentence for a store that has to be upgraded first."""
    state = "is empty" if found.revision is None else f"is at revision {found.revision}"
    return f"the store {state}, this xcray needs {program}: {MEND}"


class Guard:
    """Asked in transactions of an open store: raises Unavailable, code SCHEMA_NEWER or SCHEMA_OLDER, when this program has to
    keep its hands off it by now. One small question, while nothing has changed."""

    def __init__(self, program: str = HEAD) -> None:
        self._program = program
        self._known: str | None = None  # the revision that was found to serve us

    def __call__(self, connection: Connection) -> None:
        """Ask."""
        if connection.execute(VERSION).scalar() == self._known:
            return
        found = found_in(connection)
        if not found.serves(self._program):
            newer = found.revision is not None and found.revision > self._program
            sentence = too_new(found, self._program) if newer else too_old(found, self._program)
            raise Unavailable(sentence, code=NEWER if newer else OLDER)
        if found.revision != self._program:
            LOG.info(
                "the store is at revision %s, and serves this program, which knows %s",
                found.revision,
                self._program,
            )
        self._known = found.revision
