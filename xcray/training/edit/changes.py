"""The next version of a model by one change, as a job of the service makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.api.options import ChangeOptions
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.model.model import Model
from xcray.training.calibration.fit import held_out_part
from xcray.training.edit.apply import EditOptions, check_features
from xcray.training.edit.calibrate import calibrate, fit_thresholds
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


_Run = Callable[[EditPaths, ChangeOptions, EditOptions], TrainResult]
_CHANGES: Final[Mapping[str, _Run]] = {
    "rows": lambda at, change, how: update_model(*at, how, evaluate=True),
    "calibrate": _fit,
    "thresholds": _fit,
    "add": lambda at, change, how: add_labels(*at, change.labels or (), how),
    "retrain": lambda at, change, how: retrain_labels(*at, change.labels or (), how),
    "remove": lambda at, change, how: remove_labels(
        at.model, at.out, change.labels or (), at.dataset, how
    ),
    "merge": lambda at, change, how: merge_labels(*at, change.labels or (), str(change.into), how),
    "rename": lambda at, change, how: rename_labels(
        at.model, at.out, dict.fromkeys(change.labels or (), str(change.into)), how
    ),
}
# changes that give a label a name
_NAMING: Final = ("merge", "rename")


def check_change(change: ChangeOptions, old: Model, data: Dataset) -> None:
    """Check a change before it is queued. Raises as the change itself, and ParameterError."""
    name = change.change
    if name == "rows":
        check_update(old, data)
    elif name in ("calibrate", "thresholds"):
        held_out_part(data)
    check_features(old, data)
    if (name in _NAMING) != (change.into is not None):
        raise ParameterError("set `into` for merge and rename, and only for them", code="INTO")
    if name == "rename" and len(change.labels or ()) != 1:
        raise ParameterError("rename one label: set one name in `labels`", code="LABELS")


def make_version(spec: Mapping[str, Any], out: Path, how: EditOptions) -> TrainResult:
    """Write the model that a change makes to `out`, and return the result.

    spec: of the job: `update`, the model directory, `dataset`, and `ChangeOptions`. Raises as the
    change itself.
    """
    names = ChangeOptions.__dataclass_fields__
    change = ChangeOptions(**{name: spec[name] for name in names if name in spec})
    return _CHANGES[change.change](EditPaths(spec["update"], spec["dataset"], out), change, how)
