"""Label references in requests: numbers, names, and names of label sets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import Int64, distinct
from xcray.errors import NotFound, ParameterError, excerpt
from xcray.index.filters import LabelFilter
from xcray.model.model import Model, unknown_label

SET_PREFIX = "set:"  # prefix of a label set's name
MAX_FILTERS = 8  # cached filters, five bytes per label each

# name of a set -> its labels; raises NotFound for an unknown set
SetLookup: TypeAlias = Callable[[str], Iterable[str]]


class LabelRefs(NamedTuple):
    """A list of labels with label sets resolved: numbers, names, and names from sets."""

    numbers: frozenset[int]
    names: frozenset[str]
    in_sets: frozenset[str]


class FilterCache:
    """The last filters of a model, because requests often repeat them. Thread-safe."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._filters: OrderedDict[Any, LabelFilter] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, allow: Any, deny: Any, sets: SetLookup | None = None) -> LabelFilter:
        """Return the filter of two lists as taken by `parse_labels`, each can be None.

        Label sets are read on each call. Raises as `parse_labels` and `label_numbers`, and
        ParameterError if no label is left.
        """
        key = tuple(
            None if labels is None else parse_labels(labels, sets) for labels in (allow, deny)
        )
        with self._lock:
            cached = self._filters.get(key)
            if cached is not None:
                self._filters.move_to_end(key)
                return cached
        label_filter = LabelFilter.of(
            self._model.n_labels,
            *(None if refs is None else label_numbers(self._model, refs) for refs in key),
        )
        with self._lock:
            self._filters[key] = label_filter
            while len(self._filters) > MAX_FILTERS:
                self._filters.popitem(last=False)
        return label_filter


def parse_labels(labels: Iterable[int | str], sets: SetLookup | None = None) -> LabelRefs:
    """Return the labels that a list refers to.

    labels: numbers, names and, if `sets` is given, "set:NAME" for all labels of a set. A name that
    starts with "set:" is a label name if there is no set of that name. Raises ParameterError for
    anything but numbers and names.
    """
    if isinstance(labels, str):
        raise ParameterError(f"labels must be a list, not one text; use [{excerpt(labels)!r}]")
    numbers: list[int] = []
    names: set[str] = set()
    in_sets: set[str] = set()
    for label in labels:
        if not isinstance(label, str):
            numbers.append(_check_number(label))
        elif (set_labels := _lookup_set(sets, label)) is None:
            names.add(str(label))
        else:
            in_sets.update(set_labels)
    return LabelRefs(frozenset(numbers), frozenset(names), frozenset(in_sets))


def label_numbers(model: Model, refs: LabelRefs) -> Int64:
    """Return the label numbers, ascending, without duplicates: (m,) int64.

    An unknown label name raises NotFound. Unknown names from label sets are skipped, because sets
    outlive the versions of a model (`unknown_labels` returns them). Label numbers are not validated
    here.
    """
    numbers_by_name = positions_by_name(model, refs.names | refs.in_sets)
    if missing := refs.names.difference(numbers_by_name):
        first = min(missing)
        kind = "label and no set" if first.startswith(SET_PREFIX) else "label"
        raise NotFound(unknown_label(model, first, kind), n_missing=len(missing))
    return distinct(
        np.concatenate([np.array(sorted(refs.numbers), np.int64), *numbers_by_name.values()])
    )


def unknown_labels(model: Model, names: Iterable[str]) -> list[str]:
    """Return the names that no label of the model has, in their order."""
    names_list = list(names)
    known = positions_by_name(model, set(names_list))
    return [name for name in names_list if name not in known]


def positions_by_name(model: Model, names: Iterable[str]) -> dict[str, Int64]:
    """Return the numbers of the labels by name (usually one each); unknown names are omitted.

    One pass over the label names of the model, regardless of the number of names.
    """
    sorted_names = sorted(names)
    if not sorted_names:
        return {}
    wanted = pa.array(sorted_names, pa.large_string())
    matches = pc.index_in(model.label_names.array, value_set=wanted)
    matched = np.flatnonzero(matches.is_valid().to_numpy(zero_copy_only=False))
    name_index = matches.take(pa.array(matched)).to_numpy()
    order = np.argsort(name_index, kind="stable")
    starts = np.flatnonzero(np.diff(name_index[order], prepend=-1))
    return (
        dict(
            zip(
                (sorted_names[i] for i in name_index[order][starts]),
                np.split(matched[order], starts[1:]),
                strict=True,
            )
        )
        if len(matched)
        else {}
    )


def _lookup_set(sets: SetLookup | None, label: str) -> Iterable[str] | None:
    """Return the label names of the set "set:NAME"; None if there is no such set."""
    if sets is None or not label.startswith(SET_PREFIX):
        return None
    try:
        return sets(label.removeprefix(SET_PREFIX))
    except (NotFound, ParameterError):
        return None


def _check_number(label: Any) -> int:
    """Return a label number. Raises ParameterError if it is not an integer."""
    if isinstance(label, bool) or not isinstance(label, int | np.integer):
        raise ParameterError(f"a label must be a number or a name, not {excerpt(repr(label))}")
    return int(label)
