"""Plots: contents compared with values by hand, and a PNG of the right size for each."""

from __future__ import annotations

import builtins

import numpy as np
import pyarrow as pa
import pytest

from tests.support.report_data import batch, png_size, table
from xcray import plots
from xcray.errors import Unavailable
from xcray.training.report.timeline import timeline_document


def test_cost_curve_by_hand():
    curve = plots.cost_curve([1, 1, 1, 2, 3, 0, 4], [1.0, 2.0, 3.0, 4.0, 6.0, 9.0, np.nan])
    np.testing.assert_allclose(curve.at, [1.0, np.sqrt(6.0)])
    np.testing.assert_allclose(curve.median, [2.0, 5.0])
    np.testing.assert_allclose(curve.low, [1.2, 4.2])
    np.testing.assert_allclose(curve.high, [2.8, 5.8])
    np.testing.assert_allclose(curve.classes, [0.6, 0.4])
    np.testing.assert_allclose(curve.seconds, [6 / 16, 10 / 16])
    assert [len(part) for part in plots.cost_curve([], [])] == [0] * 6


def test_share_curve_by_hand():
    x, share = plots.share_curve([3.0, 1.0, np.inf, 2.0])
    assert (x.tolist(), share.tolist()) == ([1.0, 2.0, 3.0], [1 / 3, 2 / 3, 1.0])
    x, share = plots.share_curve(np.arange(10_000), points=100)
    assert (len(x), x[0], x[-1], share[-1]) == (100, 0.0, 9999.0, 1.0)
    assert plots.share_curve([])[0].tolist() == []


def test_bars_lie_end_to_end_in_the_lanes_of_their_workers():
    rows = [
        batch("w-1", 1.0, 1.0),
        batch("w-0", 1.5, 1.5, "lost"),
        batch("w-0", 0.25, 2.0, attempt_of_run=2),
        batch("w-0", 3.0, 0.0, attempt_of_run=2),
    ]
    assert plots.timeline_bars(timeline_document(table(*rows))) == [
        plots.Bar(1, 0.0, 1.0, 1.0, "done"),
        plots.Bar(0, 0.5, 2.0, 1.0, "lost"),
        plots.Bar(0, 2.0, 4.0, 1.0, "done"),
        plots.Bar(0, 4.75, 4.75, 1.0, "done"),
    ]
    halves = table(*(batch(started=float(t), seconds=0.999) for t in range(8)))
    merged = plots.timeline_bars(timeline_document(halves, limit=2))
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
        for bar in plots.timeline_bars(timeline_document(apart, limit=2))
        if bar.outcome == "lost"
    ]
    # Six batches in one bar as long as their sum.
    assert [(bar.begins, bar.ends, bar.share) for bar in lost] == [(1.0, 2.5, 1.0)]


def test_speed_ups():
    assert plots.speed_ups([(4, 30.0), (1, 100.0), (2, 50.0)]) == [
        (1, 1.0, 1.0),
        (2, 2.0, 1.0),
        (4, 100 / 30, 100 / 120),
    ]
    assert plots.speed_ups([(2, 50.0), (4, 25.0)]) == [(2, 2.0, 1.0), (4, 4.0, 1.0)]
    assert plots.speed_ups([]) == []


def group(least, most, **more):
    """Return a row of a table by frequency."""
    return {
        "labels": 4,
        "least": least,
        "most": most,
        "true": 9,
        "P@1": 0.1,
        "recall@1": 0.2,
        "precision@1": 0.5,
        **more,
    }


def test_every_picture_is_a_png(tmp_path, rng):
    groups = {
        "labels": [group(1, 1), group(2, 950)],
        "positives": [group(None, None), group(1200, 25_000)],
    }
    plots.draw_by_frequency(tmp_path / "groups.png", groups, "set", "note")
    for name, n in (("few", 50), ("many", 5000), ("none", 0)):
        plots.draw_costs(
            tmp_path / f"{name}.png", rng.zipf(2.0, n), rng.gamma(2.0, 1e-3, n), "set", "note"
        )
    outcomes = ("done", "duplicate", "lost", "stopped")
    rows = [
        batch(f"w-{i % 3}", float(i), 0.9, outcomes[i % 4], attempt_of_run=1 + i // 30)
        for i in range(60)
    ]
    plots.draw_timeline(tmp_path / "timeline.png", timeline_document(table(*rows)), "set", "note")
    plots.draw_timeline(
        tmp_path / "idle.png",
        timeline_document(pa.Table.from_pylist(rows).slice(0, 0)),
        "set",
        "note",
    )
    plots.draw_certificates(
        tmp_path / "gaps.png", rng.random(30) * 0.01, 0.01, rng.integers(1, 5, 30), "set", "note"
    )
    plots.draw_certificates(tmp_path / "no-gaps.png", [], None, [], "set", "note")
    plots.draw_scaling(tmp_path / "scaling.png", [(1, 8.0), (2, 4.2)], "set", "note")
    epochs = [
        {
            "seconds": 0.1 * e,
            "epoch": e,
            "objective": 2.0 / e,
            "held_out": 3.0 / e if e % 2 else None,
        }
        for e in range(1, 9)
    ]
    plots.draw_descent(
        tmp_path / "descent.png", [{**e, "P@1": 0.5, "P@3": None} for e in epochs], "set", "note"
    )
    plots.draw_descent(
        tmp_path / "bare.png", [{**e, "held_out": None} for e in epochs], "set", "note"
    )
    sizes = {path.name: png_size(path) for path in tmp_path.glob("*.png")}
    assert len(sizes) == 11
    assert sizes["groups.png"] == (11 * plots.DPI, round(6.6 * plots.DPI))
    assert all(600 <= width <= 2000 and 300 <= height <= 2200 for width, height in sizes.values())
    assert all(path.stat().st_size > 8000 for path in tmp_path.glob("*.png"))


def test_many_lanes_stay_on_one_page(tmp_path):
    crowd = table(*(batch(f"w-{i}", 0.0, 1.0) for i in range(300)))
    plots.draw_timeline(tmp_path / "crowd.png", timeline_document(crowd), "set", "note")
    assert png_size(tmp_path / "crowd.png")[1] <= 14 * plots.DPI


def test_without_matplotlib_the_fix_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unavailable, match=r"pip install 'xcray\[plots\]'") as caught:
        plots.draw_scaling(tmp_path / "scaling.png", [(1, 8.0)], "set", "note")
    assert caught.value.code == "NO_MATPLOTLIB"
    assert not (tmp_path / "scaling.png").exists()
