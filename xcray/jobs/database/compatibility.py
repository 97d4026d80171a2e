"""The schema compatibility check: which program versions can use a store.

A program is identified by the schema revision of its own store, `HEAD`. A store records its
revision and the oldest program that can use it, as its migration steps declare
(`xcray.jobs.database.migrations`). A program therefore uses a store to which newer programs have
only added, and rejects any other: it could write data that no other program finds, or misread keys.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, Unavailable
from xcray.jobs.database.schema import FIRST, HEAD, JOBS, OLDEST_PROGRAM

LOG: Final = logging.getLogger(__name__)
SCHEMA_NEWER: Final = "SCHEMA_NEWER"
SCHEMA_OLDER: Final = "SCHEMA_OLDER"
UPGRADE_HINT: Final = "run `xcray store upgrade` (with XCRAY_STORE_UPGRADE=true every start does)"
UNRELEASED: Final = (
    f"the store is from before the first release of xcray (schema {FIRST}) and can't be upgraded:"
    " move it away, or choose another home or XCRAY_STORE, and a new store is created"
)
REVISION_QUERY: Final[sa.Select[Any]] = sa.select(sa.column("version_num")).select_from(
    sa.table("alembic_version")
)


class Compatibility(NamedTuple):
    """The revision of a store and the oldest program that it supports.

    revision: None for an empty store, "" for one without a revision, which is older than any.
    oldest: None if the store does not record it.
    """

    revision: str | None
    oldest: str | None

    def supports(self, program: str) -> bool:
        """Return whether a program can use the store."""
        if self.revision is None or self.revision < program:
            return False
        return self.revision == program or (self.oldest is not None and self.oldest <= program)

    @property
    def is_unreleased(self) -> bool:
        """Whether the store is from before the first release, so that no program can use it."""
        return self.revision is not None and self.revision < FIRST


def read_compatibility(connection: Connection) -> Compatibility:
    """Return what a store records about its schema, whichever version wrote it."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        return Compatibility("" if JOBS.name in tables else None, None)
    # First the revision: if an upgrade ends in between, the old one with the new `oldest` is safe.
    revision = connection.execute(REVISION_QUERY).scalar()
    oldest = (
        connection.execute(sa.select(sa.func.max(OLDEST_PROGRAM.c.revision))).scalar()
        if OLDEST_PROGRAM.name in tables
        else None
    )
    return Compatibility(revision, oldest)


def check_compatibility(connection: Connection, program: str = HEAD) -> Compatibility:
    """Return the compatibility of a store that is neither too new nor too old for a program.

    Raises Conflict: SCHEMA_NEWER if the store no longer supports the program, SCHEMA_OLDER if it is
    from before the first release.
    """
    compatibility = read_compatibility(connection)
    if compatibility.is_unreleased:
        raise Conflict(older_message(compatibility, program), code=SCHEMA_OLDER)
    if (
        compatibility.revision is not None
        and compatibility.revision > program
        and not compatibility.supports(program)
    ):
        raise Conflict(
            newer_message(compatibility, program),
            code=SCHEMA_NEWER,
            revision=compatibility.revision,
            oldest=compatibility.oldest,
        )
    return compatibility


def newer_message(compatibility: Compatibility, program: str = HEAD) -> str:
    """Return the error message for a store that is too new."""
    support = (
        "supports no older one"
        if compatibility.oldest is None
        else f"supports programs from {compatibility.oldest} on"
    )
    return (
        f"the store is at schema revision {compatibility.revision} and {support},"
        f" this xcray is at {program}: use a newer xcray"
    )


def older_message(compatibility: Compatibility, program: str = HEAD) -> str:
    """Return the error message for a store that must be upgraded first, or cannot be."""
    if compatibility.is_unreleased:
        return UNRELEASED
    state = (
        "is empty" if compatibility.revision is None else f"is at revision {compatibility.revision}"
    )
    return f"the store {state}, this xcray needs {program}: {UPGRADE_HINT}"


class SchemaGuard:
    """The check that runs in the transactions of an open store.

    Raises Unavailable, code SCHEMA_NEWER or SCHEMA_OLDER, if this program can no longer use the
    store. It costs one small query while the schema is unchanged.
    """

    def __init__(self, program: str = HEAD) -> None:
        self._program = program
        # the last revision found to support this program
        self._supported_revision: str | None = None

    def __call__(self, connection: Connection) -> None:
        """Check the store. Raises Unavailable if it does not support this program."""
        if connection.execute(REVISION_QUERY).scalar() == self._supported_revision:
            return
        compatibility = read_compatibility(connection)
        if not compatibility.supports(self._program):
            newer = compatibility.revision is not None and compatibility.revision > self._program
            sentence = (
                newer_message(compatibility, self._program)
                if newer
                else older_message(compatibility, self._program)
            )
            raise Unavailable(sentence, code=SCHEMA_NEWER if newer else SCHEMA_OLDER)
        if compatibility.revision != self._program:
            LOG.info(
                "the store is at revision %s, which supports this program at revision %s",
                compatibility.revision,
                self._program,
            )
        self._supported_revision = compatibility.revision
