"""The rows: number, title, injection, tests that also inject the fault; `@row` registers one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.robustness.faults.stage import Stage

Play: TypeAlias = Callable[[Stage], None]


class Row(NamedTuple):
    """A row of the fault catalogue.

    tests: tests of the suite that also inject the fault. limit: seconds until the row counts as
    hung.
    """

    number: str
    title: str
    injected: str
    play: Play
    tests: tuple[str, ...]
    limit: float


ROWS: dict[str, Row] = {}


def row(
    number: str, title: str, injected: str, *tests: str, limit: float = 600.0
) -> Callable[[Play], Play]:
    """Return a decorator that registers a function as a row."""

    def add(play: Play) -> Play:
        assert number not in ROWS, number
        ROWS[number] = Row(number, title, injected, play, tests, limit)
        return play

    return add


def in_order() -> list[Row]:
    """Return all rows, F1 first."""
    return sorted(ROWS.values(), key=lambda each: int(each.number[1:]))
