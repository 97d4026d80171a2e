"""Grafana's dashboards drawn without Grafana: each panel where its JSON says, with its title, unit,
colours and legend.

An honest stand-in for machines where Grafana is not to be had: the queries were asked of a real
Prometheus, the places, units, thresholds and legends are those of the JSON; fonts, colours and
ticks are matplotlib's. Each picture says so in its last line.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

Series = list[tuple[Mapping[str, str], list[tuple[float, float]]]]

CELL: Final = (0.62, 0.30)  # inches of a cell of Grafana's grid
GAP: Final = 0.06  # inches around a panel
DPI: Final = 92
COLOURS: Final = (
    "#3274d9",
    "#e0752d",
    "#37872d",
    "#c4162a",
    "#8f3bb8",
    "#e0b400",
    "#0a9fa5",
    "#ad0317",
    "#6d7278",
    "#b877d9",
)
NAMED: Final = {"green": "#37872d", "orange": "#e0752d", "red": "#c4162a", "text": "#24292e"}
INK, PALE, PAGE = "#24292e", "#6d7278", "#f4f5f5"
MOST_IN_LEGEND: Final = 6
PAGES: Final = {"targets": "/targets", "alerts": "/alerts"}
GRAPH: Final = "/graph?g0.expr={expr}&g0.tab=0&g0.range_input={minutes}m"


def draw(
    boards: Path, panels: Mapping[str, Mapping[str, Any]], begin: float, end: float, folder: Path
) -> list[str]:
    """One PNG a dashboard, `dashboard_NAME.png`; their names. panels: what `dashboards.asked`
    found.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for path in sorted(boards.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        found = {
            panel["id"][1]: panel["series"]
            for panel in panels.values()
            if panel["id"][0] == board["uid"]
        }
        figure = drawn(board, found, begin, end)
        name = f"dashboard_{board['uid'].removeprefix('xcray-')}.png"
        _save(figure, folder / name)
        out.append(name)
    return out


def _save(figure: Figure, path: Path) -> None:
    """A PNG of 255 colours: enough for lines and letters, and a third of the bytes."""
    drawn_so = io.BytesIO()
    figure.savefig(drawn_so, dpi=DPI, facecolor=PAGE)
    plt.close(figure)
    whole = Image.open(drawn_so).convert("RGB")
    whole.quantize(255, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def drawn(
    board: Mapping[str, Any], found: Mapping[int, Mapping[str, Series]], begin: float, end: float
) -> Figure:
    """The whole dashboard."""
    cells = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in board["panels"])
    width, height = 24 * CELL[0] + 0.2, cells * CELL[1] + 0.9
    figure = plt.figure(figsize=(width, height))
    figure.text(
        0.14 / width,
        1 - 0.3 / height,
        board["title"],
        size=15,
        weight="bold",
        color=INK,
        va="center",
    )
    figure.text(
        1 - 0.14 / width,
        1 - 0.3 / height,
        board["description"],
        size=8.5,
        color=PALE,
        va="center",
        ha="right",
    )
    note = f"Drawn by xcray from {board['uid']}.json and a Prometheus that scraped a real run; not by Grafana."
    figure.text(0.5, 0.1 / height, note, size=7.5, color=PALE, ha="center", va="center")
    for panel in board["panels"]:
        at = panel["gridPos"]
        left = (0.1 + at["x"] * CELL[0]) / width
        bottom = (height - 0.55 - (at["y"] + at["h"]) * CELL[1]) / height
        box = (left, bottom, at["w"] * CELL[0] / width, at["h"] * CELL[1] / height)
        if panel["type"] == "row":
            figure.text(
                left + 0.05 / width,
                bottom + box[3] / 2,
                panel["title"],
                size=11,
                weight="bold",
                color=INK,
                va="center",
            )
        else:
            _panel(figure, panel, found[panel["id"]], box, (begin, end))
    return figure


def _panel(
    figure: Figure,
    panel: Mapping[str, Any],
    found: Mapping[str, Series],
    box: Sequence[float],
    span: Sequence[float],
) -> None:
    """A card with its title, and a number or a graph in it."""
    width, height = figure.get_size_inches()
    pad = (GAP / width, GAP / height)
    card = (box[0] + pad[0], box[1] + pad[1], box[2] - 2 * pad[0], box[3] - 2 * pad[1])
    frame = FancyBboxPatch(
        card[:2],
        card[2],
        card[3],
        boxstyle="square,pad=0",
        facecolor="white",
        edgecolor="#dcdee0",
        linewidth=0.8,
    )
    frame.set(transform=figure.transFigure, zorder=-1)
    figure.patches.append(frame)
    figure.text(
        card[0] + 0.1 / width,
        card[1] + card[3] - 0.15 / height,
        panel["title"],
        size=9,
        color=INK,
        weight="bold",
        va="center",
    )
    lines = [
        (legend_of(panel, ref, labels), values)
        for ref, series in found.items()
        for labels, values in series
    ]
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] == "stat":
        _number(figure, defaults, lines, card)
        return
    columns, rows = _columns([name for name, _ in lines][:MOST_IN_LEGEND], panel["gridPos"]["w"])
    below = 0.34 + 0.14 * rows
    axes = figure.add_axes(
        (
            card[0] + 0.66 / width,
            card[1] + below / height,
            card[2] - 0.82 / width,
            card[3] - (below + 0.36) / height,
        )
    )
    _graph(axes, defaults, lines, span, columns)


