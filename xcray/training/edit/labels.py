"""Add, remove, merge, rename and retrain labels of a model. All other columns keep their bytes.

Each function reads a model directory and publishes a new one; the old one never changes. Labels are
trained with the model's own solver and parameters, on a data set with the model's features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from xcray.data.dataset import Dataset, open_verified
from xcray.errors import Conflict, InputError, NotFound, excerpt, suggestion
from xcray.model.model import Model
from xcray.training.edit.apply import (
    EditOptions,
    LabelChange,
    apply_change,
    check_features,
    check_output_path,
)
from xcray.training.run import TrainResult


def add_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str] = (),
    options: EditOptions | None = None,
) -> TrainResult:
    """Train labels of the data set that the model does not have, and append them.

    labels: by default all new labels with a training row, in the order of the data set. Raises
    NotFound for a label missing in the data set, Conflict for a label that the model has,
    InputError if there is nothing to add or a label has no training row, ShapeMismatch if the data
    set has other features; and the errors of `xcray.training.train`.
    """
    old, data = _open_inputs(model, dataset, out)
    model_names, data_names = _NameIndex(old), _NameIndex(data)
    counts = data.label_counts
    if labels:
        ids = [data_names.find(name) for name in _check_distinct(labels)]
        for name, d in zip(labels, ids, strict=True):
            if name in model_names.ids:
                raise Conflict(
                    f"the model has label {excerpt(name)!r} already; "
                    "train it again with `xcray retrain`"
                )
            _require_rows(name, int(counts[d]), data)
    else:
        ids = [
            d
            for d, name in enumerate(data_names.names)
            if name not in model_names.ids and counts[d] > 0 and data_names.ids[name] == d
        ]
        if not ids:
            raise InputError(
                f"data set {data.name} has no new label with a training row: "
                "there is nothing to add"
            )
    names = [data_names.names[d] for d in ids]
    rows = np.concatenate([np.arange(old.n_labels), np.full(len(ids), -1)])
    trains = np.concatenate([np.full(old.n_labels, -1), np.array(ids, np.int64)])
    return apply_change(
        old,
        data,
        out,
        LabelChange("add", model_names.names + names, rows, trains, {"labels": names}),
        options,
    )


def retrain_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str],
    options: EditOptions | None = None,
) -> TrainResult:
    """Retrain labels of the model on another (newer) data set; their positions do not change.

    Raises NotFound for a label missing in the model or the data set, InputError for one without a
    training row or without any labels, ShapeMismatch if the data set has other features; and the
    errors of `xcray.training.train`.
    """
    old, data = _open_inputs(model, dataset, out)
    model_names, data_names = _NameIndex(old), _NameIndex(data)
    if not labels:
        raise InputError("name at least one label to train again in `labels`")
    rows, trains = np.arange(old.n_labels), np.full(old.n_labels, -1)
    for name in _check_distinct(labels):
        k, d = model_names.find(name), data_names.find(name)
        _require_rows(name, int(data.label_counts[d]), data)
        rows[k], trains[k] = -1, d
    return apply_change(
        old,
        data,
        out,
        LabelChange("retrain", model_names.names, rows, trains, {"labels": list(labels)}),
        options,
    )


def remove_labels(
    model: str | Path,
    out: str | Path,
    labels: Sequence[str],
    dataset: str | Path | None = None,
    options: EditOptions | None = None,
) -> TrainResult:
    """Remove labels; the remaining ones are renumbered and keep their bytes.

    dataset: to evaluate the new model; without one it has no measures. Raises NotFound for a label
    missing in the model, InputError without any labels or if none would remain; and the errors of
    `xcray.training.train`.
    """
    check_output_path(out)
    old = _open_linear(model)
    data = None if dataset is None else _open_matching_data(old, dataset)
    model_names = _NameIndex(old)
    if not labels:
        raise InputError("name at least one label to remove")
    removed = {model_names.find(name) for name in _check_distinct(labels)}
    remaining = np.array([k for k in range(old.n_labels) if k not in removed], np.int64)
    if not len(remaining):
        raise InputError("no label would remain: a model needs at least one")
    names = [model_names.names[k] for k in remaining]
    return apply_change(
        old,
        data,
        out,
        LabelChange(
            "remove", names, remaining, np.full(len(remaining), -1), {"labels": list(labels)}
        ),
        options,
    )


def rename_labels(
    model: str | Path, out: str | Path, names: Mapping[str, str], options: EditOptions | None = None
) -> TrainResult:
    """Rename labels (old name -> new name); numbers and measures do not change.

    Two labels can swap their names. Raises NotFound for a label missing in the model, Conflict if
    two labels would have one name, InputError for an empty name or if nothing would change; and the
    errors of `xcray.training.train`.
    """
    check_output_path(out)
    old = _open_linear(model)
    model_names = _NameIndex(old)
    new = list(model_names.names)
    for before, after in names.items():
        new[model_names.find(before)] = _check_label_name(after)
    if new == model_names.names:
        raise InputError("no label would change its name: give pairs OLD=NEW")
    times = Counter(new)
    for after in names.values():
        if times[after] > 1:
            first, second = (
                excerpt(model_names.names[k])
                for k in [k for k, name in enumerate(new) if name == after][:2]
            )
            raise Conflict(
                f"{excerpt(after)!r} would name two labels ({first!r} and {second!r}); "
                "`xcray labels merge` merges them"
            )
    change = LabelChange(
        "rename", new, np.arange(old.n_labels), np.full(old.n_labels, -1), {"names": dict(names)}
    )
    return apply_change(old, None, out, change, options)


def merge_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str],
    into: str,
    options: EditOptions | None = None,
) -> TrainResult:
    """Merge several labels into one, trained on the rows of all of them.

    It takes the position of the first label; the others are removed. into: its name, which can be
    one of `labels`. Raises NotFound for a label missing in the model or the data set, Conflict if
    `into` is another label of either, InputError for less than two labels, an empty name or a group
    without a training row, ShapeMismatch if the data set has other features; and the errors of
    `xcray.training.train`.
    """
    old, data = _open_inputs(model, dataset, out)
    model_names, data_names = _NameIndex(old), _NameIndex(data)
    group = _check_distinct(labels)
    if len(group) < 2:
        raise InputError("name at least two labels to merge; `xcray labels rename` renames one")
    ids, sources = (
        [model_names.find(name) for name in group],
        [data_names.find(name) for name in group],
    )
    if _check_label_name(into) not in group:
        for names in (model_names, data_names):
            if into in names.ids:
                raise Conflict(
                    f"{names.owner_name} has another label {excerpt(into)!r}; "
                    "merge it too, or choose another name"
                )
    _require_rows(into, int(sum(data.label_counts[d] for d in sources)), data)
    rows = np.array([k for k in range(old.n_labels) if k not in ids[1:]], np.int64)
    new = [model_names.names[k] for k in rows]
    place, trains = int(np.searchsorted(rows, ids[0])), np.full(len(rows), -1)
    new[place], rows[place], trains[place] = into, -1, sources[0]
    change = LabelChange(
        "merge", new, rows, trains, {"labels": group, "into": into}, {sources[0]: sources[1:]}
    )
    return apply_change(old, data, out, change, options)


class _NameIndex:
    """Label names of a model or a data set, with their numbers (the first of a repeated name)."""

    def __init__(self, owner: Model | Dataset) -> None:
        self.names: list[str] = owner.label_names.to_pylist()
        self.owner_name = "the model" if isinstance(owner, Model) else f"data set {owner.name}"
        self.ids: dict[str, int] = {}
        for number, name in enumerate(self.names):
            self.ids.setdefault(name, number)

    def find(self, name: str) -> int:
        """Return the number of a label. Raises NotFound, and InputError for an ambiguous name."""
        if name not in self.ids:
            examples = ", ".join(repr(excerpt(each, 40)) for each in self.names[:3])
            hint = suggestion(name, self.ids) or f"; its labels have names like {examples}"
            raise NotFound(f"{self.owner_name} has no label {excerpt(name)!r}{hint}")
        if len(self.ids) < len(self.names) and self.names.count(name) > 1:
            raise InputError(
                f"{self.owner_name} has several labels {excerpt(name)!r}; "
                "the name is ambiguous, use a label with a unique name"
            )
        return self.ids[name]


def _open_inputs(model: str | Path, dataset: str | Path, out: str | Path) -> tuple[Model, Dataset]:
    """Open the model, and a data set with the model's features."""
    check_output_path(out)
    old = _open_linear(model)
    return old, _open_matching_data(old, dataset)


def _open_linear(path: str | Path) -> Model:
    """Open a model. Raises ParameterError for a chain of stages: its labels can't be changed."""
    model = Model.open(path)
    model.require_linear()
    return model


def _open_matching_data(model: Model, dataset: str | Path) -> Dataset:
    """Open a data set that has the model's features."""
    data = open_verified(dataset)
    check_features(model, data)
    return data


def _check_distinct(labels: Sequence[str]) -> list[str]:
    """Return the labels. Raises InputError if one occurs twice."""
    repeated = [name for name, times in Counter(labels).items() if times > 1]
    if repeated:
        raise InputError(f"label {excerpt(repeated[0])!r} is named twice; name each label once")
    return list(labels)


def _check_label_name(name: str) -> str:
    """Return a valid label name. Raises InputError if it is empty."""
    if not name.strip():
        raise InputError("a label needs a name that is not empty", code="LABEL_EMPTY")
    return name


def _require_rows(name: str, count: int, data: Dataset) -> None:
    """Raise InputError for a label without training rows."""
    if not count:
        raise InputError(
            f"label {excerpt(name)!r} has no training row in data set {data.name}; "
            "add rows with the label"
        )
