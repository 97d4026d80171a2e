"""Steps that upgrade the store of an earlier release, run by `upgrade` in one transaction each.

An empty store gets the tables of `schema.py` at once. A change of them after a release needs a step
here that makes the same change: `tests/jobs/database/test_migrations.py` fails without it. A step
that only adds (tables, nullable or defaulted columns, indexes that are not unique) names an earlier
program as `oldest`, and old programs continue while it runs. A step that removes, renames, or
changes the meaning of a column names a program that does not use it, or itself. So changing what
exists takes two releases: add and use both, then remove. A step is plain SQL for both databases;
PostgreSQL's writers wait while it creates an index.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FIRST: Final = 1  # revision of the first release


class MigrationStep(NamedTuple):
    """A step to the next revision. Published steps never change.

    revision: of its result, one more than that of the step before. oldest: the oldest program that
    can use the result, by its revision. statements: SQL for SQLite and PostgreSQL.
    """

    revision: int
    oldest: int
    statements: tuple[str, ...]


STEPS: Final[tuple[MigrationStep, ...]] = ()
HEAD: Final = STEPS[-1].revision if STEPS else FIRST  # of this program's store
