"""Picture of runs of `benchmarks.cluster.nodes`: batches by worker and node, and node events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TITLES = {
    "kill": "a node is killed",
    "add": "a node is added",
    "cut": "a node is cut off",
    "round kill": "DS-MLR, a node is killed",
    "drain": "DS-MLR, a node is drained, another one joins",
}


def picture(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one panel per run with an event, and one with the bytes by the number of nodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    charts = [row for row in rows if "chart" in row]
    counted = [row for row in rows if "nodes" in row]
    panels = len(charts) + bool(counted)
    figure, axes = plt.subplots(
        panels, 1, figsize=(9, 1.9 * max(panels, 1)), layout="constrained", squeeze=False
    )
    places = list(axes.flat)
    for place, row in zip(places, charts, strict=False):
        draw_run(place, row)
    if counted:
        draw_counts(places[-1], counted)
    figure.savefig(path, dpi=110)


def draw_run(place: Any, row: Mapping[str, Any]) -> None:
    """Draw batches as bars, one line per worker, coloured by node. Lost batches are red."""
    bars, events = row["chart"]["bars"], row["chart"]["events"]
    workers = sorted({bar[0] for bar in bars})
    hosts = sorted({bar[1] for bar in bars})
    for worker, host, start, end, outcome in bars:
        colour = {"done": f"C{hosts.index(host)}", "duplicate": "0.7"}.get(outcome, "tab:red")
        place.broken_barh(
            [(start, end - start)],
            (workers.index(worker) - 0.4, 0.8),
            color=colour,
            edgecolor="white",
            linewidth=0.3,
        )
    for name, when in events.items():
        place.axvline(when, color="black", linewidth=1)
        place.text(when, len(workers) - 0.45, f" {name}", fontsize=8, va="bottom")
    place.set_yticks(range(len(workers)), workers, fontsize=8)
    sees = {True: ", it can read the data", False: ", it cannot read the data"}.get(
        row.get("sees_data"), ""
    )
    place.set_title(TITLES.get(row["part"], row["part"]) + sees, fontsize=10, loc="left", pad=14)
    place.set_xlabel("seconds", fontsize=8)


def draw_counts(place: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the bytes sent over the bridge by the number of nodes."""
    for how in dict.fromkeys(row["how"] for row in rows):
        mine = [row for row in rows if row["how"] == how]
        place.plot(
            [row["nodes"] for row in mine], [row["sent_mb"] for row in mine], "o-", label=how
        )
    place.set_xticks(sorted({row["nodes"] for row in rows}))
    place.set_ylim(bottom=0)
    place.set_title("MB over the network, by nodes", fontsize=10, loc="left")
    place.legend(fontsize=8, loc="lower right", ncols=3)
