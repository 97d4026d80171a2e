"""Pictures of a training: measures and cost by label frequency, timeline, convergence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from xcray.plots.axes import axis_around, exact_number, named_axis, short_number
from xcray.plots.curves import cost_curve, labels_solved, share_curve, timeline_bars
from xcray.plots.marks import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    Box,
    Boxes,
    Dots,
    Line,
    Mark,
    Panel,
    Point,
    bars,
    lines,
    reference,
)
from xcray.plots.picture import Picture

MAX_DOTS: Final = 2000  # more points are counted in cells
MAX_LANES: Final = 48  # workers in a timeline
MAX_POINTS: Final = 500  # points of a line
MIN_GAP: Final = 1e-8  # smaller relative gaps are drawn there
SOLVED: Final = (("solved", "n_labels", BLUE), ("certified", "certified", ORANGE))
OUTCOMES: Final = {"done": BLUE, "duplicate": ORANGE, "lost": RED, "stopped": GREY}
TENTHS: Final = {"labels": "tenths of the labels", "positives": "tenths of the training positives"}


def frequency_picture(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], name: str, note: str
) -> Picture:
    """Draw P@k, recall and precision by label frequency.

    groups: from `xcray.training.report.summary.measures_by_frequency`.
    """
    panels: list[Panel] = []
    for equal, rows in groups.items():
        ks = [key.removeprefix("P@") for key in rows[0] if key.startswith("P@")]
        x = named_axis("training rows of a label", [_count_range(row) for row in rows])
        shares = [(f"P@{k}", [100 * row[f"P@{k}"] for row in rows]) for k in ks]
        names = [*(f"recall@{k}" for k in ks), f"precision@{ks[0]}"]
        quality = [(each, [100 * row[each] for row in rows]) for each in names]
        highest = max((value for _, values in shares for value in values), default=0.0)
        panels += [
            Panel(
                f"Part of P@k, {TENTHS[equal]}, rarest first",
                x,
                axis_around("adds to P@k (points)", [0.0, highest, 1.0], low=0.0),
                bars(shares),
            ),
            Panel(
                f"Recall and precision, {TENTHS[equal]}, rarest first",
                x,
                axis_around("per cent", [], low=0.0, high=100.0),
                lines([(each, list(enumerate(values))) for each, values in quality]),
            ),
        ]
    return Picture(f"Which labels are found · {name}", note, tuple(panels))


def cost_picture(positives: Any, seconds: Any, name: str, note: str) -> Picture:
    """Draw the seconds of each label against its positives, and the shares of labels and time."""
    curve = cost_curve(positives, seconds)
    positives, ms = np.asarray(positives, np.float64), 1e3 * np.asarray(seconds, np.float64)
    known = (positives > 0) & (ms > 0)
    positives, ms = positives[known], ms[known]
    x = axis_around("training rows of the label", positives.tolist(), low=0.9, is_log=True)
    y = axis_around("time of a label (ms)", ms.tolist(), is_log=True)
    quantiles = [(curve.median, "median", False), (curve.low, "10 %", True)]
    spread = tuple(
        Line(label, _points(curve.at, 1e3 * values), RED, is_dashed=dashed)
        for values, label, dashed in [*quantiles, (curve.high, "90 %", True)]
    )
    middles = [short_number(float(each)) for each in curve.at]
    shares = [("labels", 100 * curve.labels), ("time", 100 * curve.seconds)]
    below = Panel(
        "Shares of labels and time",
        named_axis("training rows of the label, on average", middles),
        axis_around("per cent", [0.0, *(float(v) for _, each in shares for v in each)], low=0.0),
        bars([(label, values.tolist()) for label, values in shares]),
    )
    above = Panel("Time of each label", x, y, (*_point_marks(positives, ms), *spread), 240)
    return Picture(f"Cost by label frequency · {name}", note, (above, below))


def timeline_picture(document: Mapping[str, Any], name: str, note: str) -> Picture:
    """Draw one lane per worker with batches as bars, lighter where the worker was idle.

    document: from `xcray.training.report.timeline.timeline_document`. The first MAX_LANES workers
    are drawn. Later attempts begin at a dashed line. Below them is the number of finished labels.
    """
    workers = document["workers"][:MAX_LANES]
    titles = [f"{each['worker']}, {100 * each['share']:.0f} % busy" for each in workers]
    all_bars = [bar for bar in timeline_bars(document) if bar.lane < len(workers)]
    x = axis_around("seconds", [], low=0.0, high=max(document["makespan"], 1e-9))
    y = named_axis("", titles)
    marks: list[Mark] = []
    for outcome in dict.fromkeys(bar.outcome for bar in all_bars):
        boxes = tuple(
            Box(
                bar.begins,
                bar.ends,
                bar.lane - 0.5,
                bar.lane + 0.5,
                f"{workers[bar.lane]['worker']}: {exact_number(bar.ends - bar.begins)} s from "
                f"{exact_number(bar.begins)} s, {outcome}",
                (0.75 if i % 2 else 1.0) * (0.2 + 0.8 * bar.share),
            )
            for i, bar in enumerate(bar for bar in all_bars if bar.outcome == outcome)
        )
        marks.append(Boxes(outcome, boxes, OUTCOMES[outcome]))
    begins = [each["begins"] for each in document["attempts"][1:]]
    marks += [reference("", (at, -0.5), (at, len(workers) - 0.5)) for at in begins]
    lanes = Panel("", x, y, tuple(marks), max(1, len(workers)) * 34)
    panel = _solved_panel(x, document)
    return Picture(f"Timeline · {name}", note, (lanes, panel) if panel else (lanes,))


def _solved_panel(x: Any, document: Mapping[str, Any]) -> Panel | None:
    """Return the number of finished and of certified labels over time; None without labels."""
    curves = {name: labels_solved(document, counted) for name, counted, _ in SOLVED}
    if not curves["solved"]:
        return None
    shown = {
        name: tuple(points[int(i)] for i in _evenly(len(points), MAX_POINTS))
        for name, points in curves.items()
        if points
    }
    y = axis_around("labels", [0.0, *(n for _, n in shown["solved"])], low=0.0)
    lines = tuple(
        Line(name, shown[name], colour, is_stepped=True)
        for name, _, colour in SOLVED
        if name in shown
    )
    return Panel(f"Labels {' and '.join(shown)}", x, y, lines)


def certificate_picture(gaps: Any, eps: float | None, rounds: Any, name: str, note: str) -> Picture:
    """Draw the rounds of the labels, and the share of labels at or below each relative gap.

    gaps, rounds: (K,).
    """
    counts = np.bincount(np.asarray(rounds, np.int64)) if len(rounds) else np.zeros(1, np.int64)
    first = min(1, int(np.min(rounds, initial=1)))
    numbers = [str(i) for i in range(first, len(counts))] or ["0"]
    heights = [float(each) for each in counts[first:]] or [0.0]
    y = axis_around("labels", [0.0, *heights], low=0.0)
    panels = (
        Panel("Rounds of a label", named_axis("rounds", numbers), y, bars([("labels", heights)])),
        *_gap_panels(np.maximum(gaps, MIN_GAP), eps),
    )
    return Picture(f"How the labels converged · {name}", note, panels)


def objective_picture(history: Sequence[Mapping[str, Any]], name: str, note: str) -> Picture:
    """Draw the objective and held-out measures against epochs, and time if it is known.

    history: one entry per point, with "epoch", "objective", and in reports "seconds" since the
    start of the training. With held-out rows also "held_out", their loss, and measures as
    fractions, "P@1" and so on, "micro-F1" and "macro-F1". A long history is thinned.
    """
    history = [history[int(i)] for i in _evenly(len(history), MAX_POINTS)]
    last = history[-1] if history else {}
    measures = [key for key in last if "@" in key][:3]
    measures += [key for key in last if key.endswith("F1")]
    losses = [("training objective", "objective"), ("held-out loss", "held_out")]
    shown = [(label, key) for label, key in losses if _known(history, key)]
    panels: list[Panel] = []
    scales = [("epoch", "epochs"), ("seconds", "seconds")]
    for by, label in [each for each in scales if _known(history, each[0])]:
        x = axis_around(label, [each[by] for each in history])
        curves = [(text, _series(history, by, key)) for text, key in shown]
        panels.append(_line_panel(f"Objective by {by}", x, "objective", curves))
        if measures:
            curves = [(key, _series(history, by, key, 100.0)) for key in measures]
            title = f"Held-out rows by {by}"
            panels.append(_line_panel(title, x, "per cent", curves))
    return Picture(f"How the objective fell · {name}", note, tuple(panels))


def runs_picture(runs: Sequence[tuple[str, float, float]], name: str) -> Picture:
    """Draw the accuracy of trainings on one data set over their cost.

    runs: (solver, core seconds, P@1) each.
    """
    solvers = list(dict.fromkeys(solver for solver, _, _ in runs))
    marks: list[Mark] = []
    for solver, seconds, precision in runs:
        i, is_first = solvers.index(solver), all(mark.label != solver for mark in marks)
        point = ((max(seconds, 1e-3), 100.0 * precision),)
        marks.append(Line(solver if is_first else "", point, SERIES[i % len(SERIES)], form=i % 3))
    costs = [max(seconds, 1e-3) for _, seconds, _ in runs] or [1.0]
    # at least a decade, so that the axis has marks
    x = axis_around("core seconds", [min(costs) / 2, 2 * max(costs)], is_log=True, pad=0.3)
    percents = [100.0 * precision for _, _, precision in runs] or [50.0]
    y = axis_around("P@1 (per cent)", [min(percents) - 0.5, max(percents) + 0.5])  # a point or more
    panel = Panel("P@1 over the cost of solving", x, y, tuple(marks), 240)
    return Picture(f"Accuracy over cost · {name}", f"{len(runs):,} trainings", (panel,))


def stages_picture(history: Sequence[Mapping[str, Any]], name: str, note: str) -> Picture:
    """Draw the error of held-out rows against the features of all stages and against time.

    history: one entry per stage, with "seconds" since the start of the training, "features" of the
    stages so far, and "P@1" as a fraction, as far as it is known.
    """
    errors = [
        {**each, "error": 100.0 - 100.0 * each["P@1"]}
        for each in history
        if each.get("P@1") is not None
    ]
    panels = tuple(
        _line_panel(
            f"Held-out rows without a true first label by {by}",
            axis_around(by, [each[by] for each in errors]),
            "per cent",
            [("error", _series(errors, by, "error"))],
        )
        for by in ("features", "seconds")
    )
    return Picture(f"How the error fell · {name}", note, panels)


def oracle_picture(rounds: Sequence[Mapping[str, Any]], name: str, note: str) -> Picture:
    """Draw the margin error and the agreement with the exact search against the round.

    rounds: see `xcray.solvers.memoir.margin_errors.OracleErrors`.
    """
    x = axis_around("round", [each["round"] for each in rounds])
    labels = (("mean", "mean"), ("p95", "95 % of the samples"), ("largest", "largest"))
    errors = [(label, _series(rounds, "round", key)) for key, label in labels]
    agreement = [("samples with the exact rival", _series(rounds, "round", "agreement", 100.0))]
    panels = (
        _line_panel("Margin errors", x, "margin error", errors),
        Panel(
            "Samples with the exact rival",
            x,
            axis_around("per cent", [], low=0.0, high=100.0),
            lines(agreement),
        ),
    )
    return Picture(f"What the approximate search missed · {name}", note, panels)


def calibration_picture(report: Mapping[str, Mapping[str, Any]], name: str, note: str) -> Picture:
    """Draw observed against predicted probability for each k, before and after calibration.

    report: from `xcray.training.calibration.fit`.
    """
    panels = []
    kinds = (
        ("calibrated", "groups", "ece", BLUE),
        ("sigmoid", "groups_sigmoid", "ece_sigmoid", RED),
    )
    for k, errors in report.items():
        curves = tuple(
            Line(
                f"{label}: ECE {100 * errors[error]:.1f} %",
                tuple((group[1], group[2]) for group in errors[groups]),
                colour,
                form=form,
            )
            for form, (label, groups, error, colour) in enumerate(kinds)
        )
        x = axis_around("predicted probability", [], low=0.0, high=1.0)
        y = axis_around("observed share", [], low=0.0, high=1.0)
        title = "The first label" if int(k) == 1 else f"The first {k} labels"
        panels.append(Panel(title, x, y, (reference("ideal", (0, 0), (1, 1)), *curves), 240))
    return Picture(f"Calibration · {name}", note, tuple(panels))


def _gap_panels(gaps: Any, eps: float | None) -> tuple[Panel, Panel]:
    """Return the histogram of relative gaps, and the share of labels at or below each gap."""
    bins, names = _gap_bins(gaps[np.isfinite(gaps)])
    x, share = share_curve(gaps, MAX_POINTS)
    requested = [] if eps is None else [eps]
    limits = [reference(f"requested: {each:g}", (each, 0.0), (each, 100.0)) for each in requested]
    axis = axis_around(
        "duality gap / null objective", [*x.tolist(), *requested], is_log=True, pad=0.1
    )
    return (
        Panel(
            "Labels by duality gap",
            named_axis("duality gap / null objective, up to", names),
            axis_around("labels", [0.0, *bins], low=0.0),
            bars([("labels", bins)]),
        ),
        Panel(
            "Duality gaps",
            axis,
            axis_around("labels at or below (%)", [], low=0.0, high=100.0),
            (Line("labels", _points(x, 100 * share), BLUE, is_stepped=True), *limits),
        ),
    )


def _gap_bins(gaps: Any) -> tuple[list[float], list[str]]:
    """Return the numbers of gaps in bins of half a decade, and the upper end of each bin."""
    if not len(gaps):
        return [0.0], [exact_number(MIN_GAP)]
    at = np.ceil(2.0 * np.log10(gaps) - 1e-9).astype(np.int64)
    ends = range(int(at.min()), int(at.max()) + 1)
    return [float((at == end).sum()) for end in ends], [f"{10.0 ** (end / 2):.2g}" for end in ends]


def _line_panel(title: str, x: Any, label: str, series: Sequence[tuple[str, Any]]) -> Panel:
    """Return a panel of lines."""
    y = axis_around(label, [value for _, points in series for _, value in points])
    return Panel(title, x, y, lines(series))


def _series(
    rows: Sequence[Mapping[str, Any]], by: str, key: str, factor: float = 1.0
) -> list[Point]:
    """Return the points of the rows in which the value is known."""
    return [(each[by], factor * each[key]) for each in rows if each.get(key) is not None]


def _known(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return whether any row has a value."""
    return any(each.get(key) is not None for each in rows)


