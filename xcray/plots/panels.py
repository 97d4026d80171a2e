"""Drawing of a panel: title, legend, axes and marks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from xcray.plots.axes import exact_number
from xcray.plots.marks import Boxes, Dots, Line, Mark, Panel, Point
from xcray.plots.svg import (
    LINE,
    element,
    markup,
    path_through,
    text_at,
    text_width,
    wrapped,
)

MAX_MARKED: Final = 64  # points of a line that have a mark and a value each
SLOPE: Final = 35  # degrees of names that are too long to stand side by side
MUTED: Final = 0.75  # opacity of secondary text


class Frame(NamedTuple):
    """The area of the marks of a panel, in pixels."""

    panel: Panel
    left: float
    right: float
    top: float

    @property
    def bottom(self) -> float:
        """Return the lower end."""
        return self.top + self.panel.height

    def x(self, value: float) -> float:
        """Return the position of a value of the x axis."""
        return self.left + self.panel.x.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the position of a value of the y axis; lanes begin at the top."""
        share = self.panel.y.share(value)
        return self.top + (share if self.panel.y.names else 1.0 - share) * self.panel.height

    def places(self, points: tuple[Point, ...]) -> list[Point]:
        """Return points in pixels."""
        return [(self.x(x), self.y(y)) for x, y in points]


