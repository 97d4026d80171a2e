"""Bringing a store to the schema of this program: one transaction under a lock, so that a crash leaves the old or the new.

Any number of processes may open an old store at the same moment: one upgrades, the others find it done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict
from xcray.jobs.engine import SQLITE, Database, parse_url
from xcray.jobs.schema import HEAD

STEPS: Final = Path(__file__).parent / "migrations"
LOCK: Final = 0x78637261  # of PostgreSQL's advisory locks; SQLite's writers wait for each other anyway
MEND: Final = "run `xcray store upgrade` while no older xcray uses it (with XCRAY_STORE_UPGRADE=true every start does)"


def bring_up(database: Database, *, allowed: bool = True) -> str | None:
    """Upgrade a store that is older than this program; the revision that was found, None for an empty database.

    allowed: whether to change anything. Raises Conflict: SCHEMA_NEWER when another xcray has upgraded it beyond this one,
    SCHEMA_OLDER when it would have to be upgraded and that is not allowed.
    """
    with database.read() as connection:
        found = checked(connection)
    if found == HEAD:
        return found
    if not allowed:
        state = "is empty" if found is None else f"is at revision {found}"
        raise Conflict(f"the store {state}, this xcray needs {HEAD}: {MEND}", code="SCHEMA_OLDER")
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        found = checked(connection)  # another process may have done it while we waited
        if found != HEAD:
            _climb(connection, found)
    return found


def look(url: str) -> dict[str, Any]:
    """What is at an address, without changing it: kind, revision (None: empty), `needed`, and whether they are the same, `ready`.

    Raises Unavailable when the database can't be reached; Conflict, code SCHEMA_NEWER.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == SQLITE and not Path(str(parsed.database)).is_file():  # looking must not make one
        return {"store": SQLITE, "revision": None, "needed": HEAD, "ready": False}
    database = Database(url)
    try:
        with database.read() as connection:
            found = checked(connection)
    finally:
        database.close()
    return {"store": database.kind, "revision": found, "needed": HEAD, "ready": found == HEAD}


def checked(connection: Connection) -> str | None:
    """The revision of a store, None for an empty one. Raises Conflict, code SCHEMA_NEWER, for one that is unknown here."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" in tables:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return _known(None if found is None else str(found))
    if "schema_version" in tables:  # of xcray 0.1, which counted by itself
        number = connection.exec_driver_sql("SELECT version FROM schema_version").scalar()
        return _known(None if number is None else f"{number:04}")
    return None


def _known(revision: str | None) -> str | None:
    """A revision up to HEAD. They are numbers of four digits."""
    if revision is not None and revision > HEAD:
        raise Conflict(
            f"the store is at schema revision {revision}, this xcray knows {HEAD}: use a newer xcray", code="SCHEMA_NEWER"
        )
    return revision


def _climb(connection: Connection, found: str | None) -> None:
    """Run the steps that lack, within the caller's transaction."""
    from alembic.config import Config  # here: it takes 0.1 s, and most stores are up to date
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    with EnvironmentContext(config, script, fn=lambda now, _context: script._upgrade_revs(HEAD, now)) as environment:
        environment.configure(connection=connection)
        context = environment.get_context()
        if found is not None and not context.get_current_heads():
            context.stamp(script, found)  # a store of xcray 0.1 is taken over at the version it counted itself
        environment.run_migrations()