def _points(x: Iterable[Any], y: Iterable[Any]) -> tuple[Point, ...]:
    """Return two arrays as points."""
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True))


def _evenly(n: int, count: int) -> Any:
    """Return at most `count` of the numbers 0 to n - 1, ascending, with both ends."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, count)).astype(np.int64))


def _point_marks(x: Any, y: Any) -> tuple[Mark, ...]:
    """Return single points, or counts in cells if there are too many to distinguish.

    Small counts of `x` have one column each.
    """
    if len(x) <= MAX_DOTS:
        return (Dots("labels", _points(x, y), BLUE),)
    columns = np.unique(np.ceil(np.geomspace(1, x.max() + 1, 40))) - 0.5
    columns = np.append(columns, columns[-1] * 1.1 + 1)
    rows = np.geomspace(y.min(), y.max() * 1.01, 31)
    counts = np.histogram2d(x, y, [columns, rows])[0]
    columns[0] = 0.9
    most = np.log1p(counts.max())
    boxes = tuple(
        Box(
            columns[i],
            columns[i + 1],
            rows[j],
            rows[j + 1],
            f"{exact_number(columns[i] + 0.5)} rows, {exact_number(rows[j])} ms: "
            f"{exact_number(counts[i, j])} labels",
            0.15 + 0.85 * float(np.log1p(counts[i, j]) / most),
        )
        for i, j in np.argwhere(counts > 0)
    )
    return (Boxes("labels", boxes, PURPLE),)


def _count_range(row: Mapping[str, Any]) -> str:
    """Return the counts of a group as text: 3, or 3–6; a dash for an empty group."""
    if row["least"] is None:
        return "–"
    least, most = short_number(row["least"]), short_number(row["most"])
    return least if least == most else f"{least}–{most}"
