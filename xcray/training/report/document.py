"""Report of a model's training as JSON of bounded size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xcray.certificate import relative_gaps
from xcray.model.model import Model
from xcray.solvers import find_solver
from xcray.training.report.pictures import picture_names

GAP_EDGES: Final = 10.0 ** np.arange(-8.0, 0.01, 0.5)  # relative gaps; the ends take the rest


def report_document(model: Model) -> dict[str, Any]:
    """Return what a model directory knows about its training, JSON-ready.

    "params": of the solver. "training": entries of the report that are one value. "by_frequency":
    see `measures_by_frequency`, None if it was not measured. "calibration": per k the "ece" and the
    "groups" (rows, mean predicted probability, observed share) with and without ("_sigmoid")
    calibration, None for other models. "label_thresholds": how they were fitted, with the
    "measures" of their decisions, or None. "gaps": "edges" (n + 1) and "counts" (n) of the duality
    gaps of the labels with training rows, as shares of their null objectives, and the "eps" that
    was requested; None if the solver has no certificates by label. "pictures": names of the
    pictures that `xcray.training.report.pictures.model_picture` draws.
    """
    report = model.manifest["report"]
    return {
        "params": dict(model.manifest["params"]),
        "training": {
            name: value for name, value in report.items() if isinstance(value, str | int | float)
        },
        "by_frequency": report.get("by_frequency"),
        "calibration": model.calibration_report.get("report"),
        "label_thresholds": model.manifest.get("label_thresholds"),
        "gaps": _gap_histogram(model),
        "pictures": picture_names(model),
    }


def _gap_histogram(model: Model) -> dict[str, Any] | None:
    """Return the histogram of relative gaps; None if the solver records no gaps by label."""
    table, solver = model.label_table, find_solver(str(model.manifest["solver"]))
    is_joint = solver is not None and solver.certifies_all
    if table is None or is_joint or not {"gap", "null"} <= set(table.column_names):
        return None
    gap, null = (table.column(name).to_numpy().astype(np.float64) for name in ("gap", "null"))
    known = np.isfinite(gap) & (null > 0.0)
    if "positives" in table.column_names:
        known &= table.column("positives").to_numpy() > 0
    shares = np.clip(relative_gaps(gap[known], null[known]), GAP_EDGES[0], GAP_EDGES[-1])
    return {
        "edges": GAP_EDGES.tolist(),
        "counts": np.histogram(shares, GAP_EDGES)[0].tolist(),
        "eps": model.manifest["params"].get("eps"),
    }
