"""A picture: title, note and panels, drawn as SVG without a library.

One drawing code serves the console, the files of the CLI and notebooks. Text has the colour of the
page around it. Each mark has its value as a title, and the marks of a series are in a group with
its name in `data-series`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

from xcray.plots.marks import Panel
from xcray.plots.panels import MUTED, describe_panel, draw_panel
from xcray.plots.svg import FONT_SIZE, LINE, element, markup, text_at, wrapped
from xcray.storage.atomic import write_bytes

FILE_WIDTH: Final = 960
MIN_PANEL: Final = 300  # pixels; a narrower picture has fewer panels per row
GAP: Final = 24  # pixels between panels
# a file or a notebook's output has no page around it that sets colours
FILE_STYLE: Final = (
    "<style>.xcray{background:#fff;color:#1b2733}@media(prefers-color-scheme:dark)"
    "{.xcray{background:#14181d;color:#e3e8ee}}</style>"
)


class Picture(NamedTuple):
    """A title, a note below it, and panels: as many per row as the width allows."""

    title: str
    note: str
    panels: tuple[Panel, ...]

    def svg(self, width: int = FILE_WIDTH) -> str:
        """Return the SVG element for a page that sets the colours. width: in pixels."""
        return self._drawn(width, "", 0)

    def file(self) -> str:
        """Return the SVG with a background and colours for light and dark surroundings."""
        return self._drawn(FILE_WIDTH, FILE_STYLE, 12)

    def write(self, path: Path) -> None:
        """Write the file."""
        write_bytes(path, self.file().encode())

    def __repr__(self) -> str:
        """Return the title: the values can be many."""
        return f"Picture({self.title!r})"

    def _repr_svg_(self) -> str:
        """Return the picture for the output of a notebook."""
        return self.file()

    def _drawn(self, width: int, style: str, border: int) -> str:
        """Return the SVG. border: empty pixels at each side."""
        inner = width - 2 * border
        head, top = self._head(border, border, inner)
        panels, bottom = self._panels(border, top, inner)
        about = " ".join([self.note, *(f"{describe_panel(each)}." for each in self.panels)])
        return element(
            "svg",
            [
                element("title", markup(self.title)),
                element("desc", markup(about)),
                style,
                head,
                panels,
            ],
            class_="xcray" if style else None,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {bottom + border:.0f}",
            width=width,
            height=f"{bottom + border:.0f}",
            role="img",
            fill="currentColor",
            font_family="system-ui, sans-serif",
            font_size=FONT_SIZE,
        )

    def _head(self, left: float, top: float, width: float) -> tuple[str, float]:
        """Return title and note, and the position below them."""
        parts = []
        for text, attributes in (
            (self.title, {"font_weight": "bold", "font_size": FONT_SIZE + 1}),
            (self.note, {"fill_opacity": MUTED}),
        ):
            for line in wrapped(text, width):
                parts.append(text_at(left, top + LINE - 3, line, **attributes))
                top += LINE
        return "".join(parts), top + 8

    def _panels(self, left: float, top: float, width: float) -> tuple[str, float]:
        """Return the panels in rows, and the position below them."""
        most = max(1, int((width + GAP) // (MIN_PANEL + GAP)))
        rows = math.ceil(len(self.panels) / most)
        columns = math.ceil(len(self.panels) / rows)
        each = (width - GAP * (columns - 1)) / columns
        parts = []
        for first in range(0, len(self.panels), columns):
            heights = []
            for i, panel in enumerate(self.panels[first : first + columns]):
                drawn, height = draw_panel(panel, left + i * (each + GAP), top, each)
                parts.append(drawn)
                heights.append(height)
            top += max(heights) + 6
        return "".join(parts), top
