"""PNG plots of a training: metrics and cost by label frequency, timeline, convergence, scaling.

Pure functions compute the data (`cost_curve`, `timeline_bars`, `share_curve`, `speed_ups`). Drawing
needs matplotlib (`pip install 'xcray[plots]'`), which is imported on first use. Colours can be
distinguished by people with red-green colour blindness, and marks also differ in shape.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64
from xcray.errors import Unavailable
from xcray.storage.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b1b1b", "#6a6a6a", "#e4e4e4"
# light to dark, also when printed in grey
BLUES: Final = ("#9ecae1", "#3b82bd", "#0b3c6f")
BLUE, ORANGE, RED, GREY = "#3b82bd", "#e69f00", "#c8451b", "#a8a8a8"
OUTCOMES: Final = {
    "done": (BLUE, "done"),
    "duplicate": (ORANGE, "duplicate"),
    "lost": (RED, "lost"),
    "stopped": (GREY, "stopped"),
}
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
MAX_LABELLED_LANES = 48  # with more lanes, not all names are shown


class CostCurve(NamedTuple):
    """Cost against label frequency, in bins of positives that double; all (n_bins,) float64.

    at: geometric mean of the positives in the bin; low, median, high: 10th, 50th and 90th
    percentile of the seconds of its classes; classes, seconds: its share of all classes and of all
    seconds.
    """

    at: Float64
    low: Float64
    median: Float64
    high: Float64
    classes: Float64
    seconds: Float64


class Bar(NamedTuple):
    """A batch, or several merged ones, in a timeline.

    lane: of its worker; begins, ends: in seconds; share: working time over its length.
    """

    lane: int
    begins: float
    ends: float
    share: float
    outcome: str


def cost_curve(positives: Any, seconds: Any) -> CostCurve:
    """Return the cost by frequency of classes.

    positives: (K,) training rows per class; seconds: (K,) cost. Entries that are 0 or unknown are
    left out.
    """
    positives, seconds = np.asarray(positives, np.float64), np.asarray(seconds, np.float64)
    is_known = (positives > 0) & (seconds > 0)
    positives, seconds = positives[is_known], seconds[is_known]
    bins = np.floor(np.log2(positives)).astype(int) if len(positives) else np.empty(0, int)
    groups = [bins == each for each in np.unique(bins)]
    rows = [
        (
            np.exp(np.log(positives[own]).mean()),
            *np.quantile(seconds[own], (0.1, 0.5, 0.9)),
            own.mean(),
            seconds[own].sum() / max(seconds.sum(), 1e-300),
        )
        for own in groups
    ]
    return CostCurve(*np.array(rows, np.float64).reshape(-1, 6).T)


def share_curve(values: Any, points: int = 1000) -> tuple[Float64, Float64]:
    """Return (x, share of the values <= x), thinned to `points`, without non-finite values."""
    values = np.sort(np.asarray(values, np.float64))
    values = values[np.isfinite(values)]
    at = (
        np.unique(np.linspace(0, len(values) - 1, min(points, len(values))).astype(int))
        if len(values)
        else np.empty(0, int)
    )
    return values[at], (at + 1) / max(len(values), 1)


def timeline_bars(document: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of a timeline document, with attempts one after the other.

    document: see `xcray.training.report.timeline.document`; lanes are in the order of its workers.
    An entry for several useless batches is drawn as one bar of their total length, even if they
    were apart.
    """
    lanes = {each["worker"]: lane for lane, each in enumerate(document["workers"])}
    shift = {
        each["attempt_of_run"]: each["begins"] - each["first"] for each in document["attempts"]
    }
    out = []
    for each in document["batches"]:
        if each["worker"] in lanes:
            begins, ends = (
                shift[each["attempt_of_run"]] + each[side] for side in ("started", "ended")
            )
            if each["outcome"] != "done":
                ends = min(ends, begins + each["seconds"])
            share = min(1.0, each["seconds"] / (ends - begins)) if ends > begins else 1.0
            out.append(Bar(lanes[each["worker"]], begins, ends, share, each["outcome"]))
    return out


