"""Counters that outlive processes, kept in the store and increased in the same transactions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from xcray.jobs.database.engine import POSTGRESQL, Database, retry_once
from xcray.jobs.database.schema import COUNTERS


class Counter(NamedTuple):
    """The name of a counter and its labels as canonical JSON. `make_counter` creates it."""

    name: str
    labels: str = "{}"


Increments: TypeAlias = Mapping[Counter, float]  # counter -> amount to add


def make_counter(name: str, **labels: str) -> Counter:
    """Return a counter with labels: `make_counter("jobs_total", status="FAILED")`.

    Labels must have few values, because each combination is a row.
    """
    return Counter(name, json.dumps(labels, sort_keys=True, separators=(",", ":")))


class CounterTable:
    """Counters of all processes together."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @retry_once
    def increment_all(self, increments: Increments) -> None:
        """Add to several counters in one transaction."""
        with self._database.write() as connection:
            add_increments(connection, increments)

    @retry_once
    def list_all(self) -> list[tuple[str, dict[str, str], float]]:
        """Return all counters as (name, labels, value), ordered by name and labels."""
        query = sa.select(COUNTERS).order_by(COUNTERS.c.name, COUNTERS.c.labels)
        with self._database.read() as connection:
            return [
                (row.name, json.loads(row.labels), row.value) for row in connection.execute(query)
            ]


def add_increments(connection: Connection, increments: Increments | None) -> None:
    """Add to counters within the caller's transaction.

    They are updated in a fixed order, so that transactions cannot deadlock.
    """
    insert: Any = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    for counter, amount in sorted((increments or {}).items()):
        row = insert(COUNTERS).values(name=counter.name, labels=counter.labels, value=amount)
        updated = {"value": COUNTERS.c.value + row.excluded.value}
        connection.execute(
            row.on_conflict_do_update(index_elements=["name", "labels"], set_=updated)
        )
