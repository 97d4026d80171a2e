"""Picture of counts: histograms whose bins double."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from xcray.plots.axes import axis_around, named_axis, short_number
from xcray.plots.marks import Panel, bars
from xcray.plots.picture import Picture


def counts_picture(
    title: str, note: str, histograms: Sequence[tuple[str, str, str, Mapping[str, Any]]]
) -> Picture:
    """Draw histograms of whole numbers.

    histograms: title, name of the counted numbers, name of the things that have them, and "edges"
    (n + 1) with "counts" (n); the bin from 4 to 8 is named 4–7.
    """
    panels = []
    for name, x_label, y_label, found in histograms:
        counts = [float(each) for each in found["counts"]]
        x = named_axis(x_label, [_bin_name(*ends) for ends in pairwise(found["edges"])])
        y = axis_around(y_label, [0.0, 1.0, *counts], low=0.0)
        panels.append(Panel(name, x, y, bars([(y_label, counts)])))
    return Picture(title, note, tuple(panels))


def _bin_name(low: int, end: int) -> str:
    """Return the name of a bin that ends below `end`."""
    return short_number(low) if end - low <= 1 else f"{short_number(low)}–{short_number(end - 1)}"
