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
from xcray.jobs.database.migrations import FIRST, HEAD
from xcray.jobs.database.schema import JOBS, STORE_SCHEMA

LOG: Final = logging.getLogger(__name__)
SCHEMA_NEWER: Final = "SCHEMA_NEWER"
SCHEMA_OLDER: Final = "SCHEMA_OLDER"
UPGRADE_HINT: Final = "run `xcray store upgrade` (with XCRAY_STORE_UPGRADE=true every start does)"
UNRELEASED: Final = (
    "the store is from before the first release of xcray and can't be upgraded:"
    " move it away, or choose another home or XCRAY_STORE, and a new store is created"
)


class Compatibility(NamedTuple):
    """The revision of a store and the oldest program that it supports; None for an empty store.

    The revision of a store that records none is 0, which is older than any release.
    """

    revision: int | None
    oldest: int | None

    def supports(self, program: int) -> bool:
        """Return whether a program can use the store."""
        if self.revision is None or self.oldest is None:
            return False
        return self.oldest <= program <= self.revision

    @property
    def is_unreleased(self) -> bool:
        """Whether the store is from before the first release, so that no program can use it."""
        return self.revision is not None and self.revision < FIRST


def read_compatibility(connection: Connection) -> Compatibility:
    """Return what a store records about its schema, whichever version wrote it."""
    tables = set(sa.inspect(connection).get_table_names())
    if STORE_SCHEMA.name in tables:
        row = connection.execute(sa.select(STORE_SCHEMA)).one_or_none()
        return Compatibility(0, 0) if row is None else Compatibility(*row)
    return Compatibility(0, 0) if JOBS.name in tables else Compatibility(None, None)


def check_compatibility(connection: Connection, program: int = HEAD) -> Compatibility:
    """Return the compatibility of a store that is neither too new nor too old for a program.

    Raises Conflict: SCHEMA_NEWER if the store no longer supports the program, SCHEMA_OLDER if it is
    from before the first release.
    """
    compatibility = read_compatibility(connection)
    if compatibility.is_unreleased:
        raise Conflict(older_message(compatibility, program), code=SCHEMA_OLDER)
    if (compatibility.revision or 0) > program and not compatibility.supports(program):
        raise Conflict(
            newer_message(compatibility, program),
            code=SCHEMA_NEWER,
            revision=compatibility.revision,
            oldest=compatibility.oldest,
        )
    return compatibility


def newer_message(compatibility: Compatibility, program: int = HEAD) -> str:
    """Return the error message for a store that is too new."""
    return (
        f"the store is at schema revision {compatibility.revision} and supports programs from"
        f" {compatibility.oldest} on, this xcray is at {program}: use a newer xcray"
    )


def older_message(compatibility: Compatibility, program: int = HEAD) -> str:
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

    def __init__(self) -> None:
        # the last revision found to support this program
        self._supported_revision: int | None = None

    def __call__(self, connection: Connection) -> None:
        """Check the store. Raises Unavailable if it does not support this program."""
        revision = connection.execute(sa.select(STORE_SCHEMA.c.revision)).scalar()
        if revision is not None and revision == self._supported_revision:
            return
        compatibility = read_compatibility(connection)
        if not compatibility.supports(HEAD):
            is_newer = (compatibility.revision or 0) > HEAD
            message = newer_message if is_newer else older_message
            raise Unavailable(
                message(compatibility, HEAD),
                code=SCHEMA_NEWER if is_newer else SCHEMA_OLDER,
            )
        if compatibility.revision != HEAD:
            LOG.info(
                "the store is at revision %s, which supports this program at revision %s",
                compatibility.revision,
                HEAD,
            )
        self._supported_revision = compatibility.revision
