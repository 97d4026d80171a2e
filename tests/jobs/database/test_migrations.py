"""Rules for migration steps: each declares the oldest program that keeps working after it.

A step is judged by its effect. A store with rows in every table is migrated, and the tables as they
were before are still read and written, as the supported programs would. The SQL of the step for
PostgreSQL is checked for statements that would block other clients for long.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from tests.support.next_release import NextStep, newest, release
from xcray.jobs.database import upgrade
from xcray.jobs.database.engine import Database
from xcray.jobs.database.schema import FIRST, HEAD
from xcray.jobs.database.upgrade import OWN_SCRIPTS, MigrationScripts

OF_VERSIONS = {"alembic_version", "oldest_program"}
NAMES = re.compile(r"\d{4}")
SLOW = re.compile(
    r"^(UPDATE|DELETE FROM|CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON|DROP INDEX (?!CONCURRENTLY))\s*(\w+)?",
    re.M,
)


def scripts_of(steps: MigrationScripts) -> list[Any]:
    """Return the scripts of the steps, the first step first."""
    return [*ScriptDirectory(str(steps.folder)).walk_revisions("base", steps.head)][::-1]


def undeclared(script: Any) -> list[str]:
    """Return an error if a step declares no oldest program or an invalid one."""
    oldest = getattr(script.module, "oldest", None)
    if not isinstance(oldest, str) or not NAMES.fullmatch(oldest):
        return [f"{script.revision} does not say in `oldest` which older programs keep working"]
    if not FIRST <= oldest <= script.revision:
        return [f"{script.revision} serves {oldest}, which is not before it"]
    return []


def tables_of(connection: Connection) -> dict[str, sa.Table]:
    """Return all current tables except the version tables."""
    result = sa.MetaData()
    result.reflect(connection)
    return {name: table for name, table in result.tables.items() if name not in OF_VERSIONS}


def row_of(table: sa.Table, n: int) -> dict[str, Any]:
    """Return a row with a distinct value in every column that has no default."""
    return {column.name: _value(column.type, f"{column.name}-{n}", n) for column in table.columns}


def _value(kind: Any, text: str, n: int) -> Any:
    if isinstance(kind, sa.Boolean):
        return bool(n % 2)
    if isinstance(kind, sa.JSON):
        return {"n": n}
    return n if isinstance(kind, sa.Integer | sa.Float | sa.Numeric) else text


def rules_of(connection: Connection, table: str) -> set[str]:
    """Return the constraints of a table."""
    schema = sa.inspect(connection)
    unique = [each["column_names"] for each in schema.get_unique_constraints(table)]
    unique += [each["column_names"] for each in schema.get_indexes(table) if each["unique"]]
    out = {f"unique {columns}" for columns in unique} | {
        f"check {each['sqltext']}" for each in schema.get_check_constraints(table)
    }
    return out | {
        f"foreign key {each['constrained_columns']}" for each in schema.get_foreign_keys(table)
    }


def used(table: sa.Table, takes: Collection[str]) -> sa.Table:
    """Return a table without the columns that the step removes."""
    return sa.Table(
        table.name,
        sa.MetaData(),
        *(
            sa.Column(c.name, c.type)
            for c in table.columns
            if f"{table.name}.{c.name}" not in takes
        ),
    )


def offences_of(
    steps: MigrationScripts, step: str, url: str, takes: Collection[str] = ()
) -> list[str]:
    """Return what a step breaks for programs of the revision right before it.

    The store at `url` must have that revision.

    takes: tables and columns (`table.column`) that the step removes and that, according to the
    step, none of those programs uses.
    """
    database = Database(url)
    with database.write() as connection:
        before = tables_of(connection)
        rules = {name: rules_of(connection, name) for name in before}
        for table in before.values():
            connection.execute(table.insert().values(row_of(table, 1)))
        before = {name: used(table, takes) for name, table in before.items() if name not in takes}
        rows = {name: connection.execute(sa.select(table)).all() for name, table in before.items()}
    upgrade.upgrade_database(database, scripts=steps._replace(head=step))
    out = []
    with database.write() as connection:
        for name, table in before.items():
            try:
                with connection.begin_nested():
                    out += [
                        f"{step}: {name} {why}"
                        for why in changed(connection, table, rules[name], rows[name])
                    ]
            except (sa.exc.SQLAlchemyError, KeyError) as error:  # the program's error
                out.append(f"{step}: {name} can't be used as before: {error}"[:300])
    database.close()
    return out


def changed(
    connection: Connection, table: sa.Table, rules: set[str], rows: list[Any]
) -> Iterator[str]:
    """Yield the differences that a program sees in a table that it knows from before the step.

    rules, rows: the constraints and rows before the step.
    """
    yield from (f"must have: {rule}" for rule in rules_of(connection, table.name) - rules)
    if connection.execute(sa.select(table)).all() != rows:
        yield "rows read otherwise"
    written = row_of(table, 2)
    connection.execute(table.insert().values(written))
    if connection.execute(sa.select(table)).all() != [*rows, tuple(written.values())]:
        yield "does not keep what is written"
    now = tables_of(connection)[table.name].columns
    yield from (
        f"{column.name} is {now[column.name].type}"
        for column in table.columns
        if str(now[column.name].type) != str(column.type)
    )


def sql_of(steps: MigrationScripts, before: str, step: str) -> str:
    """Return the SQL of a step for PostgreSQL."""
    config, script, out = Config(), ScriptDirectory(str(steps.folder)), io.StringIO()
    going = {
        "fn": lambda _now, _context: script._upgrade_revs(step, before),
        "as_sql": True,
        "starting_rev": before,
    }
    with EnvironmentContext(config, script, **going) as environment, redirect_stdout(out):
        environment.configure(dialect_name="postgresql", output_buffer=out)
        environment.run_migrations()
    return out.getvalue()


def holding(steps: MigrationScripts, before: str, step: str, in_transaction: bool) -> list[str]:
    """Return the statements of a step that lock large tables for long."""
    text = sql_of(steps, before, step)
    results = set(re.findall(r"CREATE TABLE (\w+)", text)) | OF_VERSIONS
    items = [
        line
        for line in text.splitlines()
        if SLOW.match(line) and not results & set(re.findall(r"\w+", line))
    ]
    out = [f"{step} holds up others: {line[:100]}" for line in items]
    if in_transaction == ("CONCURRENTLY" in text):
        out.append(
            f"{step}: in_transaction is False for steps that create indexes online (online.create_index), and for no others"
        )
    return out


def judged(steps: MigrationScripts, folder: Path, since: str | None = None) -> Iterator[str]:
    """Yield the errors of all steps after the revision `since`."""
    url, before = f"sqlite:///{folder / 'judged.db'}", since or "base"
    database = Database(url)
    if since is not None:
        upgrade.upgrade_database(database, scripts=steps._replace(head=since))
    for script in scripts_of(steps):
        lacking = undeclared(script)
        yield from lacking
        if since is not None and script.revision <= since:
            continue
        if not lacking and script.module.oldest < script.revision:
            yield from offences_of(steps, script.revision, url, getattr(script.module, "takes", ()))
            yield from holding(
                steps, before, script.revision, getattr(script.module, "in_transaction", True)
            )
        upgrade.upgrade_database(database, scripts=steps._replace(head=script.revision))
        with database.write() as connection:
            for table in tables_of(connection).values():
                connection.execute(table.delete())
        before = script.revision
    database.close()


def test_every_step_declares_its_oldest_program_and_stays_compatible(tmp_path: Path) -> None:
    assert [*judged(OWN_SCRIPTS, tmp_path)] == []
    assert newest(OWN_SCRIPTS.folder) == HEAD
    assert scripts_of(OWN_SCRIPTS)[0].revision == FIRST


ONLY_ADD = f'oldest = "{HEAD}"'
GOOD = {
    "a column that may be null": NextStep(
        'op.add_column("jobs", sa.Column("colour", sa.Text))', ONLY_ADD
    ),
    "a column that the database fills": NextStep(
        'op.add_column("jobs", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))',
        ONLY_ADD,
    ),
    "a table, its index and its rows": NextStep(
        'op.create_table("places", sa.Column("id", sa.Text, primary_key=True))\n'
        'op.create_index("places_id", "places", ["id"])\nop.execute("INSERT INTO places VALUES (\'here\')")',
        ONLY_ADD,
    ),
    "an index": NextStep(
        'online.create_index("jobs_name", "jobs", ["name"])', f"{ONLY_ADD}\nin_transaction = False"
    ),
    "an unused column is dropped": NextStep(
        'op.drop_column("keys", "last_used")', f'{ONLY_ADD}\ntakes = ("keys.last_used",)'
    ),
    "an unused table is dropped": NextStep(
        'op.drop_table("turns")', f'{ONLY_ADD}\ntakes = ("turns",)'
    ),
    "a step that serves no release": NextStep('op.drop_table("turns")', 'oldest = "{revision}"'),
}
BAD = {
    "does not say": NextStep('op.add_column("jobs", sa.Column("colour", sa.Text))'),
    "not before it": NextStep("pass", 'oldest = "9999"'),
    "turns can't be used as before": NextStep('op.drop_table("turns")', ONLY_ADD),
    "can't be used as before: .*no such column": NextStep(
        'op.execute("ALTER TABLE jobs RENAME COLUMN beats TO pulses")', ONLY_ADD
    ),
    "can't be used as before: .*NOT NULL": NextStep(
        'op.drop_table("turns")\nop.create_table("turns", sa.Column("tenant", sa.Text, primary_key=True), '
        'sa.Column("turn", sa.Integer, nullable=False), sa.Column("why", sa.Text, nullable=False))',
        ONLY_ADD,
    ),
    r"must have: unique \['name'\]": NextStep(
        'op.create_index("one_name", "datasets", ["name"], unique=True)', ONLY_ADD
    ),
    "keys can't be used as before": NextStep(
        'op.drop_column("keys", "last_used")\nop.drop_column("keys", "revoked")',
        f'{ONLY_ADD}\ntakes = ("keys.last_used",)',
    ),
    "jobs rows read otherwise": NextStep(
        "op.execute(\"UPDATE jobs SET status = 'WAITING'\")", ONLY_ADD
    ),
    "does not keep what is written": NextStep(
        'op.execute("CREATE TRIGGER t AFTER INSERT ON turns BEGIN UPDATE turns SET turn = 7; END")',
        ONLY_ADD,
    ),
    "jobs name is VARCHAR": NextStep(
        'with op.batch_alter_table("jobs") as jobs:\n    jobs.alter_column("name", type_=sa.String(20))',
        ONLY_ADD,
    ),
    "holds up others: CREATE INDEX jobs_name": NextStep(
        'op.create_index("jobs_name", "jobs", ["name"])', ONLY_ADD
    ),
    "holds up others: UPDATE jobs": NextStep(
        'op.add_column("jobs", sa.Column("colour", sa.Text))\nop.execute("UPDATE jobs SET colour = name")',
        ONLY_ADD,
    ),
    "in_transaction is False": NextStep(
        'online.create_index("jobs_name", "jobs", ["name"])', ONLY_ADD
    ),
}


@pytest.mark.parametrize("step", GOOD.values(), ids=GOOD)
def test_compatible_steps_are_accepted(tmp_path: Path, step: NextStep) -> None:
    step = step._replace(says=step.says.format(revision=f"{int(HEAD) + 1:04}"))
    folder = release(tmp_path / "next", step)
    assert [*judged(MigrationScripts(folder, newest(folder)), tmp_path, since=HEAD)] == []


@pytest.mark.parametrize(("why", "step"), BAD.items(), ids=BAD)
def test_incompatible_steps_are_rejected(tmp_path: Path, why: str, step: NextStep) -> None:
    folder = release(tmp_path / "next", step)
    results = [*judged(MigrationScripts(folder, newest(folder)), tmp_path, since=HEAD)]
    assert any(re.search(why, each) for each in results), results
