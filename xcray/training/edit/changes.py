"""The next version of a model by one change, as a job of the service makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.api.options import ChangeOptions
from xcray.data.dataset import Dataset
from xcray.errors import NotFound, ParameterError
from xcray.model.model import Model, unknown_label
from xcray.predict.labels import unknown_labels
from xcray.training.calibration.fit import held_out_part
from xcray.training.edit.apply import EditOptions, check_features
from xcray.training.edit.calibrate import calibrate, fit_thresholds, threshold_objective
from xcray.training.edit.labels import (
    add_labels,
    merge_labels,
    remove_labels,
    rename_labels,
    retrain_labels,
)
from xcray.training.edit.update import check_update, update_model
from xcray.training.run import TrainResult


class EditPaths(NamedTuple):
    """The version that changes, the data set, and the model directory to write."""

    model: str
    dataset: str
    out: Path


def _fit(paths: EditPaths, change: ChangeOptions, how: EditOptions) -> TrainResult:
    if change.change == "calibrate":
        made = calibrate(*paths)
    else:
        made = fit_thresholds(*paths, objective=change.objective, precision=change.precision)
    return TrainResult(paths.out, made.sha256, made.measures, {"operation": change.change})


class _Change(NamedTuple):
    """How a change is made, the options that it takes, and how many labels it needs."""

    run: Callable[[EditPaths, ChangeOptions, EditOptions], TrainResult]
    options: tuple[str, ...] = ()
    least_labels: int = 0


_CHANGES: Final[Mapping[str, _Change]] = {
    "rows": _Change(lambda at, change, how: update_model(*at, how, evaluate=True)),
    "calibrate": _Change(_fit),
    "thresholds": _Change(_fit, ("objective", "precision")),
    "add": _Change(lambda at, change, how: add_labels(*at, change.labels or (), how), ("labels",)),
    "retrain": _Change(
        lambda at, change, how: retrain_labels(*at, change.labels or (), how), ("labels",), 1
    ),
    "remove": _Change(
        lambda at, change, how: remove_labels(
            at.model, at.out, change.labels or (), at.dataset, how
        ),
        ("labels",),
        1,
    ),
    "merge": _Change(
        lambda at, change, how: merge_labels(*at, change.labels or (), str(change.into), how),
        ("labels", "into"),
        2,
    ),
    "rename": _Change(
        lambda at, change, how: rename_labels(
            at.model, at.out, dict.fromkeys(change.labels or (), str(change.into)), how
        ),
        ("labels", "into"),
        1,
    ),
}


def check_change(change: ChangeOptions, old: Model, data: Dataset) -> None:
    """Check a change before it is queued.

    Raises ParameterError for options that it does not take or lacks, NotFound for a label that the
    model does not have, and as the change itself.
    """
    name, labels = change.change, change.labels or ()
    _, options, least = _CHANGES[name]
    for field in fields(change):
        is_given = getattr(change, field.name) != field.default
        if is_given and field.name not in ("change", *options):
            raise ParameterError(f"change {name} does not take {field.name}: leave it out")
    if name in ("calibrate", "thresholds"):
        held_out_part(data)
        threshold_objective(change.objective, change.precision)
    elif name == "rows":
        check_update(old, data)
    else:
        old.require_linear()
    check_features(old, data)
    if "into" in options and change.into is None:
        raise ParameterError(f"change {name} needs the new name: set `into`", code="INTO")
    if len(labels) < least:
        raise ParameterError(f"change {name} needs `labels`: name at least {least}", code="LABELS")
    if name == "rename" and len(labels) > 1:
        raise ParameterError("rename one label: set one name in `labels`", code="LABELS")
    unknown = () if name == "add" else unknown_labels(old, labels)
    if unknown:
        raise NotFound(unknown_label(old, unknown[0]))


def make_version(spec: Mapping[str, Any], out: Path, how: EditOptions) -> TrainResult:
    """Write the model that a change makes to `out`, and return the result.

    spec: of the job: `update`, the model directory, `dataset`, and `ChangeOptions`. Raises as the
    change itself.
    """
    names = {field.name for field in fields(ChangeOptions)} & spec.keys()
    change = ChangeOptions(**{name: spec[name] for name in names})
    return _CHANGES[change.change].run(EditPaths(spec["update"], spec["dataset"], out), change, how)
