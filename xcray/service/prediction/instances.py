"""Instances of a request to rows of a model, each fault named with its instance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from xcray.arrays import CSR, csr
from xcray.errors import InputError
from xcray.model.model import Model
from xcray.service.prediction.fast_decode import InstanceLike


def taken(
    model: Model, instances: Sequence[InstanceLike], place: str = "instances[{}]"
) -> list[str] | CSR:
    """Instances in the form in which a predictor takes them: texts as they are, all others as rows. Raises as `rows_of`."""
    if all(
        each.text is not None and each.indices is None and each.values is None for each in instances
    ):
        texts = [each.text or "" for each in instances]
        _check_text(model, ["text"], place)
        return texts
    if all(
        each.text is None and each.indices is not None and each.values is not None
        for each in instances
    ):
        found = _all_sparse(instances, model.n_features)
        if found is not None:
            return found
    return rows_of(model, instances, place)


def rows_of(model: Model, instances: Sequence[InstanceLike], place: str = "instances[{}]") -> CSR:
    """(n x D) rows, columns ascending. Raises InputError: ROW_KIND, NO_TEXT, ROW_LENGTHS, INDEX_RANGE, DUP_INDEX, DIM.

    Indices may come in any order; one given twice is refused, as in svmlight files.
    """
    kinds = [_kind(instance, place.format(i)) for i, instance in enumerate(instances)]
    texts = [
        instance.text or ""
        for instance, kind in zip(instances, kinds, strict=True)
        if kind == "text"
    ]
    _check_text(model, kinds, place)
    encoded = model.text.transform(texts) if model.text is not None else None
    rows, n_texts = [], 0
    for i, (instance, kind) in enumerate(zip(instances, kinds, strict=True)):
        if kind == "text" and encoded is not None:
            rows.append(encoded.row(n_texts))
            n_texts += 1
        else:
            rows.append(_sparse(instance, kind, model.n_features, place.format(i)))
    indptr = np.concatenate(([0], np.cumsum([len(indices) for indices, _ in rows])))
    return csr(
        indptr,
        np.concatenate([row[0] for row in rows]),
        np.concatenate([row[1] for row in rows]),
        model.n_features,
    )


def _check_text(model: Model, kinds: list[str], place: str) -> None:
    """Refuse texts for a model that knows only features."""
    if model.text is None and "text" in kinds:
        first = place.format(kinds.index("text"))
        raise InputError(
            f"{first}: this model was not trained on text: send indices and values",
            code="NO_TEXT",
            loc=first,
        )


def _kind(instance: InstanceLike, place: str) -> str:
    """Which of the three forms an instance has."""
    given = tuple(
        name for name in ("text", "indices", "values") if getattr(instance, name) is not None
    )
    kinds = {("text",): "text", ("indices", "values"): "sparse", ("values",): "dense"}
    if given not in kinds:
        found = " and ".join(given) or "nothing"
        mend = "give text, or indices and values, or values of all features"
        raise InputError(f"{place} has {found}: {mend}", code="ROW_KIND", loc=place)
    return kinds[given]


def _all_sparse(instances: Sequence[InstanceLike], n_features: int) -> CSR | None:
    """Sparse instances as rows, all at once; None when one has a fault, which `rows_of` then names."""
    lengths = np.array([len(each.indices or ()) for each in instances], np.int64)
    if lengths.tolist() != [len(each.values or ()) for each in instances]:
        return None
    indices = np.array(
        list(chain.from_iterable([each.indices or () for each in instances])), np.int64
    )
    values = np.array(
        list(chain.from_iterable([each.values or () for each in instances])), np.float32
    )
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    if len(indices) and indices.max() >= n_features:
        return None
    if not _ascending(indices, indptr):
        order = np.lexsort((indices, np.repeat(np.arange(len(lengths)), lengths)))
        indices, values = indices[order], values[order]
        if not _ascending(indices, indptr):  # one is there twice
            return None
    return csr(indptr, indices, values, n_features)


def _ascending(indices: np.ndarray, indptr: np.ndarray) -> bool:
    """Whether indices ascend strictly within each row."""
    rises = indices[1:] > indices[:-1]
    if len(indptr) > 2:
        starts = indptr[1:-1]
        rises[starts[(starts > 0) & (starts < len(indices))] - 1] = (
            True  # from one row to the next they may fall
        )
    return bool(rises.all())


def _sparse(
    instance: InstanceLike, kind: str, n_features: int, place: str
) -> tuple[np.ndarray, np.ndarray]:
    """Ascending indices and their values of a sparse or dense instance."""
    values = np.array(instance.values or [], np.float32)
    if kind == "dense":
        if len(values) != n_features:
            sizes = f"{len(values)} values, the model has {n_features} features"
            raise InputError(
                f"{place} has {sizes}: give all, or indices with them", code="DIM", loc=place
            )
        return np.flatnonzero(values).astype(np.int32), values[values != 0]
    indices = np.array(instance.indices or [], np.int64)
    if len(indices) != len(values):
        sizes = f"{len(indices)} indices and {len(values)} values"
        raise InputError(f"{place} has {sizes}: give as many", code="ROW_LENGTHS", loc=place)
    if len(indices) and indices.max() >= n_features:
        raise InputError(
            f"{place} has index {int(indices.max())}, the model has features 0 to {n_features - 1}",
            code="INDEX_RANGE",
            loc=place,
        )
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    twice = np.flatnonzero(np.diff(indices) == 0)
    if len(twice):
        raise InputError(
            f"{place} has index {int(indices[twice[0]])} twice: give each once",
            code="DUP_INDEX",
            loc=place,
        )
    return indices.astype(np.int32), values
