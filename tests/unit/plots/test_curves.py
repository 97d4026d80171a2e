"""Values of pictures compared with values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.report_data import batch, table
from xcray.plots import curves
from xcray.training.report.timeline import timeline_document


def test_cost_curve_by_hand():
    curve = curves.cost_curve([1, 1, 1, 2, 3, 0, 4], [1.0, 2.0, 3.0, 4.0, 6.0, 9.0, np.nan])
    np.testing.assert_allclose(curve.at, [1.0, np.sqrt(6.0)])
    np.testing.assert_allclose(curve.median, [2.0, 5.0])
    np.testing.assert_allclose(curve.low, [1.2, 4.2])
    np.testing.assert_allclose(curve.high, [2.8, 5.8])
    np.testing.assert_allclose(curve.labels, [0.6, 0.4])
    np.testing.assert_allclose(curve.seconds, [6 / 16, 10 / 16])
    assert [len(part) for part in curves.cost_curve([], [])] == [0] * 6


def test_share_curve_by_hand():
    x, share = curves.share_curve([3.0, 1.0, np.inf, 2.0])
    assert (x.tolist(), share.tolist()) == ([1.0, 2.0, 3.0], [1 / 3, 2 / 3, 1.0])
    x, share = curves.share_curve(np.arange(10_000), points=100)
    assert (len(x), x[0], x[-1], share[-1]) == (100, 0.0, 9999.0, 1.0)
    assert curves.share_curve([])[0].tolist() == []


def test_bars_lie_end_to_end_in_the_lanes_of_their_workers():
    rows = [
        batch("w-1", 1.0, 1.0),
        batch("w-0", 1.5, 1.5, "lost"),
        batch("w-0", 0.25, 2.0, attempt_of_run=2),
        batch("w-0", 3.0, 0.0, attempt_of_run=2),
    ]
    assert curves.timeline_bars(timeline_document(table(*rows))) == [
        curves.Bar(1, 0.0, 1.0, 1.0, "done"),
        curves.Bar(0, 0.5, 2.0, 1.0, "lost"),
        curves.Bar(0, 2.0, 4.0, 1.0, "done"),
        curves.Bar(0, 4.75, 4.75, 1.0, "done"),
    ]
    document = timeline_document(table(*rows))
    assert curves.labels_solved(document, "certified") == []  # this timeline is of 0.1.0
    solved = curves.labels_solved(document, "n_labels")
    assert solved == [(0.0, 0.0), (1.0, 10.0), (4.0, 20.0), (4.75, 30.0)]
    halves = table(*(batch(started=float(t), seconds=0.999) for t in range(8)))
    merged = curves.timeline_bars(timeline_document(halves, limit=2))
    assert len(merged) == 2
    assert merged[0].share == pytest.approx(4 * 0.999 / 3.999)
    apart = table(
        *(
            batch(started=float(t), seconds=0.25, outcome="lost" if t % 4 else "done")
            for t in range(9)
        )
    )
    lost = [
        bar
        for bar in curves.timeline_bars(timeline_document(apart, limit=2))
        if bar.outcome == "lost"
    ]
    # Six batches in one bar as long as their sum.
    assert [(bar.begins, bar.ends, bar.share) for bar in lost] == [(1.0, 2.5, 1.0)]
