"""Pictures: marks at the positions of their values, readable in light and dark, without styles."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.report_data import batch, series_of, table
from xcray.plots import marks, trainings
from xcray.plots.axes import Axis, named_axis
from xcray.plots.counts import counts_picture
from xcray.plots.marks import Line, Panel, bars
from xcray.plots.picture import FILE_STYLE, Picture
from xcray.training.report.timeline import timeline_document

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "a <b>&\"' \x00\x1f end"


def group(least: int | None, most: int | None, **more: float) -> dict[str, Any]:
    """Return a row of a table by frequency."""
    shares = {"P@1": 0.1, "recall@1": 0.2, "precision@1": 0.5}
    return {"labels": 4, "least": least, "most": most, "true": 9, **shares, **more}


def pictures() -> dict[str, Picture]:
    """Return a picture of each kind, with few, many and no values."""
    rng = np.random.default_rng(0)
    groups = {
        "labels": [group(1, 1), group(2, 950)],
        "positives": [group(None, None), group(1200, 25_000)],
    }
    outcomes = ("done", "duplicate", "lost", "stopped")
    rows = [
        batch(f"w-{i % 3}", float(i), 0.9, outcomes[i % 4], attempt_of_run=1 + i // 30)
        for i in range(60)
    ]
    none = pa.Table.from_pylist(rows).slice(0, 0)
    crowd = table(*(batch(f"w-{i}", 0.0, 1.0) for i in range(300)))
    epochs = [
        {"epoch": e, "objective": 2.0 / e, "held_out": 3.0 / e if e % 2 else None}
        for e in range(1, 9)
    ]
    timed = [{**each, "seconds": 0.1, "P@1": 0.5, "P@3": None, "macro-F1": 0.1} for each in epochs]
    curve = {"groups": [(3, 0.2, 0.3), (4, 0.9, 0.7)], "ece": 0.1}
    sigmoid = {"groups_sigmoid": [(7, 0.5, 0.5)], "ece_sigmoid": 0.2}
    errors = {"mean": 0.1, "p95": 0.2, "largest": 1.0, "agreement": 0.7}
    histogram = ("Rows", "rows", "labels", {"edges": [0, 1, 2, 4], "counts": [0, 5, 2]})
    return {
        "frequency": trainings.frequency_picture(groups, HOSTILE, HOSTILE),
        **{
            f"costs {n}": trainings.cost_picture(rng.zipf(2.0, n), rng.gamma(2.0, 1e-3, n), "", "")
            for n in (50, 5000, 0)
        },
        "timeline": trainings.timeline_picture(timeline_document(table(*rows)), "set", "note"),
        "idle": trainings.timeline_picture(timeline_document(none), "set", "note"),
        "crowd": trainings.timeline_picture(timeline_document(crowd), "set", "note"),
        "gaps": trainings.certificate_picture(
            rng.random(30) * 0.01, 0.01, rng.integers(1, 5, 30), "set", "note"
        ),
        "no gaps": trainings.certificate_picture([], None, [], "set", "note"),
        "objective": trainings.objective_picture(timed, "set", "note"),
        "live": trainings.objective_picture(epochs, "set", "note"),
        "stages": trainings.stages_picture([{"seconds": 1, "features": 9, "P@1": 0.5}], "s", "n"),
        "oracle": trainings.oracle_picture([{"round": 1, **errors}], "set", "note"),
        "calibration": trainings.calibration_picture({"1": {**curve, **sigmoid}}, "set", "note"),
        "counts": counts_picture("Counts", "", [histogram]),
    }


@pytest.mark.parametrize("width", [240, 960])
def test_every_picture_is_xml_within_its_frame_and_without_styles(width: int) -> None:
    for name, picture in pictures().items():
        root = ET.fromstring(picture.svg(width))
        size = [float(root.attrib[side]) for side in ("width", "height")]
        assert size[0] == width, name
        assert not [each for each in root.iter() if "style" in each.attrib], name
        assert [each.tag for each in root][:2] == [f"{SVG}title", f"{SVG}desc"], name
        for each in root.iter():
            for side, limit in (("x", size[0]), ("cx", size[0]), ("y", size[1]), ("cy", size[1])):
                assert -1 <= float(each.attrib.get(side, 0)) <= limit + 1, (name, each.attrib)
            numbers = " ".join(each.attrib.values())
            assert not re.search(r"\b(nan|inf)\b", numbers), (name, each.attrib)


def test_f1_is_drawn_against_time() -> None:
    assert re.search(r"Held-out rows by seconds.*macro-F1", pictures()["objective"].svg(), re.S)


def test_bars_are_as_high_as_their_values() -> None:
    heights = [0.0, 2.0, 5.0, 10.0]
    panel = Panel("p", named_axis("x", list("abcd")), Axis("y", 0.0, 10.0), bars([("s", heights)]))
    root = ET.fromstring(Picture("t", "n", (panel,)).svg())
    drawn = [each for each in root.iter(f"{SVG}rect") if len(each)]
    assert [float(each.attrib["height"]) for each in drawn] == pytest.approx(
        [panel.height * each / 10.0 for each in heights], abs=0.11
    )
    assert [each[0].text for each in drawn] == ["a: 0", "b: 2", "c: 5", "d: 10"]


def test_points_are_at_their_values() -> None:
    points = ((1.0, 0.0), (10.0, 0.5), (100.0, 1.0))
    panel = Panel("", Axis("x", 1.0, 100.0, is_log=True), Axis("", 0.0, 1.0), (Line("", points),))
    circles = list(ET.fromstring(Picture("t", "", (panel,)).svg()).iter(f"{SVG}circle"))
    x, y = ([float(each.attrib[side]) for each in circles] for side in ("cx", "cy"))
    assert (x[1] - x[0], y[1] - y[0]) == pytest.approx((x[2] - x[1], y[2] - y[1]), abs=0.11)
    assert (x[0] < x[1], y[0] > y[1]) == (True, True)


def test_values_are_titles_of_the_marks_of_their_series() -> None:
    drawn = pictures()
    found = series_of(drawn["frequency"].svg())
    assert found["P@1"] == ["1: 10", "2–950: 10", "–: 10", "1.2k–25k: 10"]
    assert set(found) == {"P@1", "recall@1", "precision@1"}
    lanes = series_of(drawn["timeline"].svg())
    assert lanes.pop("solved") == []  # a stepped line has no marks
    assert {name: len(titles) for name, titles in lanes.items()} == dict.fromkeys(
        ("done", "duplicate", "lost", "stopped"), 15
    )
    cells = [each for each in series_of(drawn["costs 5000"].svg())["labels"] if "ms:" in each]
    counted = sum(int(each.rpartition("ms: ")[2].split()[0].replace(",", "")) for each in cells)
    assert counted == 5000
    assert series_of(drawn["counts"].svg()) == {"labels": ["0: 0", "1: 5", "2–3: 2"]}


def test_a_narrow_picture_has_fewer_panels_per_row() -> None:
    picture = pictures()["frequency"]

    def columns(width: int) -> int:
        titles = [
            each
            for each in ET.fromstring(picture.svg(width)).iter(f"{SVG}text")
            if (each.text or "").startswith(("Part of", "Recall"))
        ]
        assert len(titles) == 4
        return len({each.attrib["x"] for each in titles})

    assert (columns(320), columns(700), columns(2000)) == (1, 2, 4)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(math.prod(pair) for pair in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", re.findall("background:(#[0-9a-f]+)", FILE_STYLE))
def test_colours_have_contrast_in_light_and_dark(background: str) -> None:
    background = (
        background if len(background) == 7 else "#" + "".join(2 * c for c in background[1:])
    )
    for colour in marks.SERIES:
        low, high = sorted((luminance(colour), luminance(background)))
        assert (high + 0.05) / (low + 0.05) >= 3.0, (colour, background)


def test_a_file_has_colours_and_a_notebook_shows_it(tmp_path) -> None:
    picture = pictures()["timeline"]
    picture.write(tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text()
    assert text == picture._repr_svg_()
    assert "prefers-color-scheme" in text
    assert "<style" not in picture.svg()
