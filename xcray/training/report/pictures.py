"""Pictures of a finished model: which there are, and why others are missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from xcray.certificate import relative_gaps
from xcray.errors import NotFound
from xcray.model.model import Model
from xcray.plots import trainings as plots
from xcray.plots.picture import Picture
from xcray.solvers import find_solver
from xcray.training.report.timeline import describe_timeline, timeline_document

MAX_BATCHES: Final = 1500  # entries of a timeline that are drawn; neighbours are merged
Drawing: TypeAlias = Callable[[], Picture]
# returns how to draw a picture, or the reason why there is none
PictureOf: TypeAlias = Callable[[Model, str], Drawing | str]


def model_pictures(model: Model, name: str) -> dict[str, Picture | str]:
    """Return the pictures of a model by name; a picture without data is the reason.

    name: of the model, for titles.
    """
    found = {key: picture(model, name) for key, picture in _pictures_of(model).items()}
    return {key: each if isinstance(each, str) else each() for key, each in found.items()}


def picture_names(model: Model) -> list[str]:
    """Return the names of the pictures that a model has, without drawing them."""
    found = {key: picture(model, "") for key, picture in _pictures_of(model).items()}
    return [key for key, each in found.items() if not isinstance(each, str)]


def model_picture(model: Model, picture: str, name: str) -> Picture:
    """Return one picture of a model. Raises NotFound with the reason if there is none."""
    functions = _pictures_of(model)
    if picture not in functions:
        names = ", ".join(functions)
        raise NotFound(f"there is no picture {picture} of this model; there are: {names}")
    found = functions[picture](model, name)
    if isinstance(found, str):
        raise NotFound(f"there is no picture {picture} of this model: {found}")
    return found()


def model_title(model: Model) -> str:
    """Return the name of a model's data set, or of its directory."""
    return str(model.manifest["report"].get("data", {}).get("name") or model.path.name)


def label_columns(model: Model) -> dict[str, Any]:
    """Return the label table as arrays, without unsolved labels, plus derived columns."""
    if model.label_table is None:
        return {}
    out = {
        name: model.label_table.column(name).to_numpy()
        for name in model.label_table.column_names
        if name != "worker"
    }
    if "rounds" in out:
        solved = out["rounds"] >= 0
        out = {name: values[solved] for name, values in out.items()}
    if {"gap", "null"} <= out.keys():
        out["relative_gap"] = relative_gaps(out["gap"], out["null"])
    return out


def _by_frequency(model: Model, name: str) -> Drawing | str:
    """Draw measures by label frequency."""
    training, measures = model.manifest["report"], model.manifest["measures"]
    groups = training.get("by_frequency")
    if not groups:
        return "the model was not measured by label frequency (no held-out part)"
    shown = ", ".join(
        f"{key} {100 * value:.2f} %" for key, value in measures.items() if key.startswith("P@")
    )
    held_out = training.get("data", {}).get("held_out", 0)
    note = f"{held_out:,} held-out rows, {model.n_labels:,} labels; {shown}"
    return partial(plots.frequency_picture, groups, name, note)


def _costs(model: Model, name: str) -> Drawing | str:
    """Draw the cost of labels by frequency."""
    columns = label_columns(model)
    if "positives" not in columns or not np.isfinite(columns.get("seconds", np.empty(0))).any():
        return "the seconds per label are unknown (the run kept no timeline)"
    seconds = columns["seconds"]
    total, middle = np.nansum(seconds), 1e3 * np.nanmedian(seconds)
    rare = np.nansum(seconds[columns["positives"] <= 5]) / max(total, 1e-300)
    note = (
        f"{len(seconds):,} labels in {total:,.1f} core seconds; median {middle:.2f} ms; "
        f"{100 * rare:.0f} % of the time in labels of at most 5 positives"
    )
    return partial(plots.cost_picture, columns["positives"], seconds, name, note)


