"""A copy of the embedded store while it is in use: what was acknowledged before the copy began is in it, whole."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from xcray.errors import Conflict, Corrupt, ParameterError
from xcray.jobs.database.compatibility import checked
from xcray.jobs.database.engine import SQLITE, Database
from xcray.storage.atomic import sync_path


def back_up(url: str, path: Path, *, replace: bool = False) -> dict[str, Any]:
    """Copy a store of SQLite to a file, by SQLite's own backup; its revision, jobs and bytes. Writers go on meanwhile.

    The file appears when it is whole, checked and on disk. Raises ParameterError for another database, Conflict when the file is
    there and may not be replaced, Corrupt when the copy does not hold together.
    """
    database = Database(url)
    try:
        if database.kind != SQLITE:
            raise ParameterError(
                "this copies stores of SQLite only: use pg_dump for PostgreSQL (docs/store.md)"
            )
        with database.read() as connection:
            if checked(connection).revision is None:
                raise ParameterError(
                    "there is no job store at that address: name its home or its URL"
                )
        if path.exists() and not replace:
            raise Conflict(
                f"{path.name} is there already: name another file, or allow to replace it",
                code="EXISTS",
            )
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            facts = _copy(database, aside)
            aside.replace(path)
            sync_path(path.parent)
        finally:
            aside.unlink(missing_ok=True)
    finally:
        database.close()
    return {"file": str(path), **facts}


def _copy(database: Database, aside: Path) -> dict[str, Any]:
    """The copy, under a first name, in one file without a write-ahead log."""
    os.close(
        os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    )  # the store is its owner's
    source, target = database.raw(), sqlite3.connect(aside)
    try:
        source.driver_connection.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
        if target.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise Corrupt(
                "the copy of the job store does not hold together: look at the disk of the store",
                code="STORE_CORRUPT",
            )
        jobs = target.execute("SELECT count(*) FROM jobs").fetchone()[0]
        revision = target.execute("SELECT version_num FROM alembic_version").fetchone()
    finally:
        target.close()
        source.close()
    sync_path(aside)
    return {"revision": revision[0], "jobs": jobs, "bytes": aside.stat().st_size}
