"""Labels of an existing model: added, removed, merged, renamed, trained again. All other columns keep their bytes.

Each function reads a model directory and publishes a new one; the old one never changes. What is trained is trained with
the model's own solver and parameters, on a data set that has the model's features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, NotFound, excerpt
from xcray.model.model import Model
from xcray.training.edit.apply import Change, Running, check_features, check_out, remake
from xcray.training.run import TrainResult


def add_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str] = (),
    how: Running | None = None,
) -> TrainResult:
    """Train labels that the data set has and the model has not, and append them.

    labels: which; without any, all that have a training row, in the order of the data set. Raises NotFound for a label that
    the data set lacks, Conflict for one that the model has, InputError when there is nothing to add or a label has no
    training row, ShapeMismatch when the data set has other features; and as `xcray.training.train`.
    """
    old, data = _open(model, dataset, out)
    known, there = _Names(old), _Names(data)
    counts = data.label_counts
    if labels:
        ids = [there.find(name) for name in _distinct(labels)]
        for name, d in zip(labels, ids, strict=True):
            if name in known.ids:
                raise Conflict(
                    f"the model has label {excerpt(name)!r} already; train it again with `xcray retrain`"
                )
            _require_rows(name, int(counts[d]), data)
    else:
        ids = [
            d
            for d, name in enumerate(there.names)
            if name not in known.ids and counts[d] > 0 and there.ids[name] == d
        ]
        if not ids:
            raise InputError(
                f"data set {data.name} has no label with a training row that the model lacks: there is nothing to add"
            )
    names = [there.names[d] for d in ids]
    rows = np.concatenate([np.arange(old.n_labels), np.full(len(ids), -1)])
    trains = np.concatenate([np.full(old.n_labels, -1), np.array(ids, np.int64)])
    return remake(
        old, data, out, Change("add", known.names + names, rows, trains, {"labels": names}), how
    )


def retrain_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str],
    how: Running | None = None,
) -> TrainResult:
    """Train labels of the model again, on another (newer) data set; they keep their places.

    Raises NotFound for a label that the model or the data set lacks, InputError for one without a training row or when no
    label is named, ShapeMismatch when the data set has other features; and as `xcray.training.train`.
    """
    old, data = _open(model, dataset, out)
    known, there = _Names(old), _Names(data)
    if not labels:
        raise InputError("name at least one label to train again")
    rows, trains = np.arange(old.n_labels), np.full(old.n_labels, -1)
    for name in _distinct(labels):
        k, d = known.find(name), there.find(name)
        _require_rows(name, int(data.label_counts[d]), data)
        rows[k], trains[k] = -1, d
    return remake(
        old, data, out, Change("retrain", known.names, rows, trains, {"labels": list(labels)}), how
    )


def remove_labels(
    model: str | Path,
    out: str | Path,
    labels: Sequence[str],
    dataset: str | Path | None = None,
    how: Running | None = None,
) -> TrainResult:
    """Drop labels; the others move up and keep their bytes.

    dataset: to measure the new model on; without one it has no measures. Raises NotFound for a label that the model lacks,
    InputError when no label is named or none would be left; and as `xcray.training.train`.
    """
    check_out(out)
    old = Model.open(model)
    data = None if dataset is None else _fitting(old, dataset)
    known = _Names(old)
    if not labels:
        raise InputError("name at least one label to remove")
    gone = {known.find(name) for name in _distinct(labels)}
    left = np.array([k for k in range(old.n_labels) if k not in gone], np.int64)
    if not len(left):
        raise InputError("no label would be left: a model needs at least one")
    names = [known.names[k] for k in left]
    return remake(
        old,
        data,
        out,
        Change("remove", names, left, np.full(len(left), -1), {"labels": list(labels)}),
        how,
    )


def rename_labels(
    model: str | Path, out: str | Path, names: Mapping[str, str], how: Running | None = None
) -> TrainResult:
    """Give labels other names (old name -> new name); all numbers stay, also the measures.

    Two labels may swap their names. Raises NotFound for a label that the model lacks, Conflict when two labels would have
    one name, InputError for an empty name or when nothing would change; and as `xcray.training.train`.
    """
    check_out(out)
    old = Model.open(model)
    known = _Names(old)
    new = list(known.names)
    for before, after in names.items():
        new[known.find(before)] = _name(after)
    if new == known.names:
        raise InputError("no label would have another name: give pairs OLD=NEW")
    times = Counter(new)
    for after in names.values():
        if times[after] > 1:
            first, second = (
                excerpt(known.names[k])
                for k in [k for k, name in enumerate(new) if name == after][:2]
            )
            raise Conflict(
                f"{excerpt(after)!r} would name two labels ({first!r} and {second!r}); `xcray labels merge` makes one of them"
            )
    change = Change(
        "rename", new, np.arange(old.n_labels), np.full(old.n_labels, -1), {"names": dict(names)}
    )
    return remake(old, None, out, change, how)


def merge_labels(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    labels: Sequence[str],
    into: str,
    how: Running | None = None,
) -> TrainResult:
    """Make one label of several: trained on the rows of all of them, it takes the place of the first, the others go.

    into: its name; it may be one of `labels`. Raises NotFound for a label that the model or the data set lacks, Conflict
    when `into` names another label of either, InputError for less than two labels, an empty name or a group without a
    training row, ShapeMismatch when the data set has other features; and as `xcray.training.train`.
    """
    old, data = _open(model, dataset, out)
    known, there = _Names(old), _Names(data)
    group = _distinct(labels)
    if len(group) < 2:
        raise InputError(
            "name at least two labels to merge; `xcray labels rename` gives one another name"
        )
    ids, sources = [known.find(name) for name in group], [there.find(name) for name in group]
    if _name(into) not in group:
        for names in (known, there):
            if into in names.ids:
                raise Conflict(
                    f"{names.whose} has another label {excerpt(into)!r}; merge it too, or choose another name"
                )
    _require_rows(into, int(sum(data.label_counts[d] for d in sources)), data)
    rows = np.array([k for k in range(old.n_labels) if k not in ids[1:]], np.int64)
    new = [known.names[k] for k in rows]
    place, trains = int(np.searchsorted(rows, ids[0])), np.full(len(rows), -1)
    new[place], rows[place], trains[place] = into, -1, sources[0]
    change = Change(
        "merge", new, rows, trains, {"labels": group, "into": into}, {sources[0]: sources[1:]}
    )
    return remake(old, data, out, change, how)


class _Names:
    """The names of a model's or a data set's labels, and the number of each (the first, where a name occurs twice)."""

    def __init__(self, owner: Model | Dataset) -> None:
        self.names: list[str] = owner.label_names.to_pylist()
        self.whose = "the model" if isinstance(owner, Model) else f"data set {owner.name}"
        self.ids: dict[str, int] = {}
        for number, name in enumerate(self.names):
            self.ids.setdefault(name, number)

    def find(self, name: str) -> int:
        """The number of a label. Raises NotFound, and InputError when several have this name."""
        if name not in self.ids:
            alike = next(
                (known for known in self.ids if known.casefold() == name.casefold().strip()), None
            )
            hint = (
                f"did you mean {excerpt(alike)!r}?"
                if alike is not None
                else "the names are in its labels.arrow"
            )
            raise NotFound(f"{self.whose} has no label {excerpt(name)!r}; {hint}")
        if len(self.ids) < len(self.names) and self.names.count(name) > 1:
            raise InputError(
                f"{self.whose} has several labels {excerpt(name)!r}; which one is meant can't be said by name"
            )
        return self.ids[name]


def _open(model: str | Path, dataset: str | Path, out: str | Path) -> tuple[Model, Dataset]:
    """The model, and a data set that has its features."""
    check_out(out)
    old = Model.open(model)
    return old, _fitting(old, dataset)


def _fitting(model: Model, dataset: str | Path) -> Dataset:
    """A data set that has the model's features."""
    data = Dataset.open(dataset)
    check_features(model, data)
    return data


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, none of them named twice. Raises InputError."""
    twice = [name for name, times in Counter(labels).items() if times > 1]
    if twice:
        raise InputError(f"label {excerpt(twice[0])!r} is named twice; name each label once")
    return list(labels)


def _name(name: str) -> str:
    """A name that a label can have. Raises InputError for an empty one."""
    if not name.strip():
        raise InputError("a label needs a name that is not empty", code="LABEL_EMPTY")
    return name


def _require_rows(name: str, count: int, data: Dataset) -> None:
    """Refuse to train a label of nothing. Raises InputError."""
    if not count:
        raise InputError(
            f"label {excerpt(name)!r} has no training row in data set {data.name}; there is nothing to learn it from"
        )
