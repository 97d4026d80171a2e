"""Migration steps of simulated next releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcray.jobs.database.engine import Database
from xcray.jobs.database.migrations import HEAD, STEPS, MigrationStep
from xcray.jobs.database.upgrade import upgrade_database


def next_steps(*statements: Sequence[str], oldest: int = HEAD) -> tuple[MigrationStep, ...]:
    """Return the existing steps, and one more for each group of statements."""
    added = (
        MigrationStep(HEAD + n, oldest, tuple(group)) for n, group in enumerate(statements, start=1)
    )
    return (*STEPS, *added)


# two steps that only add
ADDED = next_steps(
    (
        "ALTER TABLE jobs ADD COLUMN colour TEXT",
        "ALTER TABLE jobs ADD COLUMN tries INTEGER DEFAULT 0 NOT NULL",
        "ALTER TABLE keys ADD COLUMN tries INTEGER DEFAULT 0 NOT NULL",
        "CREATE TABLE places (id TEXT PRIMARY KEY)",
    ),
    ("CREATE INDEX jobs_colour ON jobs (colour)",),
)
FOLLOWING = ADDED[-1].revision


def upgrade_to(steps: Sequence[MigrationStep], url: str, **how: Any) -> int | None:
    """Upgrade a store and return its previous revision. how: see `upgrade_database`."""
    database = Database(url)
    try:
        return upgrade_database(database, steps=steps, **how)
    finally:
        database.close()