def _timeline(model: Model, name: str) -> Drawing | str:
    """Draw the timeline of the workers."""
    timeline = model.timeline
    if timeline is None or not timeline.num_rows:
        return "the model has no timeline.arrow (no batch was recorded)"
    document = timeline_document(timeline, MAX_BATCHES)
    return partial(plots.timeline_picture, document, name, describe_timeline(document))


def _certificates(model: Model, name: str) -> Drawing | str:
    """Draw the final gaps and rounds of labels."""
    columns, solver = label_columns(model), model.manifest["solver"]
    if "relative_gap" not in columns or "rounds" not in columns:
        return f"solver {solver} records no gaps by label"
    if (trained_by := find_solver(solver)) is not None and trained_by.certifies_all:
        return f"solver {solver} certifies all labels as one problem"
    rounds, gaps = columns["rounds"], columns["relative_gap"]
    shown = columns.get("positives", np.ones(len(rounds))) > 0
    if not shown.any():
        return "no label was solved"
    training = model.manifest["report"]
    note = f"{rounds[shown].mean():.1f} rounds per label, at most {rounds[shown].max()}"
    if "labels_certified" in training:
        certified, labels = training["labels_certified"], training["labels"]
        note = f"{certified:,} of {labels:,} labels certified; {note}"
    if not shown.all():
        note += f"; {(~shown).sum():,} without positives not shown"
    eps = model.manifest["params"].get("eps")
    return partial(plots.certificate_picture, gaps[shown], eps, rounds[shown], name, note)


def _calibration(model: Model, name: str) -> Drawing | str:
    """Draw the reliability of a calibrated model's probabilities."""
    details = model.calibration_report
    rows = (
        f"{details['rows']['fitted']:,} held-out rows to fit, "
        f"{details['rows']['measured']:,} others to measure"
    )
    bins, places = len(details["bins"]), max(len(details["places"]), 1)
    note = f"{rows}; {bins} x {places} curves: labels by frequency, places"
    return partial(plots.calibration_picture, details["report"], name, note)


def _objective(model: Model, name: str) -> Drawing | str:
    """Draw the objective and the held-out measures over time and epochs."""
    training = model.manifest["report"]
    if training["objective"] is None:
        return f"the objective was not a finite number; {training['stopped']}"
    note = (
        f"objective {training['objective']:.6g} after {training['epochs']:,} epochs; "
        f"{training['stopped']}"
    )
    return partial(plots.objective_picture, training["history"], name, note)


def _stages(model: Model, name: str) -> Drawing | str:
    """Draw the held-out error over features and time."""
    training = model.manifest["report"]
    note = f"{training['stages']:,} stages; {training['stopped']}"
    return partial(plots.stages_picture, training["history"], name, note)


def _oracle(model: Model, name: str) -> Drawing | str:
    """Draw the errors of an approximate search by round."""
    rounds = model.manifest["report"]["oracle"]
    seconds = sum(each["build_seconds"] for each in rounds)
    note = f"indexes took {seconds:.3g} s to build; samples were searched exactly, too"
    return partial(plots.oracle_picture, rounds, name, note)


def _pictures_of(model: Model) -> dict[str, PictureOf]:
    """Return the pictures that a model can have: those of all models, and of its kind."""
    training = model.manifest["report"]
    history = training.get("history")
    optional: dict[str, tuple[PictureOf, Any]] = {
        "stages": (_stages, history if model.stages else None),
        "objective": (_objective, history if "objective" in training else None),
        "oracle": (_oracle, training.get("oracle")),
        "calibration": (_calibration, model.calibration_report),
    }
    return {**_COMMON, **{name: picture for name, (picture, known) in optional.items() if known}}


_COMMON: Final[dict[str, PictureOf]] = {
    "by_frequency": _by_frequency,
    "costs": _costs,
    "certificates": _certificates,
    "timeline": _timeline,
}
