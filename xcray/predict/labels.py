"""Labels as people name them: by number, by name, and by the name of a set of labels that is kept beside a model's aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import Int64
from xcray.errors import NotFound, ParameterError, excerpt
from xcray.model.model import Model

SET = "set:"  # in front of the name of a set

Sets: TypeAlias = Callable[[str], Iterable[str]]  # the labels of a set by its name; raises NotFound when there is no such set


def numbers_of(model: Model, labels: Iterable[int | str], sets: Sets | None = None) -> Int64:
    """Numbers of labels, ascending, each once: (m,) int64.

    labels: numbers, names and, when `sets` is given, "set:NAME" for all labels of a set. A name that begins with "set:" is
    a label's when there is no set of that name. A label that is named and is not there raises NotFound; one that is only in a set
    is passed over, because sets outlive the versions of a model (`unknown` tells which these are).
    Raises NotFound, and ParameterError for anything but numbers and names.
    """
    if isinstance(labels, str):
        raise ParameterError(f"labels are a list, not one text; write [{excerpt(labels)!r}]")
    asked: set[str] = set()
    in_sets: set[str] = set()
    numbers: list[int] = []
    for label in labels:
        if isinstance(label, str):
            found = None if sets is None or not label.startswith(SET) else _of_set(model, label, sets)
            in_sets.update(found or ())
            asked.update(() if found is not None else (label,))
        else:
            numbers.append(_checked(model, label))
    at = positions(model, asked | in_sets)
    if missing := asked.difference(at):
        raise NotFound(
            f"the model has no label {excerpt(min(missing))!r}; the names are in model.label_names", n_missing=len(missing)
        )
    return np.unique(np.concatenate([np.array(numbers, np.int64), *at.values()]))


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
    return dict(zip((asked[i] for i in which[order][starts]), np.split(at[order], starts[1:]), strict=True)) if len(at) else {}


def _of_set(model: Model, label: str, sets: Sets) -> list[str] | None:
    """The names in the set; None when there is no such set but a label of that very name."""
    try:
        return list(sets(label.removeprefix(SET)))
    except NotFound:
        if not positions(model, [label]):
            raise
        return None


def _checked(model: Model, label: Any) -> int:
    """A label's number that is one."""
    if isinstance(label, bool) or not isinstance(label, int | np.integer):
        raise ParameterError(f"a label is a number or a name, not {excerpt(repr(label))}")
    return model.label_id(int(label))