def speed_ups(points: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Return (workers, speed-up, efficiency) for points (workers, seconds).

    The smallest number of workers is the reference, with an efficiency of 1.
    """
    ordered = sorted(points)
    if not ordered:
        return []
    base = ordered[0][0] * ordered[0][1]
    return [(workers, base / seconds, base / seconds / workers) for workers, seconds in ordered]


def draw_by_frequency(
    path: Path, groups: Mapping[str, Sequence[Mapping[str, Any]]], name: str, note: str
) -> None:
    """Plot P@k, recall and precision by label frequency.

    groups: from `xcray.training.report.summary.by_frequency`.
    """
    with figure_page(path, 11, 6.6, f"Which labels are found · {name}", note) as figure:
        axes = figure.subplots(
            2,
            len(groups),
            squeeze=False,
            sharex="col",
            gridspec_kw={"wspace": 0.06, "hspace": 0.06},
        )
        for column, (equal, rows) in enumerate(groups.items()):
            ks = [key.removeprefix("P@") for key in rows[0] if key.startswith("P@")]
            share, quality = axes[0, column], axes[1, column]
            at, width = np.arange(len(rows)), 0.8 / len(ks)
            for i, k in enumerate(ks):
                colour, place = _shade(i, len(ks)), at + (i - (len(ks) - 1) / 2) * width
                share.bar(
                    place,
                    [100 * row[f"P@{k}"] for row in rows],
                    width * 0.92,
                    color=colour,
                    label=f"P@{k}",
                )
                quality.plot(
                    at,
                    [100 * row[f"recall@{k}"] for row in rows],
                    "o-",
                    color=colour,
                    markersize=4,
                    label=f"recall@{k}",
                )
            right = [100 * row[f"precision@{ks[0]}"] for row in rows]
            quality.plot(at, right, "s--", color=ORANGE, markersize=4, label=f"precision@{ks[0]}")
            words = {
                "labels": "Tenths of the labels",
                "positives": "Tenths of the training positives",
            }
            share.set_title(f"{words[equal]}, rarest first", fontweight="bold")
            quality.set_xticks(at, [_count_range(row) for row in rows], fontsize=8)
            quality.set(xlabel="training rows of a label", ylim=(0, 100))
            if column == 0:
                share.set_ylabel("adds to P@k (points)")
                quality.set_ylabel("recall and precision (%)")
                share.legend(loc="upper left")
                quality.legend(loc="upper left", ncols=2)
            for axis in (share, quality):
                axis.grid(False, axis="x")


def draw_costs(path: Path, positives: Any, seconds: Any, name: str, note: str) -> None:
    """Plot the seconds of each class against its positives, and the shares of classes and time."""
    curve = cost_curve(positives, seconds)
    positives, ms = np.asarray(positives, np.float64), 1e3 * np.asarray(seconds, np.float64)
    known = (positives > 0) & (ms > 0)
    with figure_page(path, 8.5, 6.2, f"Cost by label frequency · {name}", note) as figure:
        above, below = figure.subplots(
            2, 1, sharex=True, height_ratios=(3, 1), gridspec_kw={"hspace": 0.05}
        )
        _draw_points(above, positives[known], ms[known])
        above.plot(curve.at, 1e3 * curve.median, "o-", color=RED, markersize=5, label="median")
        for side, label in ((curve.low, "10 % and 90 %"), (curve.high, None)):
            above.plot(curve.at, 1e3 * side, "--", color=RED, linewidth=1.1, label=label)
        if known.any():
            above.set(
                xscale="log", yscale="log", ylim=(ms[known].min() / 1.4, ms[known].max() * 1.6)
            )
        above.set_ylabel("time of a class (ms)")
        above.legend(loc="upper left")
        for share, factor, colour, label in (
            (curve.classes, 1 / 1.36, BLUES[0], "classes"),
            (curve.seconds, 1.36, BLUES[2], "time"),
        ):
            below.bar(
                curve.at,
                100 * share,
                curve.at * (factor - 1.0),
                align="edge",
                color=colour,
                label=label,
            )
        below.set(xlabel="positives (training rows of the label)", ylabel="share (%)")
        below.legend(loc="upper right", ncols=2)
        below.grid(False, axis="x")
        for axis in (above.xaxis, above.yaxis):
            axis.set_major_formatter("{x:g}")


def draw_timeline(path: Path, document: Mapping[str, Any], name: str, note: str) -> None:
    """Plot one lane per worker with batches as bars, and the busy share of each lane.

    document: from `xcray.training.report.timeline.document`.
    """
    lanes, all_bars = document["workers"], timeline_bars(document)
    height = min(14.0, max(2.6, 1.7 + 0.3 * len(lanes)))
    with figure_page(path, 11, height, f"Timeline · {name}", note) as figure:
        left, right = figure.subplots(
            1, 2, sharey=True, width_ratios=(7, 1), gridspec_kw={"wspace": 0.03}
        )
        for outcome in sorted({bar.outcome for bar in all_bars}, key=list(OUTCOMES).index):
            _draw_lanes(
                left,
                [bar for bar in all_bars if bar.outcome == outcome],
                outcome,
                fine=len(lanes) <= MAX_LABELLED_LANES,
            )
        for each in document["attempts"][1:]:
            left.axvline(each["begins"], color=INK, linewidth=1, linestyle=":")
        left.set(
            xlim=(0, max(document["makespan"], 1e-9)),
            ylim=(len(lanes) - 0.4, -0.6),
            xlabel="seconds",
        )
        shown = range(0, len(lanes), -(-len(lanes) // MAX_LABELLED_LANES) or 1)
        left.set_yticks(shown, [lanes[i]["worker"] for i in shown])
        left.grid(False, axis="y")
        if all_bars:
            left.legend(
                loc="lower left",
                bbox_to_anchor=(0, 1.0),
                ncols=4,
                borderaxespad=0.2,
                handlelength=1.2,
            )
        shares = [100 * each["share"] for each in lanes]
        if len(lanes) <= MAX_LABELLED_LANES:
            right.barh(range(len(lanes)), shares, 0.72, color=BLUES[0])
        else:
            right.fill_betweenx(range(len(lanes)), shares, step="mid", color=BLUES[0], linewidth=0)
        right.set(xlim=(0, 100), xlabel="busy (%)")
        right.tick_params(left=False)
        for lane, share in enumerate(shares if len(lanes) <= MAX_LABELLED_LANES else []):
            right.text(4, lane, f"{share:.1f}", va="center", fontsize=8, color=INK)


def draw_certificates(
    path: Path, gaps: Any, eps: float | None, rounds: Any, name: str, note: str
) -> None:
    """Plot the rounds of the classes, and the share of classes at or below each relative gap.

    gaps, rounds: (K,).
    """
    with figure_page(path, 10, 3.9, f"How the classes converged · {name}", note) as figure:
        left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
        counts = np.bincount(np.asarray(rounds, np.int64)) if len(rounds) else np.zeros(1, int)
        left.bar(np.arange(len(counts)), counts, 0.8, color=BLUE)
        first = min(1, int(np.min(rounds, initial=1)))
        left.set(
            xlim=(first - 0.6, len(counts) - 0.4),
            xlabel="rounds of a class",
            ylabel="classes",
            yscale="log" if counts.max(initial=0) > 1000 else "linear",
        )
        left.xaxis.get_major_locator().set_params(integer=True)
        left.grid(False, axis="x")
        x, share = share_curve(np.maximum(gaps, 1e-8))
        right.step(x, 100 * share, where="post", color=BLUES[2])
        if eps is not None:
            right.axvline(
                eps, color=RED, linestyle="--", linewidth=1.5, label=f"requested: {eps:g}"
            )
            right.legend(loc="upper left")
        right.set(
            xscale="log" if len(x) else "linear",
            xlabel="duality gap / null objective",
            ylabel="classes at or below (%)",
            ylim=(0, 101),
        )


def draw_descent(path: Path, history: Sequence[Mapping[str, Any]], name: str, note: str) -> None:
    """Plot the objective and held-out metrics against time and against epochs.

    history: one entry per point, with "seconds" (since the start of the training), "epoch",
    "objective". With held-out rows also "held_out", their loss, and metrics as fractions, "P@1" and
    so on.
    """
    measures = [key for key in (history[-1] if history else ()) if "@" in key][:3]
    held_out = [each for each in history if each.get("held_out") is not None]
    rows = 2 if measures else 1
    with figure_page(
        path, 10, 3.2 * rows + 0.8, f"How the objective fell · {name}", note
    ) as figure:
        axes = figure.subplots(
            rows,
            2,
            squeeze=False,
            sharex="col",
            sharey="row",
            gridspec_kw={"wspace": 0.04, "hspace": 0.06},
        )
        for column, (by, label) in enumerate((("seconds", "seconds"), ("epoch", "epochs"))):
            above = axes[0, column]
            above.plot(
                [each[by] for each in history],
                [each["objective"] for each in history],
                "o-",
                color=BLUE,
                markersize=3,
            )
            above.plot(
                [each[by] for each in held_out],
                [each["held_out"] for each in held_out],
                "s--",
                color=ORANGE,
                markersize=3,
            )
            for i, measure in enumerate(measures):
                shown = [each for each in history if each.get(measure) is not None]
                values = [100 * each[measure] for each in shown]
                axes[1, column].plot(
                    [each[by] for each in shown],
                    values,
                    "o-",
                    color=_shade(i, len(measures)),
                    markersize=3,
                )
            axes[-1, column].set_xlabel(label)
        axes[0, 0].set_ylabel("objective")
        axes[0, 1].legend(
            ["training objective", "held-out loss"] if held_out else ["training objective"],
            loc="upper right",
        )
        if measures:
            axes[1, 0].set_ylabel("held-out rows (%)")
            axes[1, 1].legend(measures, loc="lower right")


def draw_calibration(
    path: Path, report: Mapping[str, Mapping[str, Any]], name: str, note: str
) -> None:
    """Plot observed against predicted probability for each k, before and after calibration.

    report: from `xcray.training.calibration.fit`.
    """
    with figure_page(path, 3.6 * max(len(report), 2), 4.1, f"Calibration · {name}", note) as figure:
        panels = figure.subplots(1, max(len(report), 2), sharey=True, squeeze=False)[0]
        for panel in panels[len(report) :]:
            panel.set_axis_off()
        for (k, facts), panel in zip(report.items(), panels, strict=False):
            panel.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.3)
            lines = (
                ("groups_sigmoid", "ece_sigmoid", "sigmoid of the score", RED),
                ("groups", "ece", "calibrated", BLUE),
            )
            for groups, error, label, color in lines:
                predicted, observed = ([group[i] for group in facts[groups]] for i in (1, 2))
                panel.plot(
                    predicted,
                    observed,
                    "o-",
                    color=color,
                    markersize=4,
                    label=f"{label}: ECE {100 * facts[error]:.1f} %",
                )
            place = "the first label" if int(k) == 1 else f"the first {k} labels"
            panel.set(
                xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=f"predicted probability, {place}"
            )
            panel.legend(loc="upper left", fontsize=8)
        panels[0].set(ylabel="observed share")


def draw_scaling(path: Path, points: Sequence[tuple[int, float]], name: str, note: str) -> None:
    """Plot the speed-up against workers, with the ideal line; points: (workers, seconds)."""
    measured = speed_ups(points)
    with figure_page(path, 6, 5, f"Scaling · {name}", note) as figure:
        axis = figure.subplots()
        workers = [each[0] for each in measured]
        ideal = [min(workers, default=1), max(workers, default=1)]
        axis.plot(ideal, ideal, color=MUTED, linestyle="--", linewidth=1.3, label="ideal")
        axis.plot(
            workers,
            [each[1] for each in measured],
            "o-",
            color=BLUE,
            markersize=6,
            label="measured",
        )
        for each, up, efficiency in measured[1:]:
            axis.annotate(
                f"{up:.2f}x\n{100 * efficiency:.0f} %",
                (each, up),
                (6, -4),
                textcoords="offset points",
                va="top",
                fontsize=8,
            )
        axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="times faster")
        axis.set_xticks(workers, [str(each) for each in workers], minor=False)
        axis.set_yticks(workers, [str(each) for each in workers], minor=False)
        axis.minorticks_off()
        axis.margins(0.12)
        axis.legend(loc="upper left")


@contextmanager
def figure_page(path: Path, width: float, height: float, title: str, note: str) -> Iterator[Figure]:
    """Yield a styled figure with a title and a note below it, and save it at the end.

    width, height: inches. Raises Unavailable if matplotlib is missing.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"pictures need matplotlib ({error.name} is missing): pip install 'xcray[plots]'",
            code="NO_MATPLOTLIB",
        ) from None
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


