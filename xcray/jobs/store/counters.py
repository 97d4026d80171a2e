"""Figures that outlive processes: how much of something there ever was, added up in the store by whoever did it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from xcray.jobs.database.engine import POSTGRESQL, Database, once_more
from xcray.jobs.database.schema import COUNTERS


class Counter(NamedTuple):
    """The name of a counter and its labels as canonical JSON; made by `counter`."""

    name: str
    labels: str = "{}"


Counted: TypeAlias = Mapping[Counter, float]  # what to add to which


def counter(name: str, **labels: str) -> Counter:
    """A counter with labels: `counter("xcray_jobs_ended_total", status="FAILED")`. Labels must take few values: each is a row."""
    return Counter(name, json.dumps(labels, sort_keys=True, separators=(",", ":")))


class CounterTable:
    """Counters of all processes together."""

    _database: Database

    def count(self, name: str, labels: Mapping[str, str] | None = None, by: float = 1.0) -> None:
        """Add to a counter."""
        self.count_all({counter(name, **(labels or {})): by})

    @once_more
    def count_all(self, counted: Counted) -> None:
        """Add to several counters in one transaction."""
        with self._database.write() as connection:
            add_up(connection, counted)

    @once_more
    def counters(self) -> list[tuple[str, dict[str, str], float]]:
        """All counters: name, labels, value; in order of name and labels."""
        query = sa.select(COUNTERS).order_by(COUNTERS.c.name, COUNTERS.c.labels)
        with self._database.read() as connection:
            return [
                (row.name, json.loads(row.labels), row.value) for row in connection.execute(query)
            ]


def add_up(connection: Connection, counted: Counted | None) -> None:
    """Add to counters within the caller's transaction, always in one order: then no two transactions wait for each other."""
    insert: Any = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    for one, by in sorted((counted or {}).items()):
        row = insert(COUNTERS).values(name=one.name, labels=one.labels, value=by)
        more = {"value": COUNTERS.c.value + row.excluded.value}
        connection.execute(row.on_conflict_do_update(index_elements=["name", "labels"], set_=more))
