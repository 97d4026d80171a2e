"""Picture of `benchmarks.memoir`: accuracy and macro-F1 over the seconds of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.matplotlib_page import figure_page

MARKERS = "osD^vPX"
TICKS = (0.1, 1.0, 10.0)  # seconds


def draw(path: Path, sets: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw a panel per set: results have method, accuracy, macro_f1 and seconds."""
    note = "filled: accuracy; hollow: macro-F1; settings chosen on training rows that were left out"
    with figure_page(path, 4.2 * len(sets), 4.8, "MEMOIR and exact multi-class SVMs", note) as page:
        panels = page.subplots(1, len(sets), squeeze=False)[0]
        for axis, (name, results) in zip(panels, sets.items(), strict=True):
            for marker, result in zip(MARKERS, results, strict=False):
                _draw_result(axis, marker, result)
            axis.set(title=name, xscale="log", xlabel="processor seconds of a training")
            axis.set(xlim=(0.05, 20.0), xticks=TICKS, xticklabels=[f"{each:g}" for each in TICKS])
            axis.minorticks_off()
        panels[0].set_ylabel("percent of the test rows")
        handles, labels = panels[0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def _draw_result(axis: Any, marker: str, result: Mapping[str, Any]) -> None:
    """Draw a method with two points."""
    is_control = "random" in result["method"]
    title = result["method"].partition(" {")[0].partition(",")[0]
    label = "memoir with a random class" if is_control else title
    [point] = axis.plot(
        result["seconds"], result["accuracy"], marker, linestyle="none", label=label
    )
    hollow = {"color": point.get_color(), "fillstyle": "none"}
    axis.plot(result["seconds"], result["macro_f1"], marker, linestyle="none", **hollow)
