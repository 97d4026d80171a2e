"""Data for tests of reports: timeline rows, sizes and values of pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pyarrow as pa


def batch(
    worker: str = "w-0",
    started: float = 0.0,
    seconds: float = 1.0,
    outcome: str = "done",
    **more: Any,
) -> dict[str, Any]:
    """Return a row of a timeline."""
    fixed = {
        "attempt_of_run": 1,
        "worker": worker,
        "task": 0,
        "attempt": 1,
        "n_labels": 10,
        "cost": 1.0,
        "node": "",
        "cpu_seconds": seconds,
    }
    return {**fixed, "started": started, "seconds": seconds, "outcome": outcome, **more}


def table(*rows: dict[str, Any]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_pylist(list(rows))


def series_of(svg: str) -> dict[str, list[str]]:
    """Return the titles of the marks of an SVG picture by series; fails if it is not XML."""
    found: dict[str, list[str]] = {}
    for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        if "data-series" in group.attrib:
            titles = group.iter("{http://www.w3.org/2000/svg}title")
            found.setdefault(group.attrib["data-series"], []).extend(
                str(each.text) for each in titles
            )
    return found
