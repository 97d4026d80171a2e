"""The rows: number, title, how the fault comes, who else injects it; `@row` adds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.robustness.faults.stage import Stage

Play: TypeAlias = Callable[[Stage], None]


class Row(NamedTuple):
    """A row of the fault catalogue. `tests`: those of the suite that inject it too; `limit`:
    seconds until it counts as hung.
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
    """Register a function as a row."""

    def add(play: Play) -> Play:
        assert number not in ROWS, number
        ROWS[number] = Row(number, title, injected, play, tests, limit)
        return play

    return add


def in_order() -> list[Row]:
    """All rows, F1 first."""
    return sorted(ROWS.values(), key=lambda each: int(each.number[1:]))
