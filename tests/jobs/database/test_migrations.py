"""The tables of the program are those of the first release after all migration steps."""

import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from tests.support.next_release import upgrade_to
from xcray.jobs.database.migrations import FIRST, HEAD, STEPS

# The tables of 0.1.0, an empty store's `sqlite3 xcray.db .dump`. This file never changes.
FIRST_RELEASE = Path(__file__).with_name("first_release.sql")


def schema_of(url: str) -> list[str]:
    """Return every column, index and unique constraint of a store as a text."""
    engine = sa.create_engine(url)
    schema = sa.inspect(engine)
    lines = [
        f"{table} {part}"
        for table in schema.get_table_names()
        for part in (
            *(
                f"{each['name']} {each['type']} {each['nullable']} {each['default']}"
                for each in schema.get_columns(table)
            ),
            schema.get_pk_constraint(table)["constrained_columns"],
            *(f"unique {each['column_names']}" for each in schema.get_unique_constraints(table)),
            *(
                f"{each['name']} {each['column_names']} {each['unique']}"
                for each in schema.get_indexes(table)
            ),
        )
    ]
    engine.dispose()
    return sorted(lines)


def test_the_steps_lead_from_the_first_release_to_the_tables_of_the_program(tmp_path: Path) -> None:
    upgraded, created = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript(FIRST_RELEASE.read_text())
    for url in (upgraded, created):
        upgrade_to(STEPS, url)
    assert schema_of(upgraded) == schema_of(created)


def test_every_step_declares_its_oldest_program() -> None:
    assert [step.revision for step in STEPS] == list(range(FIRST + 1, HEAD + 1))
    assert all(FIRST <= step.oldest <= step.revision for step in STEPS)