def draw_panel(panel: Panel, left: float, top: float, width: float) -> tuple[str, float]:
    """Return a panel as markup, and its height in pixels."""
    parts, y = [], top
    for line in wrapped(panel.title, width):
        parts.append(text_at(left, y + LINE - 4, line, font_weight="bold"))
        y += LINE
    legend, y = _draw_legend(panel, left, y, width)
    if panel.y.label:
        for line in wrapped(panel.y.label, width):
            parts.append(text_at(left, y + LINE - 4, line, fill_opacity=MUTED))
            y += LINE
    y_texts = [] if panel.y.names else panel.y.ticks(max(2, panel.height // 40))
    margin = max((text_width(text) for _, text in y_texts), default=0.0) + 8
    frame = Frame(panel, left + (4 if panel.y.names else margin), left + width - 10, y + 6)
    x_axis, below = _draw_x_axis(frame)
    marks = "".join(_draw_mark(frame, mark) for mark in panel.marks)
    parts += [legend, "".join(_draw_y_axis(frame)), x_axis, marks, "".join(_lane_names(frame))]
    return "".join(parts), frame.bottom + below - top


def describe_panel(panel: Panel) -> str:
    """Return a panel in words, for readers who do not see it."""
    series = [
        f"{mark.label} from {exact_number(values[0])} to {exact_number(values[-1])}"
        for mark in panel.marks
        if (values := _values(mark)) and not panel.y.names
    ]
    named = [f"{', '.join(panel.y.names)}"] if panel.y.names else []
    head = ": ".join(part for part in (panel.title, panel.y.label) if part)
    return ". ".join([head, *(["; ".join([*series, *named])] if series or named else [])])


def _values(mark: Mark) -> list[float]:
    """Return the y values of a mark, none of a reference, in order of x."""
    if isinstance(mark, Boxes):
        return [each.high for each in mark.boxes]
    return [] if isinstance(mark, Line) and mark.is_reference else [y for _, y in mark.points]


def _draw_legend(panel: Panel, left: float, top: float, width: float) -> tuple[str, float]:
    """Return the names of the series, if there are several, and the position below them."""
    named = [mark for mark in panel.marks if mark.label]
    if len(named) < 2:
        return "", top
    parts, x, y = [], left, top
    for mark in named:
        length = 26 + text_width(mark.label)
        if x > left and x + length > left + width:
            x, y = left, y + LINE
        parts.append(_draw_key(mark, x, y + LINE / 2) + text_at(x + 22, y + LINE - 4, mark.label))
        x += length + 8
    return element("g", parts, aria_hidden="true"), y + LINE + 2


def _draw_key(mark: Mark, x: float, y: float) -> str:
    """Return the sample of a series in the legend."""
    if not isinstance(mark, Line):
        return element("rect", x=x + 2, y=y - 5, width=14, height=10, fill=mark.colour)
    dash = "5 4" if mark.is_dashed else None
    line = element(
        "path",
        d=f"M{x:.1f} {y:.1f}h18",
        stroke=mark.colour,
        stroke_width=2,
        stroke_dasharray=dash,
    )
    return line + ("" if mark.is_reference else _draw_form(mark, x + 9, y))


def _draw_y_axis(frame: Frame) -> Iterator[str]:
    """Yield lines and texts of the y axis; lanes have a background each."""
    if frame.panel.y.names:
        half = 0.5 * frame.panel.height / len(frame.panel.y.names)
        for i in range(len(frame.panel.y.names)):
            yield element(
                "rect",
                x=frame.left,
                y=frame.y(i) - half + 15,
                width=frame.right - frame.left,
                height=2 * half - 17,
                fill="currentColor",
                fill_opacity=0.07,
            )
        return
    for value, text in frame.panel.y.ticks(max(2, frame.panel.height // 40)):
        y = frame.y(value)
        yield _rule(frame.left, y, f"H{frame.right:.1f}")
        yield text_at(frame.left - 6, y + 4, text, text_anchor="end", fill_opacity=MUTED)


def _lane_names(frame: Frame) -> Iterator[str]:
    """Yield the names of lanes, each above its lane."""
    half = 0.5 * frame.panel.height / max(len(frame.panel.y.names), 1)
    for i, name in enumerate(frame.panel.y.names):
        yield text_at(frame.left, frame.y(i) - half + 12, name, font_size=11)


def _draw_x_axis(frame: Frame) -> tuple[str, float]:
    """Return the x axis, and its height in pixels. Names that do not fit are at a slope."""
    width = frame.right - frame.left
    ticks = frame.panel.x.ticks(max(2, int(width // 70)))
    longest = max((text_width(text) for _, text in ticks), default=0.0) + 6
    is_sloped = bool(frame.panel.x.names) and longest * len(ticks) > width
    each = max(1, math.ceil(longest * len(ticks) / width)) if not is_sloped else 1
    parts = [_rule(frame.left, frame.bottom, f"H{frame.right:.1f}", 0.5)]
    for value, text in ticks[::each]:
        x, y = frame.x(value), frame.bottom + LINE - 2
        if is_sloped:
            turn = f"rotate(-{SLOPE} {x:.1f} {y:.1f})"
            parts.append(
                text_at(x + 4, y, text, text_anchor="end", transform=turn, fill_opacity=MUTED)
            )
        else:
            parts.append(text_at(x, y, text, text_anchor="middle", fill_opacity=MUTED))
    below = LINE + 2 + (longest * math.sin(math.radians(SLOPE)) if is_sloped else 0.0)
    for line in wrapped(frame.panel.x.label, width):
        middle = (frame.left + frame.right) / 2
        at = frame.bottom + below + LINE - 4
        parts.append(text_at(middle, at, line, text_anchor="middle", fill_opacity=MUTED))
        below += LINE
    return "".join(parts), below + 8


def _rule(x: float, y: float, end: str, opacity: float = 0.15) -> str:
    """Return a thin line from (x, y)."""
    return element(
        "path", d=f"M{x:.1f} {y:.1f}{end}", stroke="currentColor", stroke_opacity=opacity
    )


def _draw_mark(frame: Frame, mark: Mark) -> str:
    """Return the marks of a series, in a group with its name."""
    if isinstance(mark, Boxes):
        content, fill, stroke = "".join(_draw_boxes(frame, mark)), mark.colour, None
    elif isinstance(mark, Dots):
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in frame.places(mark.points))
        content = element(
            "path", d=dots, stroke_width=4, stroke_linecap="round", stroke_opacity=0.4
        )
        fill, stroke = "none", mark.colour
    else:
        content, fill, stroke = _draw_line(frame, mark), "none", mark.colour
    is_series = not (isinstance(mark, Line) and mark.is_reference)
    return element(
        "g", content, data_series=mark.label if is_series else None, fill=fill, stroke=stroke
    )


def _draw_line(frame: Frame, line: Line) -> str:
    """Return a line and its marks."""
    path = element(
        "path",
        d=path_through(frame.places(line.points), line.is_stepped),
        stroke_width=1.3 if line.is_reference else 2,
        stroke_dasharray="5 4" if line.is_dashed else None,
        stroke_linejoin="round",
    )
    if line.is_reference or line.is_stepped or len(line.points) > MAX_MARKED:
        return path
    axes = frame.panel.x, frame.panel.y
    titles = [": ".join((axes[0].text(x), axes[1].text(y))) for x, y in line.points]
    places = frame.places(line.points)
    forms = (_draw_form(line, *at, title) for at, title in zip(places, titles, strict=True))
    return path + "".join(forms)


def _draw_form(line: Line, x: float, y: float, title: str = "") -> str:
    """Return the mark of a point: a circle, a square or a diamond."""
    inner = element("title", markup(title)) if title else ""
    if line.form == 0:
        return element("circle", inner, cx=x, cy=y, r=3.5, fill=line.colour, stroke="none")
    corners = "h6v6h-6z" if line.form == 1 else "l4 4l-4 4l-4 -4z"
    start = (x - 3, y - 3) if line.form == 1 else (x, y - 4)
    return element(
        "path",
        inner,
        d=f"M{start[0]:.1f} {start[1]:.1f}{corners}",
        fill=line.colour,
        stroke="none",
    )


def _draw_boxes(frame: Frame, boxes: Boxes) -> Iterator[str]:
    """Yield rectangles with titles; each is at least one pixel wide. In lanes, names are above."""
    panel = frame.panel
    name_height = 15 if panel.y.names else 0
    for box in boxes.boxes:
        left, right = frame.x(box.left), frame.x(box.right)
        ends = sorted((frame.y(box.low), frame.y(box.high)))
        title = box.title or f"{panel.x.text((box.left + box.right) / 2)}: {panel.y.text(box.high)}"
        top = ends[0] + name_height
        yield element(
            "rect",
            element("title", markup(title)),
            x=left,
            y=top,
            width=max(right - left, 1.0),
            height=max(ends[1] - top - (2 if name_height else 0), 0.0),
            fill_opacity=f"{box.opacity:.2f}" if box.opacity < 1.0 else None,
        )
