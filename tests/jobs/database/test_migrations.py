"""Rules for migration steps: each declares the oldest program that keeps working after it.

A step is judged by its effect: a store with rows in every table is upgraded, and the tables as they
were before are still read and written, as the supported programs would.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from tests.support.next_release import next_steps, upgrade_to
from xcray.jobs.database.engine import Database
from xcray.jobs.database.migrations import FIRST, HEAD, STEPS, MigrationStep

# The tables of revision 1 (`sqlite3 xcray.db .dump` of an empty store), saved with the first step.
FIRST_RELEASE = Path(__file__).with_name("first_release.sql")


def create_first_release(url: str) -> None:
    """Create the store of the first release, unless its tables are still those of the program."""
    if STEPS:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(FIRST_RELEASE.read_text())


def tables_of(connection: Connection) -> dict[str, sa.Table]:
    """Return all current tables except that of the schema."""
    result = sa.MetaData()
    result.reflect(connection)
    return {name: table for name, table in result.tables.items() if name != "store_schema"}


def row_of(table: sa.Table, n: int) -> dict[str, Any]:
    """Return a row with a distinct value in every column."""
    return {column.name: _value(column.type, f"{column.name}-{n}", n) for column in table.columns}


def _value(kind: Any, text: str, n: int) -> Any:
    if isinstance(kind, sa.Boolean):
        return bool(n % 2)
    if isinstance(kind, sa.JSON):
        return {"n": n}
    return n if isinstance(kind, sa.Integer | sa.Float | sa.Numeric) else text


def unique_columns(connection: Connection, table: str) -> set[str]:
    """Return the columns of a table that must be unique."""
    schema = sa.inspect(connection)
    unique = [each["column_names"] for each in schema.get_unique_constraints(table)]
    unique += [each["column_names"] for each in schema.get_indexes(table) if each["unique"]]
    return set(map(str, unique))


def used(table: sa.Table, takes: Collection[str]) -> sa.Table:
    """Return a table without the columns that the step removes."""
    columns = (c for c in table.columns if f"{table.name}.{c.name}" not in takes)
    return sa.Table(table.name, sa.MetaData(), *(sa.Column(c.name, c.type) for c in columns))


def offences_of(steps: Sequence[MigrationStep], url: str) -> Iterator[str]:
    """Yield what the last step breaks for programs of the revision before it."""
    create_first_release(url)
    upgrade_to(steps[:-1], url)
    database, step = Database(url), steps[-1]
    with database.write() as connection:
        tables = tables_of(connection)
        unique = {name: unique_columns(connection, name) for name in tables}
        for table in tables.values():
            connection.execute(table.insert().values(row_of(table, 1)))
        before = {
            name: used(table, step.takes)
            for name, table in tables.items()
            if name not in step.takes
        }
        rows = {name: connection.execute(sa.select(table)).all() for name, table in before.items()}
    upgrade_to(steps, url)
    with database.write() as connection:
        for name, table in before.items():
            try:
                with connection.begin_nested():
                    yield from changes(connection, table, unique[name], rows[name])
            except sa.exc.SQLAlchemyError as error:  # the program's error
                yield f"{name} can't be used as before: {error}"[:300]
    database.close()


def changes(
    connection: Connection, table: sa.Table, unique: set[str], rows: list[Any]
) -> Iterator[str]:
    """Yield the differences that a program sees in a table that it knows from before the step."""
    for columns in unique_columns(connection, table.name) - unique:
        yield f"{table.name} must have unique {columns}"
    if connection.execute(sa.select(table)).all() != rows:
        yield f"{table.name} rows read otherwise"
    written = row_of(table, 2)
    connection.execute(table.insert().values(written))
    if connection.execute(sa.select(table)).all() != [*rows, tuple(written.values())]:
        yield f"{table.name} does not keep what is written"


def columns_of(url: str) -> set[tuple[str, ...]]:
    """Return table, name, type and whether it can be null of every column of a store."""
    database = Database(url)
    with database.read() as connection:
        tables = tables_of(connection).values()
    database.close()
    return {
        (table.name, each.name, str(each.type), str(each.nullable))
        for table in tables
        for each in table.columns
    }


def test_the_steps_give_the_tables_of_the_program(tmp_path: Path) -> None:
    upgraded, created = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    create_first_release(upgraded)
    for url in (upgraded, created):
        upgrade_to(STEPS, url)
    assert columns_of(upgraded) == columns_of(created)


def test_every_step_declares_its_oldest_program_and_stays_compatible(tmp_path: Path) -> None:
    assert [step.revision for step in STEPS] == list(range(FIRST + 1, HEAD + 1))
    for n, step in enumerate(STEPS, start=1):
        assert FIRST <= step.oldest <= step.revision
        if step.oldest < step.revision:
            assert [*offences_of(STEPS[:n], f"sqlite:///{tmp_path / str(n)}.db")] == []


GOOD = {
    "a column that may be null": "ALTER TABLE jobs ADD COLUMN colour TEXT",
    "a column that the database fills": "ALTER TABLE jobs ADD COLUMN tries INTEGER DEFAULT 0 NOT NULL",
    "a table": "CREATE TABLE places (id TEXT PRIMARY KEY)",
    "an index": "CREATE INDEX jobs_name ON jobs (name)",
}
BAD = {
    "turns can't be used as before": "DROP TABLE turns",
    "jobs can't be used as before: .*no such column": "ALTER TABLE jobs RENAME COLUMN beats TO pulses",
    r"must have unique \['name'\]": "CREATE UNIQUE INDEX one_name ON datasets (name)",
    "jobs rows read otherwise": "UPDATE jobs SET status = 'WAITING'",
    "does not keep what is written": (
        "CREATE TRIGGER t AFTER INSERT ON turns BEGIN UPDATE turns SET turn = 7; END"
    ),
}


@pytest.mark.parametrize("statement", GOOD.values(), ids=GOOD)
def test_compatible_steps_are_accepted(tmp_path: Path, statement: str) -> None:
    assert [*offences_of(next_steps((statement,)), f"sqlite:///{tmp_path / 'a.db'}")] == []


@pytest.mark.parametrize(("why", "statement"), BAD.items(), ids=BAD)
def test_incompatible_steps_are_rejected(tmp_path: Path, why: str, statement: str) -> None:
    results = [*offences_of(next_steps((statement,)), f"sqlite:///{tmp_path / 'a.db'}")]
    assert any(re.search(why, each) for each in results), results


def test_what_a_step_takes_is_not_used(tmp_path: Path) -> None:
    (step,) = next_steps(("ALTER TABLE keys DROP COLUMN last_used", "DROP TABLE turns"))[
        len(STEPS) :
    ]
    url = f"sqlite:///{tmp_path / 'a.db'}"
    takes = step._replace(takes=("keys.last_used", "turns"))
    assert [*offences_of((*STEPS, takes), url)] == []
