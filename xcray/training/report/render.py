"""Report of a finished model: JSON, one page of Markdown, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.model.model import Model
from xcray.plots.picture import Picture
from xcray.storage.atomic import write_bytes, write_json
from xcray.training.report.pictures import label_columns, model_pictures, model_title
from xcray.training.report.timeline import timeline_document

MAX_LABELS = 10  # labels listed in the report
QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
PAGE: Final = """\
# {name}

{summary}

{measures}

{pictures}
"""


def draw_report(model_path: Path, out: Path) -> dict[str, Any]:
    """Draw the report of a model directory into `out` and return the content of report.json.

    Writes report.json, report.md and the pictures. Pictures without data are left out; "left_out"
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
    write_bytes(out / "report.md", to_markdown(complete).encode())
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


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as one page of Markdown that links to the pictures' files."""
    training, (n_labels, n_features) = report["training"], report["shape"]
    lines = [
        f"{n_labels:,} labels over {n_features:,} features, "
        f"solved by {report['solver']}; {report['nnz']:,} weights."
    ]
    if "labels_certified" in training:
        gap = (
            f"; the largest gap is {training['largest_gap']:.2g} of the null objective"
            if "largest_gap" in training
            else ""
        )
        lines.append(
            f"{training['labels_certified']:,} of {training['labels']:,} labels certified{gap}."
        )
    if "objective" in training:
        epochs = training["epochs"]
        lines.append(f"The objective is {training['objective']:.6g} after {epochs:,} epochs.")
    if "stages" in training:
        lines.append(f"The model is a chain of {training['stages']:,} stages.")
    if "stopped" in training:
        lines.append(f"Why it ended: {training['stopped']}.")
    lines += [
        f"Warning {each['code']}: {each['message']}." for each in training.get("warnings", ())
    ]
    if training.get("core_seconds"):
        ms = f"{1e3 * training['core_seconds'] / max(n_labels, 1):.2f} ms per label"
        took = f"in {training['makespan']:,.1f} s by {training['workers']} workers"
        lines.append(f"{training['core_seconds']:,.1f} core seconds ({ms}) {took}.")
    warnings = training.get("data", {}).get("warnings", ())
    lines += [f"Warning {each['code']}: {each['message']}." for each in warnings]
    lines += [f"No picture {name}: {reason}." for name, reason in report["left_out"].items()]
    table = _measures_table(report["measures"]) or "Not measured: the data have no held-out part."
    pictures = "\n\n".join(
        f"![{name.replace('_', ' ')}]({file})" for name, file in report["pictures"].items()
    )
    return PAGE.format(
        name=report["name"], summary="\n".join(lines), measures=table, pictures=pictures
    )


def _measures_table(measures: Mapping[str, Any]) -> str:
    """Return the measures in Markdown: one row per family, one column per k."""
    families: dict[str, dict[str, str]] = {}
    for name, value in measures.items():
        family, at, k = name.partition("@")
        if at and isinstance(value, float):
            families.setdefault(family, {})[k] = f"{100 * value:.2f}"
    ks = sorted({k for row in families.values() for k in row}, key=int)
    rows = [" | ".join([family, *(row.get(k, "") for k in ks)]) for family, row in families.items()]
    head = [" | ".join(["per cent", *(f"@{k}" for k in ks)]), "|".join(["---"] * (1 + len(ks)))]
    return "\n".join(f"| {line} |" for line in [*head, *rows]) if rows else ""


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
