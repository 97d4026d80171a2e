"""Instances of a request to rows of a model, each fault named with its instance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xcray.arrays import CSR, csr
from xcray.errors import InputError
from xcray.model.model import Model
from xcray.service.schemas import Instance


def rows_of(model: Model, instances: Sequence[Instance], place: str = "instances[{}]") -> CSR:
    """(n x D) rows, columns ascending. Raises InputError: ROW_KIND, NO_TEXT, ROW_LENGTHS, INDEX_RANGE, DUP_INDEX, DIM.

    Indices may come in any order; one given twice is refused, as in svmlight files.
    """
    kinds = [_kind(instance, place.format(i)) for i, instance in enumerate(instances)]
    texts = [instance.text or "" for instance, kind in zip(instances, kinds, strict=True) if kind == "text"]
    if texts and model.text is None:
        first = place.format(kinds.index("text"))
        raise InputError(f"{first}: this model was not trained on text: send indices and values", code="NO_TEXT", loc=first)
    encoded = model.text.transform(texts) if model.text is not None else None
    rows, taken = [], 0
    for i, (instance, kind) in enumerate(zip(instances, kinds, strict=True)):
        if kind == "text" and encoded is not None:
            rows.append(encoded.row(taken))
            taken += 1
        else:
            rows.append(_sparse(instance, kind, model.n_features, place.format(i)))
    indptr = np.concatenate(([0], np.cumsum([len(indices) for indices, _ in rows])))
    return csr(indptr, np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows]), model.n_features)


def _kind(instance: Instance, place: str) -> str:
    """Which of the three forms an instance has."""
    given = tuple(name for name in ("text", "indices", "values") if getattr(instance, name) is not None)
    kinds = {("text",): "text", ("indices", "values"): "sparse", ("values",): "dense"}
    if given not in kinds:
        found = " and ".join(given) or "nothing"
        mend = "give text, or indices and values, or values of all features"
        raise InputError(f"{place} has {found}: {mend}", code="ROW_KIND", loc=place)
    return kinds[given]


def _sparse(instance: Instance, kind: str, n_features: int, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Ascending indices and their values of a sparse or dense instance."""
    values = np.array(instance.values or [], np.float32)
    if kind == "dense":
        if len(values) != n_features:
            sizes = f"{len(values)} values, the model has {n_features} features"
            raise InputError(f"{place} has {sizes}: give all, or indices with them", code="DIM", loc=place)
        return np.flatnonzero(values).astype(np.int32), values[values != 0]
    indices = np.array(instance.indices or [], np.int64)
    if len(indices) != len(values):
        sizes = f"{len(indices)} indices and {len(values)} values"
        raise InputError(f"{place} has {sizes}: give as many", code="ROW_LENGTHS", loc=place)
    if len(indices) and indices.max() >= n_features:
        raise InputError(
            f"{place} has index {int(indices.max())}, the model has features 0 to {n_features - 1}", code="INDEX_RANGE", loc=place
        )
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    twice = np.flatnonzero(np.diff(indices) == 0)
    if len(twice):
        raise InputError(f"{place} has index {int(indices[twice[0]])} twice: give each once", code="DUP_INDEX", loc=place)
    return indices.astype(np.int32), values