def _columns(names: Sequence[str], cells: int) -> tuple[int, int]:
    """Columns and rows of a legend, so that it is no wider than its panel."""
    longest = max((len(name) for name in names), default=0) + 14
    columns = max(1, min(len(names) or 1, int(cells * CELL[0] / (0.056 * longest))))
    return columns, math.ceil((len(names) or 1) / columns)


def _number(
    figure: Figure, defaults: Mapping[str, Any], lines: Sequence[Any], card: Sequence[float]
) -> None:
    """The last value, in the colour of its threshold, above its course."""
    width, height = figure.get_size_inches()
    values = lines[0][1] if lines else []
    last = values[-1][1] if values else math.nan
    colour = NAMED[colour_of(last, defaults["thresholds"]["steps"])] if values else PALE
    text = shown(last, defaults.get("unit", "short"), defaults.get("decimals")) if values else "–"
    middle = (card[0] + card[2] / 2, card[1] + card[3] * 0.52)
    figure.text(*middle, text, size=20, weight="bold", color=colour, ha="center", va="center")
    if len(values) > 1:
        axes = figure.add_axes((card[0], card[1], card[2], card[3] * 0.3))
        axes.axis("off")
        x, y = [at for at, _ in values], [value for _, value in values]
        axes.fill_between(x, y, color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1)
        axes.set_ylim(0, 1.15 * max(*y, 1e-12))
        axes.margins(x=0)


def _graph(
    axes: Axes,
    defaults: Mapping[str, Any],
    lines: Sequence[Any],
    span: Sequence[float],
    columns: int,
) -> None:
    """Lines, areas or bars, with thresholds and a legend below."""
    custom = defaults.get("custom", {})
    unit = defaults.get("unit", "short")
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    bars = custom.get("drawStyle") == "bars"
    begin, end = span
    below: dict[float, float] = {}
    times = [[at for at, _ in values] for _, values in lines]
    step = (
        min((after - at for each in times for at, after in itertools.pairwise(each)), default=1.0)
        / 60
    )
    if len(lines) > MOST_IN_LEGEND:
        lines = sorted(lines, key=lambda each: -max(value for _, value in each[1]))
    else:
        lines = sorted(lines, key=lambda each: each[0])
    for place, (name, values) in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        x = [(at - begin) / 60 for at, _ in values]
        base = [below.get(at, 0.0) if stacked else 0.0 for at, _ in values]
        top = [under + value for under, (_, value) in zip(base, values, strict=True)]
        line = [
            high if high > under or not stacked else math.nan
            for under, high in zip(base, top, strict=True)
        ]
        label = f"{name}  {shown(values[-1][1], unit)}" if place < MOST_IN_LEGEND else None
        if bars:
            axes.bar(
                x,
                [value for _, value in values],
                bottom=base,
                width=step,
                color=colour,
                label=label,
            )
        else:
            for number, (first, last) in enumerate(_pieces(x, 6 * step)):
                piece = slice(first, last)
                axes.plot(
                    x[piece],
                    line[piece],
                    color=colour,
                    linewidth=1.3,
                    label=None if number else label,
                    solid_capstyle="round",
                )
                axes.fill_between(
                    x[piece],
                    base[piece],
                    top[piece],
                    color=colour,
                    alpha=0.3 if stacked else 0.07,
                    linewidth=0,
                )
        below |= {at: high for (at, _), high in zip(values, top, strict=True)} if stacked else {}
    _frame(axes, defaults, unit, (end - begin) / 60, custom)
    if lines:
        inch = axes.get_window_extent().height / axes.figure.dpi
        place: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (-0.06, -0.22 / inch),
            "ncols": columns,
            "frameon": False,
        }
        space = {
            "handlelength": 1.0,
            "columnspacing": 1.1,
            "handletextpad": 0.4,
            "labelspacing": 0.25,
            "borderpad": 0,
        }
        axes.legend(**place, **space, fontsize=6.8, labelcolor=INK)
    else:
        axes.text(
            0.5,
            0.5,
            "no data",
            transform=axes.transAxes,
            ha="center",
            va="center",
            color=PALE,
            size=9,
        )


