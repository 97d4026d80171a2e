"""The report of a finished model: its figures as JSON, one page of Markdown, and the pictures that its files allow."""

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
from xcray.training.report.timeline import document, note_of

MOST = 10  # classes that the report names
QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
PAGE: Final = """\
# {name}

{summary}

{measures}

{pictures}
"""


def draw_report(model_path: Path, out: Path, beside: Sequence[Path] = ()) -> dict[str, Any]:
    """Draw the pictures of a model directory into the folder `out`, with report.json and report.md; what report.json holds.

    beside: models of the same training with other numbers of workers: with them, scaling is drawn too. Pictures whose
    figures the model lacks are left out, and "left_out" says why. Files of an earlier report are replaced.
    Raises NotFound, Corrupt; Unavailable without matplotlib; InputError when a model of `beside` is another training's.
    """
    model = Model.open(model_path, verify=False)
    report = figures(model)
    points = (
        scaling([model, *(Model.open(path, verify=False) for path in beside)]) if beside else []
    )
    out.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, draw in _pictures(model).items():
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
    whole = {**report, "scaling": points, "pictures": pictures, "left_out": left_out}
    write_json(out / "report.json", whole)
    write_bytes(out / "report.md", page_of(whole).encode())
    return whole


def figures(model: Model) -> dict[str, Any]:
    """What the model's files say of its training: settings, measures, classes, spread of the work; JSON.

    "classes": counts, and quantiles of positives, rounds, weights and seconds over the classes; "dearest": the classes that took
    longest; "loosest": those with the largest gap of their null objective. Seconds are null when the model has none.
    """
    manifest, table = model.manifest, model.classes
    kept = manifest["report"]
    columns = _columns(model)
    out: dict[str, Any] = {
        "name": kept.get("data", {}).get("name") or model.path.name,
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
        "training": kept,
        "classes": {},
        "dearest": [],
        "loosest": [],
        "timeline": None,
        **({"calibration": model.calibrated} if model.calibrated else {}),
    }
    if table is not None:
        wanted = [
            name
            for name in ("positives", "rounds", "active", "support", "nnz", "seconds")
            if name in columns
        ]
        out["classes"] = {name: _quantiles(columns[name]) for name in wanted}
        out["dearest"] = _first(model, columns, columns.get("seconds"))
        out["loosest"] = _first(model, columns, columns.get("relative_gap"))
    timeline = model.timeline
    if timeline is not None:
        out["timeline"] = {
            name: value
            for name, value in document(timeline, limit=1).items()
            if name not in ("batches", "thinned")
        }
    return out


def scaling(models: Sequence[Model]) -> list[tuple[int, float]]:
    """(workers, seconds of solving) of each model, the quickest of each number; InputError unless all have the same content."""
    if len({model.sha256 for model in models}) > 1:
        raise InputError(
            "models of different trainings say nothing of scaling: give models with one sha256",
            code="NOT_THE_SAME",
        )
    best: dict[int, float] = {}
    for model in models:
        report = model.manifest["report"]
        workers, seconds = int(report["workers"]), float(report["makespan"])
        best[workers] = min(seconds, best.get(workers, seconds))
    return sorted(best.items())


def page_of(report: Mapping[str, Any]) -> str:
    """The report as one page of Markdown, pictures by their file names."""
    kept, (n_labels, n_features) = report["training"], report["shape"]
    lines = [
        f"{n_labels:,} classes over {n_features:,} features, solved by {report['solver']}; {report['nnz']:,} weights."
    ]
    if "classes_certified" in kept:
        gap = (
            f"the largest gap is {kept['largest_gap']:.2g} of the null objective"
            if "largest_gap" in kept
            else ""
        )
        lines.append(
            f"{kept['classes_certified']:,} of {kept['classes']:,} classes certified; {gap}."
        )
    if "objective" in kept:
        lines.append(
            f"The objective is {kept['objective']:.6g} after {kept['epochs']:,} epochs; {kept['stopped']}."
        )
    if kept.get("core_seconds"):
        ms = f"{1e3 * kept['core_seconds'] / max(n_labels, 1):.2f} ms a class"
        took = f"in {kept['makespan']:,.1f} s by {kept['workers']} workers"
        lines.append(f"{kept['core_seconds']:,.1f} core seconds ({ms}) {took}.")
    lines += [f"No picture {name}: {reason}." for name, reason in report["left_out"].items()]
    table = _table(report["measures"]) or "Not measured: the data have no held-out part."
    shown = "\n\n".join(
        f"![{name.replace('_', ' ')}]({file})" for name, file in report["pictures"].items()
    )
    return PAGE.format(
        name=report["name"], summary="\n".join(lines), measures=table, pictures=shown
    )


def _table(measures: Mapping[str, Any]) -> str:
    """Measures in Markdown: one row a family, one column a k."""
    families: dict[str, dict[str, str]] = {}
    for name, value in measures.items():
        family, at, k = name.partition("@")
        if at and isinstance(value, float):
            families.setdefault(family, {})[k] = f"{100 * value:.2f}"
    ks = sorted({k for row in families.values() for k in row}, key=int)
    rows = [" | ".join([family, *(row.get(k, "") for k in ks)]) for family, row in families.items()]
    head = [" | ".join(["per cent", *(f"@{k}" for k in ks)]), "|".join(["---"] * (1 + len(ks)))]
    return "\n".join(f"| {line} |" for line in [*head, *rows]) if rows else ""