def _draw_points(axis: Axes, x: Any, y: Any) -> None:
    """Draw single points, or a histogram if there are too many to distinguish.

    Small counts of `x` have one column each.
    """
    if len(x) <= 2000:
        axis.plot(x, y, ".", color=BLUE, alpha=0.4, markersize=5, markeredgewidth=0)
        return
    from matplotlib.colors import LogNorm

    columns = np.unique(np.ceil(np.geomspace(1, x.max() + 1, 60))) - 0.5
    rows = np.geomspace(y.min(), y.max() * 1.01, 61)
    counts = np.histogram2d(x, y, [np.append(columns, columns[-1] * 1.1 + 1), rows])[0].T
    # on a logarithmic axis, the first column would be as wide as the next three
    columns[0] = 0.7
    axis.pcolormesh(
        np.append(columns, columns[-1] * 1.1 + 1),
        rows,
        np.ma.masked_equal(counts, 0),
        norm=LogNorm(vmin=0.3, vmax=counts.max()),
        cmap="Blues",
        rasterized=True,
    )


def _draw_lanes(axis: Axes, bars: Sequence[Bar], outcome: str, fine: bool) -> None:
    """Draw the bars of one outcome, lighter where the worker was idle.

    fine: alternate two tones so that adjacent bars can be distinguished, and draw hatches.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    colour, label = OUTCOMES[outcome]
    hatch = "////" if fine and outcome != "done" else ""
    tones = (1.0, 0.72) if fine and outcome == "done" else (1.0, 1.0)
    turn: dict[int, int] = {}
    corners, faces = [], []
    for bar in bars:
        turn[bar.lane] = 1 - turn.get(bar.lane, 1)
        corners.append(
            [(x, bar.lane + y) for x, y in _rectangle(bar.begins, bar.ends, 0.36 if fine else 0.5)]
        )
        faces.append(
            1.0 - tones[turn[bar.lane]] * (0.2 + 0.8 * bar.share) * (1.0 - np.array(to_rgb(colour)))
        )
    axis.add_collection(PolyCollection(corners, facecolors=faces, linewidths=0, hatch=hatch))
    axis.bar([0], [0], color=colour, hatch=hatch, label=label)  # for the legend


def _rectangle(begins: float, ends: float, half: float) -> list[tuple[float, float]]:
    """Return the corners of a bar of this half height around its lane."""
    return [(begins, -half), (begins, half), (ends, half), (ends, -half)]


def _shade(i: int, n: int) -> str:
    """Return the i-th of n blues, light to dark."""
    return BLUES[min(len(BLUES) - 1, round(i * (len(BLUES) - 1) / max(n - 1, 1)))]


def _count_range(row: Mapping[str, Any]) -> str:
    """Return the counts of a group as text: 3, or 3–6; a dash for an empty group."""
    if row["least"] is None:
        return "–"
    least, most = _short_number(row["least"]), _short_number(row["most"])
    return (
        least
        if least == most
        else f"{least}–{most}"
        if len(least + most) < 5
        else f"{least}–\n{most}"
    )


def _short_number(n: int) -> str:
    """Return 950, 1.2k, 12k."""
    return str(n) if n < 1000 else f"{n / 1000:.1f}k" if n < 10_000 else f"{n / 1000:.0f}k"
