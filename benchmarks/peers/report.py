"""Report of the comparison with the peers: one Markdown table per set, and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

HEAD = (
    "| | ms per label | core-seconds, all labels | P@1 / 3 / 5 | P@1 in the sample | model MB | peak MB | xcray is faster |\n"
    + "|---" * 8
    + "|"
)
COLOURS = {"xcray": "#c1121f", "flat": "#33658a", "tree": "#a5a58d"}


def table(rows: list[dict[str, Any]], bars: list[dict[str, Any]]) -> str:
    """Return Markdown with one table per set; ~ marks figures extrapolated from a sample."""
    verdicts = {entry["set"]: entry for entry in bars if entry}
    parts = []
    for name in dict.fromkeys(row["set"] for row in rows):
        against = verdicts.get(name, {}).get("against", {})
        lines = [line(row, against.get(row["peer"])) for row in rows if row["set"] == name]
        memory_ratio = verdicts.get(name, {}).get("memory_beside_model_in_X")
        memory = (
            []
            if memory_ratio is None
            else [
                "",
                f"xcray's peak memory in addition to the finished model: {memory_ratio:.2f} times X.",
            ]
        )
        parts.append("\n".join([f"**{name}**", "", HEAD, *lines, *memory, ""]))
    return "\n".join(parts)


def line(row: dict[str, Any], against: dict[str, Any] | None) -> str:
    """Format one row of Markdown."""
    if "failed" in row:
        return f"| {row['title']} | failed: {row['failed']} |||||||"
    about = "~" if row["extrapolated"] else ""
    cells = [
        row["title"],
        f"{row['ms_a_class']:.3g}",
        f"{about}{row['core_seconds_all_labels']:.3g}",
        " / ".join(f"{row[k]:.2f}" for k in ("P@1", "P@3", "P@5") if k in row),
        f"{row['sample']['P@1']:.2f}" if "sample" in row else "",
        f"{row['model_bytes'] / 1e6:.3g}" if not row["extrapolated"] else "",
        f"{row['peak_bytes'] / 1e6:.0f}",
        f"{against['times_faster']:.3g} x" if against else "",
    ]
    return "| " + " | ".join(cells) + " |"


def kind(row: dict[str, Any]) -> str:
    """Return the kind of a row, which selects its colour."""
    return "xcray" if row["peer"].startswith("xcray") else "tree" if row["tree"] else "flat"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel per set: milliseconds per label as bars on a logarithmic axis, with P@1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    shown = [row for row in rows if "failed" not in row]
    names = list(dict.fromkeys(row["set"] for row in shown))
    across = min(len(names), 2)
    down = -(-len(names) // across)
    most = max(sum(row["set"] == name for row in shown) for name in names)
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(6.5 * across, (0.3 * most + 0.9) * down),
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        panel(axis, name, [row for row in shown if row["set"] == name])
    legend = {"xcray": "xcray", "flat": "one-vs-rest", "tree": "tree"}
    figure.legend(
        handles=[Patch(color=COLOURS[key], label=text) for key, text in legend.items()],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def panel(axis: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Draw the bars of one set, the first row on top."""
    place = np.arange(len(rows))[::-1]
    values = [row["ms_a_class"] for row in rows]
    axis.barh(place, values, color=[COLOURS[kind(row)] for row in rows])
    for y, row in zip(place, rows, strict=True):
        shown = f"{row['P@1']:.1f}" if "P@1" in row else f"{row['sample']['P@1']:.1f} (sample)"
        axis.text(
            row["ms_a_class"] * 1.1,
            y,
            f"{row['ms_a_class']:.3g} ms, P@1 {shown}",
            va="center",
            fontsize=7,
        )
    axis.set_yticks(place, [row["title"] for row in rows], fontsize=7)
    axis.set(
        xscale="log",
        xlim=(min(values) / 3, max(values) * 100),
        title=name,
        xlabel="CPU milliseconds per label, one core",
    )
    axis.spines[["top", "right"]].set_visible(False)
