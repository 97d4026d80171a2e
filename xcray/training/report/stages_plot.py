"""Plot of trainings that end with a chain of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xcray.plots import BLUE, figure_page


def draw_stages(path: Path, history: Sequence[Mapping[str, Any]], name: str, note: str) -> None:
    """Plot the error of the held-out rows against the features of all stages and against time.

    history: one entry per stage, with "seconds" since the start of the training, "features" of the
    stages so far, and "P@1" as a fraction, as far as it is known.
    """
    points = [each for each in history if each.get("P@1") is not None]
    errors = [100.0 - 100.0 * each["P@1"] for each in points]
    with figure_page(path, 10, 4.0, f"How the error fell · {name}", note) as figure:
        axes = figure.subplots(1, 2, sharey="row", gridspec_kw={"wspace": 0.04})
        for axis, by in zip(axes, ("features", "seconds"), strict=True):
            axis.plot([each[by] for each in points], errors, "o-", color=BLUE, markersize=3)
            axis.set_xlabel(by)
        axes[0].set_ylabel("held-out rows without a true first label (%)")
