"""Report of a finished model: JSON and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.model.model import Model
from xcray.plots.picture import Picture
from xcray.storage.atomic import write_json
from xcray.training.report.pictures import label_columns, model_pictures, model_title
from xcray.training.report.timeline import timeline_document

MAX_LABELS = 10  # labels listed in the report
QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def draw_report(model_path: Path, out: Path) -> dict[str, Any]:
    """Draw the report of a model directory into `out` and return the content of report.json.

    Writes report.json and the pictures. Pictures without data are left out; "left_out"
    gives the reasons. Files of an earlier report are replaced. Raises NotFound, Corrupt.
    """
    model = Model.open(model_path, verify=False)
    report = summarize_model(model)
    out.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, picture in model_pictures(model, report["name"]).items():
        if isinstance(picture, Picture):
            pictures[name] = f"{name}.svg"
            picture.write(out / pictures[name])
        else:
            left_out[name] = picture
    complete = {**report, "pictures": pictures, "left_out": left_out}
    write_json(out / "report.json", complete)
    return complete


def summarize_model(model: Model) -> dict[str, Any]:
    """Return a model's report: settings, measures, labels, timeline; JSON.

    "labels": counts, and quantiles of positives, rounds, weights and seconds over the labels.
    "dearest": the labels that took longest. "loosest": the labels with the largest gap relative
    to their null objective. Seconds are null if the model has none.
    """
    manifest, table = model.manifest, model.label_table
    training = manifest["report"]
    columns, fitted = label_columns(model), manifest.get("label_thresholds")
    out: dict[str, Any] = {
        "name": model_title(model),
        **{
            name: manifest[name]
            for name in (
                "sha256",
                "created",
                "solver",
                "params",
                "dataset_hash",
                "shape",
                "nnz",
                "measures",
            )
        },
        "training": training,
        "labels": {},
        "dearest": [],
        "loosest": [],
        "timeline": None,
        **({"calibration": model.calibration_report} if model.calibration_report else {}),
        **({"label_thresholds": fitted} if fitted else {}),
    }
    if table is not None:
        column_names = [
            name
            for name in ("positives", "rounds", "active", "support", "nnz", "seconds")
            if name in columns
        ]
        out["labels"] = {name: _quantiles(columns[name]) for name in column_names}
        out["dearest"] = _largest_labels(model, columns, columns.get("seconds"))
        out["loosest"] = _largest_labels(model, columns, columns.get("relative_gap"))
    timeline = model.timeline
    if timeline is not None:
        out["timeline"] = {
            name: value
            for name, value in timeline_document(timeline, limit=1).items()
            if name not in ("batches", "thinned")
        }
    return out


def _quantiles(values: Any) -> dict[str, float | None]:
    """Return mean and quantiles of the finite values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return dict.fromkeys(("mean", *QUANTILES))
    return {
        "mean": float(known.mean()),
        **{name: float(np.quantile(known, q)) for name, q in QUANTILES.items()},
    }


def _largest_labels(model: Model, columns: Mapping[str, Any], by: Any) -> list[dict[str, Any]]:
    """Return the labels with the largest values, with their names."""
    if by is None or not np.isfinite(by).any():
        return []
    order = np.argsort(-np.nan_to_num(by, nan=-1.0), kind="stable")[:MAX_LABELS]
    shown_columns = [
        name
        for name in ("positives", "rounds", "active", "nnz", "relative_gap", "seconds")
        if name in columns
    ]
    return [
        {
            "label": model.label_name(int(columns["label"][i])),
            **{name: _to_python(columns[name][i]) for name in shown_columns},
        }
        for i in order
    ]


def _to_python(value: Any) -> Any:
    """Return a numpy number as a Python number; None for NaN."""
    value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