def _frame(
    axes: Axes, defaults: Mapping[str, Any], unit: str, minutes: float, custom: Mapping[str, Any]
) -> None:
    """Axes as Grafana has them: pale, from zero, with the unit; thresholds dashed."""
    highest = axes.dataLim.y1 if axes.has_data() and axes.dataLim.y1 > 0.0 else 1.0
    top = defaults.get("max") or 1.12 * highest
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(_ticks(unit, top))
    for step in defaults["thresholds"]["steps"][1:]:
        if step["value"] <= top and custom.get("thresholdsStyle", {}).get("mode") == "dashed":
            axes.axhline(
                step["value"], color=NAMED[step["color"]], linewidth=0.9, linestyle=(0, (4, 3))
            )
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: shown(value, unit).replace(".0%", "%"))
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(0, minutes)
    axes.tick_params(labelsize=6.8, colors=PALE, length=0, pad=3)
    axes.grid(color="#e9eaeb", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _pieces(x: Sequence[float], gap: float) -> list[tuple[int, int]]:
    """Where a line goes on without a gap: ranges of its points."""
    cuts = [0, *(i for i in range(1, len(x)) if x[i] - x[i - 1] > gap), len(x)]
    return list(itertools.pairwise(cuts))


def _ticks(unit: str, top: float) -> Any:
    """Ticks at round values of a unit: powers of two for bytes, parts of minutes and hours for
    seconds.
    """
    if unit in ("bytes", "Bps"):
        return MultipleLocator(2.0 ** math.ceil(math.log2(top / 4)))
    if unit == "s" and top > 60:
        return MultipleLocator(
            min(
                (step for step in (15, 30, 60, 120, 300, 600, 1800, 3600) if step >= top / 5),
                default=7200,
            )
        )
    return MaxNLocator(4, integer=unit == "short" and top > 4)


def legend_of(panel: Mapping[str, Any], ref: str, labels: Mapping[str, str]) -> str:
    """What a series is called: the legend's text with its labels filled in."""
    text = next(each["legendFormat"] for each in panel["targets"] if each["refId"] == ref)
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda name: labels.get(name[1], ""), text)


def colour_of(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    """The colour of the last threshold that a value reaches."""
    return str(
        [each["color"] for each in steps if each["value"] is None or value >= each["value"]][-1]
    )


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, as short as Grafana writes it."""
    if unit == "percentunit":
        return (
            f"{100 * value:.{decimals if decimals is not None else 0 if value in (0, 1) else 1}f}%"
        )
    if unit in ("s", "ms"):
        return _duration(value if unit == "s" else value / 1000)
    if unit in ("bytes", "Bps"):
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"), " ") + (
            "/s" if unit == "Bps" else ""
        )
    ending = {"reqps": " req/s", "cps": " c/s", "cpm": " c/m"}.get(unit, "")
    return (
        f"{value:.{decimals}f}"
        if decimals is not None and value < 1000
        else _scaled(value, 1000, ("", "K", "M", "G"), " ")
    ) + ending


def _duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for least, scale, name in (
        (3600, 3600, "h"),
        (60, 60, "min"),
        (1, 1, "s"),
        (1e-3, 1e-3, "ms"),
        (0, 1e-6, "µs"),
    ):
        if abs(seconds) >= least:
            return "0 s" if seconds == 0 else f"{seconds / scale:.3g} {name}"
    return f"{seconds:.3g} s"


def _scaled(value: float, by: float, names: Sequence[str], space: str) -> str:
    """A number with a prefix."""
    for name in names[:-1]:
        if abs(value) < by:
            return f"{value:.3g}{space if name else ''}{name}"
        value /= by
    return f"{value:.3g}{space}{names[-1]}"


def photograph(url: str, folder: Path) -> list[str]:
    """Prometheus' own pages through Chromium: targets, alerts, a graph; the names of the pictures.
    None without Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("chromium is not installed: Prometheus' own pages are not photographed")
        return []
    graph = GRAPH.format(
        expr="max%20by%20(outcome)%20(rate(xcray_batches_total%5B30s%5D))", minutes=10
    )
    place = (
        "/classic"
        if httpx.get(f"{url}/classic/targets", trust_env=False).status_code == 200
        else ""
    )  # as Debian builds it
    out = []
    for name, page in {**PAGES, "graph": graph}.items():
        target = folder / f"prometheus_{name}.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,900",
        ]
        command = [
            chromium,
            *options,
            "--virtual-time-budget=8000",
            f"--user-data-dir={folder / '.chromium'}",
            f"--screenshot={target}",
        ]
        subprocess.run(
            [*command, url + place + page], timeout=120, check=False, capture_output=True
        )
        out += [target.name] if target.is_file() else []
    shutil.rmtree(folder / ".chromium", ignore_errors=True)
    return out
