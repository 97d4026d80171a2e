"""Labels as people name them: by number, by name, and by the name of a set of labels that is kept beside a model's aliases."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import Int64
from xcray.errors import NotFound, ParameterError, excerpt
from xcray.index.filters import LabelFilter
from xcray.model.model import Model

SET = "set:"  # in front of the name of a set
KEPT = 8  # filters that are remembered: five bytes a label each

Sets: TypeAlias = Callable[
    [str], Iterable[str]
]  # the labels of a set by its name; raises NotFound when there is no such set


class Named(NamedTuple):
    """A list of labels with its sets looked up: numbers, names, and names that came from sets."""

    numbers: frozenset[int]
    names: frozenset[str]
    in_sets: frozenset[str]


class Filters:
    """The filters of a model that were asked for last: requests often come with the same ones. Safe for many threads at once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made: OrderedDict[Any, LabelFilter] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, allow: Any, deny: Any, sets: Sets | None = None) -> LabelFilter:
        """The filter of two lists that `looked_up` takes, each or None; sets as they are now.

        Raises as `looked_up` and `numbers_of`, and ParameterError when no label is left.
        """
        key = tuple(None if labels is None else looked_up(labels, sets) for labels in (allow, deny))
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found
        made = LabelFilter.of(
            self._model.n_labels,
            *(None if one is None else numbers_of(self._model, one) for one in key),
        )
        with self._lock:
            self._made[key] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made


def looked_up(labels: Iterable[int | str], sets: Sets | None = None) -> Named:
    """What a list of labels names.

    labels: numbers, names and, when `sets` is given, "set:NAME" for all labels of a set. A name that begins with "set:" is a
    label's when there is no set of that name. Raises ParameterError for anything but numbers and names.
    """
    if isinstance(labels, str):
        raise ParameterError(f"labels are a list, not one text; write [{excerpt(labels)!r}]")
    numbers: list[int] = []
    names: set[str] = set()
    in_sets: set[str] = set()
    for label in labels:
        if not isinstance(label, str):
            numbers.append(_checked(label))
        elif (found := _of_set(sets, label)) is None:
            names.add(str(label))
        else:
            in_sets.update(found)
    return Named(frozenset(numbers), frozenset(names), frozenset(in_sets))


def numbers_of(model: Model, named: Named) -> Int64:
    """The numbers of labels, ascending, each once: (m,) int64.

    A label that is named and is not there raises NotFound; one that is only in a set is passed over, because sets outlive
    the versions of a model (`unknown` tells which these are). Whether the model has the numbers given is not asked here.
    """
    at = positions(model, named.names | named.in_sets)
    if missing := named.names.difference(at):
        first = min(missing)
        kind = "label and no set" if first.startswith(SET) else "label"
        raise NotFound(
            f"the model has no {kind} {excerpt(first)!r}; the names are in model.label_names",
            n_missing=len(missing),
        )
    return np.unique(np.concatenate([np.array(sorted(named.numbers), np.int64), *at.values()]))


def unknown(model: Model, names: Iterable[str]) -> list[str]:
    """Names that no label of the model has, in their order."""
    asked = list(names)
    known = positions(model, set(asked))
    return [name for name in asked if name not in known]


def positions(model: Model, names: Iterable[str]) -> dict[str, Int64]:
    """The numbers of the labels that have each name (most often one); names that no label has are left out.

    One pass over the model's names, whatever the number of names asked for.
    """
    asked = sorted(names)
    if not asked:
        return {}
    found = pc.index_in(model.label_names, value_set=pa.array(asked, pa.large_string()))
    at = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    which = found.take(pa.array(at)).to_numpy()
    order = np.argsort(which, kind="stable")
    starts = np.flatnonzero(np.diff(which[order], prepend=-1))
    return (
        dict(
            zip(
                (asked[i] for i in which[order][starts]),
                np.split(at[order], starts[1:]),
                strict=True,
            )
        )
        if len(at)
        else {}
    )


def _of_set(sets: Sets | None, label: str) -> Iterable[str] | None:
    """The names in the set that "set:NAME" stands for; None when there is no such set: then it is a label's name, or nothing's."""
    if sets is None or not label.startswith(SET):
        return None
    try:
        return sets(label.removeprefix(SET))
    except (NotFound, ParameterError):
        return None


def _checked(label: Any) -> int:
    """A label's number that is one."""
    if isinstance(label, bool) or not isinstance(label, int | np.integer):
        raise ParameterError(f"a label is a number or a name, not {excerpt(repr(label))}")
    return int(label)
