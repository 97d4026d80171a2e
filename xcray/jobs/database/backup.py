"""Online backup of the embedded store, with all that was acknowledged before the copy started."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError
from xcray.jobs.database.compatibility import check_compatibility
from xcray.jobs.database.engine import SQLITE, Database
from xcray.storage.atomic import sync_path


def back_up(url: str, path: Path, *, replace: bool = False) -> dict[str, Any]:
    """Copy an SQLite store to a file and return its path, revision, number of jobs and bytes.

    Uses SQLite's backup API, so writers continue meanwhile. The file appears once it is complete,
    checked and on disk. Raises ParameterError for another database or an address without a store,
    NotFound if the folder does not exist, Conflict if the file exists and `replace` is false,
    Corrupt if the copy fails the integrity check.
    """
    database = Database(url)
    try:
        if database.kind != SQLITE:
            raise ParameterError(
                "only SQLite stores can be copied: use pg_dump for PostgreSQL (docs/store.md)"
            )
        with database.read() as connection:
            if check_compatibility(connection).revision is None:
                raise ParameterError(
                    "there is no job store at that address: give its home or its URL"
                )
        if path.exists() and not replace:
            raise Conflict(
                f"{path.name} exists already: choose another file, or replace=true",
                code="EXISTS",
            )
        if not path.parent.is_dir():
            raise NotFound(f"there is no folder {path.parent} to write {path.name} to")
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            summary = _copy_database(database, temporary)
            temporary.replace(path)
            sync_path(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    finally:
        database.close()
    return {"file": str(path), **summary}


def _copy_database(database: Database, temporary: Path) -> dict[str, Any]:
    """Copy the store to a temporary file in one piece, without a write-ahead log."""
    # readable by its owner only
    os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
    source, target = database.raw_connection(), sqlite3.connect(temporary)
    try:
        source.driver_connection.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
        if target.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise Corrupt(
                "the copy of the job store fails its integrity check: check the disk of the store",
                code="STORE_CORRUPT",
            )
        jobs = target.execute("SELECT count(*) FROM jobs").fetchone()[0]
        revision = target.execute("SELECT revision FROM store_schema").fetchone()
    finally:
        target.close()
        source.close()
    sync_path(temporary)
    return {"revision": revision[0], "jobs": jobs, "bytes": temporary.stat().st_size}
