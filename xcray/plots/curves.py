"""Values of pictures: cost by label frequency, bars of a timeline, shares.

Pure functions on arrays and documents, without any drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Float64


class CostCurve(NamedTuple):
    """Cost against label frequency, in bins of positives that double; all (n_bins,) float64.

    at: geometric mean of the positives in the bin; low, median, high: 10th, 50th and 90th
    percentile of the seconds of its labels; labels, seconds: its share of all labels and of all
    seconds.
    """

    at: Float64
    low: Float64
    median: Float64
    high: Float64
    labels: Float64
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
    """Return the cost by frequency of labels.

    positives: (K,) training rows per label; seconds: (K,) cost. Entries that are 0 or unknown are
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


def labels_solved(document: Mapping[str, Any], counted: str) -> list[tuple[float, float]]:
    """Return (seconds, labels) of a timeline document, ascending; [] without labels.

    counted: "n_labels", the finished labels, or "certified", those of them with a certificate.
    Block passes of a rotation finish no labels.
    """
    shift = {
        each["attempt_of_run"]: each["begins"] - each["first"] for each in document["attempts"]
    }
    done = sorted(
        (shift[each["attempt_of_run"]] + each["ended"], each[counted])
        for each in document["batches"]
        if each["outcome"] == "done"
    )
    if not any(n for _, n in done):
        return []
    totals = accumulate(n for _, n in done)
    return [(0.0, 0.0), *((at, float(n)) for (at, _), n in zip(done, totals, strict=True))]
