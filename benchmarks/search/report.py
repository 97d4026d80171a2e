"""The search measurements as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return all figures of every model as text."""
    lines = []
    for entry in rows:
        size = f"{entry['labels']:,} labels x {entry['features']:,} features, {entry['weights']:,} weights"
        lines += ["", f"{entry['model']}: {size}; others used {entry['others']} of the machine"]
        lines.append(
            f"{'engine':16}{'k':>5}{'p50 ms':>10}{'p99 ms':>10}{'mean':>10}{'least p50':>11}{'p99':>9}{'recall':>8}{'queries':>9}"
        )
        for cell in entry["latency"]:
            times = "".join(f"{cell[name]:10.4f}" for name in ("p50", "p99", "mean"))
            least = f"{cell['least_p50']:11.4f}{cell['least_p99']:9.4f}"
            lines.append(
                f"{cell['engine']:16}{cell['k']:5}{times}{least}{cell['recall']:8.3f}{cell['times_the_search']:10.2f}{cell['queries']:9}"
            )
        for k, cost in entry["costs"].items():
            lines.append(f"k = {k}: {cost}")
        for name, batch in entry["batches"].items():
            both = f"{batch['per_second_1']:,.0f} -> {batch['per_second_2']:,.0f} queries/s on 1 -> 2 threads"
            best = f"best {batch['best_per_second_1']:,.0f} -> {batch['best_per_second_2']:,.0f}"
            lines.append(
                f"batches of {batch['rows']}, {name}: {both} ({batch['speedup']:.2f}x); {best} ({batch['best_speedup']:.2f}x)"
            )
        lines.append(f"index: {entry['index']}")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw p50 by engine and model for k = 5, and p50 and p99 of search and scan by k.

    Left: one bar per engine and model, with a mark at p99. Right: the lines by k.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(cell["engine"] for entry in rows for cell in entry["latency"]))
    colour = {name: f"C{at % 10}" for at, name in enumerate(names)}
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7 + 2 * len(rows), 4.5), layout="constrained"
    )
    width = 0.85 / len(names)
    for at, entry in enumerate(rows):
        for cell in (cell for cell in entry["latency"] if cell["k"] == 5):
            x = at + width * (names.index(cell["engine"]) - (len(names) - 1) / 2)
            left.bar(
                x,
                cell["p50"],
                width,
                color=colour[cell["engine"]],
                label=None if at else cell["engine"],
            )
            left.plot([x, x], [cell["p50"], cell["p99"]], color="black", linewidth=0.8)
            left.plot(x, cell["p99"], "k_", markersize=8)
            left.annotate(
                f"{cell['p50']:.3g}", (x, cell["p50"]), ha="center", va="bottom", fontsize=6
            )
    left.set_xticks(
        range(len(rows)), [f"{entry['model']}\n{entry['labels']:,} labels" for entry in rows]
    )
    left.set(yscale="log", ylabel="ms per query, k = 5: p50 (bar) and p99 (mark)")
    left.legend(fontsize=7)
    for at, entry in enumerate(rows):
        for name, style in (("search", "o-"), ("scan", "s:")):
            cells = [cell for cell in entry["latency"] if cell["engine"] == name]
            ks = [cell["k"] for cell in cells]
            right.plot(
                ks,
                [cell["p50"] for cell in cells],
                style,
                color=f"C{at}",
                label=f"{entry['model']} {name} p50",
            )
            right.plot(ks, [cell["p99"] for cell in cells], style, color=f"C{at}", alpha=0.3)
    right.set(xscale="log", yscale="log", xlabel="k", ylabel="ms per query: p50, and p99 (pale)")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)
