"""A matplotlib page for the pictures of benchmarks: title, note, style.

The pictures of xcray itself are drawn by `xcray.plots`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xcray.storage.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b1b1b", "#6a6a6a", "#e4e4e4"
# light to dark, also when printed in grey
BLUES: Final = ("#9ecae1", "#3b82bd", "#0b3c6f")
BLUE, ORANGE, RED, GREY = "#3b82bd", "#e69f00", "#c8451b", "#a8a8a8"
STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}
DPI = 150
TITLE_INCHES = 0.62  # height of the title and the line below it


@contextmanager
def figure_page(path: Path, width: float, height: float, title: str, note: str) -> Iterator[Figure]:
    """Yield a styled figure with a title and a note below it, and save it at the end.

    width, height: inches.
    """
    # imported here: most runs of benchmarks draw nothing
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context(STYLE):
        below_head = ConstrainedLayoutEngine(
            rect=(0.008, 0.008, 0.984, 0.992 - TITLE_INCHES / height)
        )
        figure = Figure(figsize=(width, height), dpi=DPI, layout=below_head)
        figure.text(
            0.12 / width,
            1 - 0.12 / height,
            title,
            va="top",
            fontsize=13,
            fontweight="bold",
            color=INK,
        )
        figure.text(0.12 / width, 1 - 0.37 / height, note, va="top", fontsize=9.5, color=MUTED)
        yield figure
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    write_bytes(path, out.getvalue())
