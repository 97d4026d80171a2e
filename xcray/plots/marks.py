"""Marks of a panel: lines, boxes and dots, in values of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from xcray.plots.axes import Axis

# A contrast of at least 3 on white and on the console's dark background.
BLUE, ORANGE, PURPLE, GREEN = "#3b82bd", "#b8720a", "#9065c9", "#2f9160"
RED, GREY = "#d0473a", "#7f868d"
SERIES: Final = (BLUE, ORANGE, PURPLE, GREEN, RED, GREY)

Point: TypeAlias = tuple[float, float]


class Box(NamedTuple):
    """A rectangle. title: its text for readers of values; empty: x and y of its upper side."""

    left: float
    right: float
    low: float
    high: float
    title: str = ""
    opacity: float = 1.0


class Boxes(NamedTuple):
    """Rectangles of one series: bars, lanes or cells."""

    label: str
    boxes: tuple[Box, ...]
    colour: str = BLUE


class Line(NamedTuple):
    """A line through points, with a mark at each point if there are few.

    form: of the marks; 0 circles, 1 squares, 2 diamonds. is_stepped: constant up to the next point.
    A line that is a reference has no marks and no values.
    """

    label: str
    points: tuple[Point, ...]
    colour: str = BLUE
    form: int = 0
    is_dashed: bool = False
    is_stepped: bool = False
    is_reference: bool = False


class Dots(NamedTuple):
    """Many small points, without a title for each."""

    label: str
    points: tuple[Point, ...]
    colour: str = BLUE


Mark: TypeAlias = Boxes | Line | Dots


class Panel(NamedTuple):
    """Two axes and marks. height: of the area of the marks, in pixels.

    If the y axis has names, they stand above lanes, the first one at the top.
    """

    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int = 180


def reference(label: str, *points: Point) -> Line:
    """Return a dashed grey line, such as a requested or an ideal value."""
    return Line(label, points, GREY, is_dashed=True, is_reference=True)


def lines(series: Sequence[tuple[str, Sequence[Point]]]) -> tuple[Line, ...]:
    """Return a line per series, (label, points), each with its own colour and form of marks."""
    return tuple(
        Line(label, tuple(points), SERIES[i % len(SERIES)], form=i % 3)
        for i, (label, points) in enumerate(series)
    )


def bars(series: Sequence[tuple[str, Sequence[float]]]) -> tuple[Boxes, ...]:
    """Return groups of bars at 0, 1, 2 and so on. series: (label, heights)."""
    width = 0.84 / max(len(series), 1)
    return tuple(
        Boxes(
            label,
            tuple(
                Box(i - 0.42 + j * width, i - 0.42 + (j + 0.94) * width, 0.0, height)
                for i, height in enumerate(heights)
            ),
            SERIES[j % len(SERIES)],
        )
        for j, (label, heights) in enumerate(series)
    )
