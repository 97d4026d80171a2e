"""Report of a finished model: figures as JSON, one page of Markdown, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray import plots
from xcray.errors import InputError
from xcray.model.model import Model
from xcray.solvers import SOLVERS
from xcray.storage.atomic import write_bytes, write_json
from xcray.training.report.oracle_plot import draw_oracle
from xcray.training.report.stages_plot import draw_stages
from xcray.training.report.timeline import describe_timeline, timeline_document

MAX_CLASSES = 10  # classes listed in the report
QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
PAGE: Final = """\
# {name}

{summary}

{measures}

{pictures}
"""


def draw_report(model_path: Path, out: Path, others: Sequence[Path] = ()) -> dict[str, Any]:
    """Draw the report of a model directory into `out` and return the content of report.json.

    Writes report.json, report.md and the pictures. others: models of the same training with other
    numbers of workers, for a scaling picture. Pictures without data are left out; "left_out" gives
    the reasons. Files of an earlier report are replaced.
    Raises NotFound, Corrupt; Unavailable without matplotlib; InputError if a model of `others`
    comes from another training.
    """
    model = Model.open(model_path, verify=False)
    report = summarize_model(model)
    points = (
        measure_scaling([model, *(Model.open(path, verify=False) for path in others)])
        if others
        else []
    )
    out.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, draw in _picture_functions(model).items():
        reason = draw(model, report, out / f"{name}.png")
        if reason is None:
            pictures[name] = f"{name}.png"
        else:
            left_out[name] = reason
    if points:
        seconds = ", ".join(f"{workers}: {each:.1f} s" for workers, each in points)
        plots.draw_scaling(
            out / "scaling.png", points, report["name"], f"solving by workers, {seconds}"
        )
        pictures["scaling"] = "scaling.png"
    complete = {**report, "scaling": points, "pictures": pictures, "left_out": left_out}
    write_json(out / "report.json", complete)
    write_bytes(out / "report.md", to_markdown(complete).encode())
    return complete


def summarize_model(model: Model) -> dict[str, Any]:
    """Return the training figures in a model's files: settings, measures, classes, timeline; JSON.

    "classes": counts, and quantiles of positives, rounds, weights and seconds over the classes.
    "dearest": the classes that took longest. "loosest": the classes with the largest gap relative
    to their null objective. Seconds are null if the model has none.
    """
    manifest, table = model.manifest, model.classes
    training = manifest["report"]
    columns = _class_columns(model)
    out: dict[str, Any] = {
        "name": training.get("data", {}).get("name") or model.path.name,
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
        "classes": {},
        "dearest": [],
        "loosest": [],
        "timeline": None,
        **({"calibration": model.calibration_facts} if model.calibration_facts else {}),
    }
    if table is not None:
        column_names = [
            name
            for name in ("positives", "rounds", "active", "support", "nnz", "seconds")
            if name in columns
        ]
        out["classes"] = {name: _quantiles(columns[name]) for name in column_names}
        out["dearest"] = _largest_classes(model, columns, columns.get("seconds"))
        out["loosest"] = _largest_classes(model, columns, columns.get("relative_gap"))
    timeline = model.timeline
    if timeline is not None:
        out["timeline"] = {
            name: value
            for name, value in timeline_document(timeline, limit=1).items()
            if name not in ("batches", "thinned")
        }
    return out


def measure_scaling(models: Sequence[Model]) -> list[tuple[int, float]]:
    """Return (workers, seconds of solving) of models, the quickest per number of workers.

    Raises InputError unless all have the same content.
    """
    if len({model.sha256 for model in models}) > 1:
        raise InputError(
            "models of different trainings do not show scaling: give models with the same sha256",
            code="NOT_THE_SAME",
        )
    best: dict[int, float] = {}
    for model in models:
        report = model.manifest["report"]
        workers, seconds = int(report["workers"]), float(report["makespan"])
        best[workers] = min(seconds, best.get(workers, seconds))
    return sorted(best.items())


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as one page of Markdown that links to the pictures' files."""
    training, (n_labels, n_features) = report["training"], report["shape"]
    lines = [
        f"{n_labels:,} classes over {n_features:,} features, "
        f"solved by {report['solver']}; {report['nnz']:,} weights."
    ]
    if "classes_certified" in training:
        gap = (
            f"; the largest gap is {training['largest_gap']:.2g} of the null objective"
            if "largest_gap" in training
            else ""
        )
        lines.append(
            f"{training['classes_certified']:,} of {training['classes']:,} classes certified{gap}."
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
        ms = f"{1e3 * training['core_seconds'] / max(n_labels, 1):.2f} ms per class"
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


def _class_columns(model: Model) -> dict[str, Any]:
    """Return the class table as arrays, without unsolved classes, plus derived columns."""
    if model.classes is None:
        return {}
    out = {
        name: model.classes.column(name).to_numpy()
        for name in model.classes.column_names
        if name != "worker"
    }
    if "rounds" in out:
        solved = out["rounds"] >= 0
        out = {name: values[solved] for name, values in out.items()}
    if {"gap", "null"} <= out.keys():
        out["relative_gap"] = np.where(
            out["null"] > 0.0, out["gap"] / np.maximum(out["null"], 1e-300), 0.0
        )
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


def _largest_classes(model: Model, columns: Mapping[str, Any], by: Any) -> list[dict[str, Any]]:
    """Return the classes with the largest values, with their names."""
    if by is None or not np.isfinite(by).any():
        return []
    order = np.argsort(-np.nan_to_num(by, nan=-1.0), kind="stable")[:MAX_CLASSES]
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


def _draw_by_frequency(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw measures by label frequency; return the reason if that is impossible."""
    groups = report["training"].get("by_frequency")
    if not groups:
        return (
            "the model was not measured by label frequency "
            "(no held-out part, or trained by an earlier xcray)"
        )
    shown = ", ".join(
        f"{name} {100 * value:.2f} %"
        for name, value in report["measures"].items()
        if name.startswith("P@")
    )
    held_out = report["training"].get("data", {}).get("held_out", 0)
    plots.draw_by_frequency(
        path,
        groups,
        report["name"],
        f"{held_out:,} held-out rows, {model.n_labels:,} labels; {shown}",
    )
    return None


def _draw_costs(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw cost by frequency; return the reason if that is impossible."""
    columns = _class_columns(model)
    if "positives" not in columns or not np.isfinite(columns.get("seconds", np.empty(0))).any():
        return (
            "the seconds per class are unknown "
            "(the run kept no timeline, or an earlier xcray trained it)"
        )
    seconds = columns["seconds"]
    total, middle = np.nansum(seconds), 1e3 * np.nanmedian(seconds)
    rare = np.nansum(seconds[columns["positives"] <= 5]) / max(total, 1e-300)
    note = (
        f"{len(seconds):,} classes in {total:,.1f} core seconds; median {middle:.2f} ms; "
        f"{100 * rare:.0f} % of the time in classes"
    )
    plots.draw_costs(
        path, columns["positives"], seconds, report["name"], f"{note} of at most 5 positives"
    )
    return None


def _draw_timeline(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw the timeline; return the reason if that is impossible."""
    timeline = model.timeline
    if timeline is None or not timeline.num_rows:
        return (
            "the model has no timeline.arrow "
            "(an earlier xcray trained it, or no batch was recorded)"
        )
    figures = timeline_document(timeline)
    plots.draw_timeline(path, figures, report["name"], describe_timeline(figures))
    return None


def _draw_certificates(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw the final gaps and rounds of classes; return the reason if that is impossible."""
    columns = _class_columns(model)
    if "relative_gap" not in columns or "rounds" not in columns:
        return f"solver {report['solver']} records no gaps by class"
    if report["solver"] in SOLVERS and SOLVERS[report["solver"]].family == "joint":
        return f"solver {report['solver']} certifies all classes as one problem"
    eps, training = report["params"].get("eps"), report["training"]
    has_positives = (
        columns["positives"] > 0
        if "positives" in columns
        else np.ones(len(columns["rounds"]), bool)
    )
    rounds, gaps = columns["rounds"][has_positives], columns["relative_gap"][has_positives]
    if not len(rounds):
        return "no class was solved"
    note = (
        f"{training['classes_certified']:,} of {training['classes']:,} classes certified; "
        if "classes_certified" in training
        else ""
    )
    hidden_note = (
        f"; {(~has_positives).sum():,} without positives not shown"
        if not has_positives.all()
        else ""
    )
    note += f"{rounds.mean():.1f} rounds per class, at most {rounds.max()}{hidden_note}"
    plots.draw_certificates(path, gaps, eps, rounds, report["name"], note)
    return None


def _draw_calibration(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw the reliability of a calibrated model's probabilities."""
    facts = model.calibration_facts
    rows = (
        f"{facts['rows']['fitted']:,} held-out rows to fit, "
        f"{facts['rows']['measured']:,} others to measure"
    )
    bins, places = len(facts["bins"]), max(len(facts["places"]), 1)
    note = f"{rows}; {bins} x {places} curves: labels by frequency, places"
    plots.draw_calibration(path, facts["report"], report["name"], note)


def _draw_objective(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw the objective and the held-out measures over time and epochs."""
    training = report["training"]
    note = (
        f"objective {training['objective']:.6g} after {training['epochs']:,} epochs; "
        f"{training['stopped']}"
    )
    plots.draw_descent(path, training["history"], report["name"], note)


def _draw_stages(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw the held-out error over features and time."""
    training = report["training"]
    note = f"{training['stages']:,} stages; {training['stopped']}"
    draw_stages(path, training["history"], report["name"], note)


def _draw_oracle(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw the errors of an approximate search by round."""
    training = report["training"]
    seconds = sum(each["build_seconds"] for each in training["oracle"])
    note = f"indexes took {seconds:.3g} s to build; samples were searched exactly, too"
    draw_oracle(path, training["oracle"], report["name"], note)


def _picture_functions(
    model: Model,
) -> dict[str, Callable[[Model, Mapping[str, Any], Path], str | None]]:
    """Return the pictures of a model: those of all models, and those that only some have."""
    history = model.manifest["report"].get("history")
    optional = {
        "stages": (_draw_stages, history if model.linear is None else None),
        "descent": (_draw_objective, history if model.linear is not None else None),
        "oracle": (_draw_oracle, model.manifest["report"].get("oracle")),
        "calibration": (_draw_calibration, model.calibration_facts),
    }
    return {**_COMMON_PICTURES, **{name: draw for name, (draw, there) in optional.items() if there}}


_COMMON_PICTURES: Final[dict[str, Callable[[Model, Mapping[str, Any], Path], str | None]]] = {
    "by_frequency": _draw_by_frequency,
    "costs": _draw_costs,
    "certificates": _draw_certificates,
    "timeline": _draw_timeline,
}