def _columns(model: Model) -> dict[str, Any]:
    """The class table as arrays, those classes left out that were not solved; and what follows from it."""
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
    """Mean and quantiles of what is known."""
    known = values[np.isfinite(values)]
    if not len(known):
        return dict.fromkeys(("mean", *QUANTILES))
    return {
        "mean": float(known.mean()),
        **{name: float(np.quantile(known, q)) for name, q in QUANTILES.items()},
    }


def _first(model: Model, columns: Mapping[str, Any], by: Any) -> list[dict[str, Any]]:
    """The classes with the largest values, by name."""
    if by is None or not np.isfinite(by).any():
        return []
    order = np.argsort(-np.nan_to_num(by, nan=-1.0), kind="stable")[:MOST]
    shown = [
        name
        for name in ("positives", "rounds", "active", "nnz", "relative_gap", "seconds")
        if name in columns
    ]
    return [
        {
            "label": model.label_name(int(columns["label"][i])),
            **{name: _plain(columns[name][i]) for name in shown},
        }
        for i in order
    ]


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's; None for NaN."""
    value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _by_frequency(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw measures by label frequency; why not, else."""
    groups = report["training"].get("by_frequency")
    if not groups:
        return "the model was not measured by label frequency (no held-out part, or trained by an earlier xcray)"
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


def _costs(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw cost by frequency; why not, else."""
    columns = _columns(model)
    if "positives" not in columns or not np.isfinite(columns.get("seconds", np.empty(0))).any():
        return "no class has its seconds (the run kept no timeline, or an earlier xcray trained it)"
    seconds = columns["seconds"]
    total, middle = np.nansum(seconds), 1e3 * np.nanmedian(seconds)
    rare = np.nansum(seconds[columns["positives"] <= 5]) / max(total, 1e-300)
    note = f"{len(seconds):,} classes in {total:,.1f} core seconds; median {middle:.2f} ms; {100 * rare:.0f} % of the time in classes"
    plots.draw_costs(
        path, columns["positives"], seconds, report["name"], f"{note} of at most 5 positives"
    )
    return None


def _timeline(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw the timeline; why not, else."""
    timeline = model.timeline
    if timeline is None or not timeline.num_rows:
        return "the model has no timeline.arrow (an earlier xcray trained it, or no batch was recorded)"
    found = document(timeline)
    plots.draw_timeline(path, found, report["name"], note_of(found))
    return None


def _certificates(model: Model, report: Mapping[str, Any], path: Path) -> str | None:
    """Draw how classes ended; why not, else."""
    columns = _columns(model)
    if "relative_gap" not in columns or "rounds" not in columns:
        return f"solver {report['solver']} records no gaps by class"
    if report["solver"] in SOLVERS and SOLVERS[report["solver"]].joint:
        return f"solver {report['solver']} certifies all classes as one problem"
    eps, kept = report["params"].get("eps"), report["training"]
    there = (
        columns["positives"] > 0
        if "positives" in columns
        else np.ones(len(columns["rounds"]), bool)
    )
    rounds, gaps = columns["rounds"][there], columns["relative_gap"][there]
    if not len(rounds):
        return "no class was solved"
    note = (
        f"{kept['classes_certified']:,} of {kept['classes']:,} classes certified; "
        if "classes_certified" in kept
        else ""
    )
    without = f"; {(~there).sum():,} without positives not shown" if not there.all() else ""
    note += f"{rounds.mean():.1f} rounds a class, at most {rounds.max()}{without}"
    plots.draw_certificates(path, gaps, eps, rounds, report["name"], note)
    return None


def _calibration(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw what the probabilities of a calibrated model are worth."""
    facts = model.calibrated
    rows = f"{facts['rows']['fitted']:,} held-out rows to fit, {facts['rows']['measured']:,} others to measure"
    bins, places = len(facts["bins"]), max(len(facts["places"]), 1)
    note = f"{rows}; {bins} x {places} curves: labels by frequency, places"
    plots.draw_calibration(path, facts["report"], report["name"], note)


def _descent(model: Model, report: Mapping[str, Any], path: Path) -> None:
    """Draw the objective and the held-out measures against time and epochs."""
    kept = report["training"]
    note = f"objective {kept['objective']:.6g} after {kept['epochs']:,} epochs; {kept['stopped']}"
    plots.draw_descent(path, kept["history"], report["name"], note)


def _pictures(model: Model) -> dict[str, Callable[[Model, Mapping[str, Any], Path], str | None]]:
    """What to draw of a model: what every model may have, and what only some have."""
    some = {
        "descent": (_descent, model.manifest["report"].get("history")),
        "calibration": (_calibration, model.calibrated),
    }
    return {**_PICTURES, **{name: draw for name, (draw, there) in some.items() if there}}


_PICTURES: Final[dict[str, Callable[[Model, Mapping[str, Any], Path], str | None]]] = {
    "by_frequency": _by_frequency,
    "costs": _costs,
    "certificates": _certificates,
    "timeline": _timeline,
}
