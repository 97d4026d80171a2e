"""The schema compatibility check: which program versions can use a store.

A program is identified by the schema revision of its own store, `HEAD`. A store records its
revision and the oldest program that can use it, as its migration steps declare
(`xcray.jobs.database.migrations`). A program therefore uses a store to which newer programs have
only added, and rejects any other: it could write data that no other program finds, or misread keys.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Unavailable
from xcray.jobs.database.migrations import HEAD
from xcray.jobs.database.schema import JOBS, STORE_SCHEMA

LOG: Final = logging.getLogger(__name__)
SCHEMA_NEWER: Final = "SCHEMA_NEWER"
SCHEMA_OLDER: Final = "SCHEMA_OLDER"


class Compatibility(NamedTuple):
    """The revision of a store and the oldest program that it supports; None for an empty store."""

    revision: int | None
    oldest: int | None

    def supports(self, program: int) -> bool:
        """Return whether a program can use the store."""
        if self.revision is None or self.oldest is None:
            return False
        return self.oldest <= program <= self.revision


def read_compatibility(connection: Connection) -> Compatibility:
    """Return what a store records about its schema. Raises Conflict for tables of others."""
    tables = set(sa.inspect(connection).get_table_names())
    if STORE_SCHEMA.name in tables and (row := connection.execute(sa.select(STORE_SCHEMA)).first()):
        return Compatibility(*row)
    if JOBS.name in tables:
        raise Conflict(
            "the database has tables that are not a store of xcray: choose another home, or an"
            " empty database as XCRAY_STORE",
            code="STORE_NOT_EMPTY",
        )
    return Compatibility(None, None)


def check_compatibility(connection: Connection, program: int = HEAD) -> Compatibility:
    """Return the compatibility of a store that is not too new for a program.

    Raises Conflict, code SCHEMA_NEWER, if the store no longer supports the program.
    """
    compatibility = read_compatibility(connection)
    if (compatibility.revision or 0) > program and not compatibility.supports(program):
        raise unsupported(compatibility, program)
    return compatibility


def require_support(connection: Connection) -> Compatibility:
    """Return the compatibility of a store that supports this program.

    Raises Conflict, code SCHEMA_NEWER or SCHEMA_OLDER, for any other.
    """
    compatibility = read_compatibility(connection)
    if not compatibility.supports(HEAD):
        raise unsupported(compatibility)
    return compatibility


def unsupported(compatibility: Compatibility, program: int = HEAD) -> Conflict:
    """Return the error for a store that does not support a program."""
    revision, oldest = compatibility
    if (revision or 0) > program:
        return Conflict(
            f"the store is at schema revision {revision} and supports programs from {oldest} on,"
            f" this xcray is at {program}: use a newer xcray",
            code=SCHEMA_NEWER,
            revision=revision,
            oldest=oldest,
        )
    state = "is empty" if revision is None else f"is at revision {revision}"
    return Conflict(
        f"the store {state}, this xcray needs {program}: run `xcray store upgrade`"
        " (with XCRAY_STORE_UPGRADE=true every start does)",
        code=SCHEMA_OLDER,
    )


class SchemaGuard:
    """The check that runs in the transactions of an open store.

    Raises Unavailable, code SCHEMA_NEWER or SCHEMA_OLDER, if this program can no longer use the
    store. It costs one small query while the schema is unchanged.
    """

    def __init__(self) -> None:
        # the last revision found to support this program
        self._supported_revision: int | None = None

    def __call__(self, connection: Connection) -> None:
        """Check the store. Raises Unavailable if it does not support this program."""
        revision = connection.execute(sa.select(STORE_SCHEMA.c.revision)).scalar()
        if revision is not None and revision == self._supported_revision:
            return
        try:
            compatibility = require_support(connection)
        except Conflict as error:
            raise Unavailable(error.message, code=error.code) from None
        if compatibility.revision != HEAD:
            LOG.info(
                "the store is at revision %s, which supports this program at revision %s",
                compatibility.revision,
                HEAD,
            )
        self._supported_revision = compatibility.revision
