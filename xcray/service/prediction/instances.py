"""Conversion of request instances to model rows; every error names its instance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from xcray.arrays import CSR, csr
from xcray.data.text.fields import TEXT, document
from xcray.errors import InputError, ParameterError
from xcray.kernels.canonical import first_fault
from xcray.model.model import Model
from xcray.service.schemas.predict import Instance


def to_rows(
    model: Model, instances: Sequence[Instance], location: str = "instances[{}]"
) -> list[str] | CSR:
    """Return instances as predictor input: a list of texts, or a CSR matrix. Raises as `to_csr`."""
    if all(
        (instance.text is None) != (instance.fields is None)
        and instance.indices is None
        and instance.values is None
        for instance in instances
    ):
        _require_text_model(model, [TEXT], location)
        return [_text(model, each, location, i) for i, each in enumerate(instances)]
    if all(
        instance.text is None
        and instance.fields is None
        and instance.indices is not None
        and instance.values is not None
        for instance in instances
    ):
        rows = _sparse_to_csr(instances, model.n_features)
        if rows is not None:
            return rows
    return to_csr(model, instances, location)


def one_row(model: Model, instance: Instance, location: str) -> str | CSR:
    """Return one instance as predictor input: a text, or a matrix of one row. As `to_rows`."""
    rows = to_rows(model, [instance], location)
    return rows[0] if isinstance(rows, list) else rows


def to_csr(model: Model, instances: Sequence[Instance], location: str = "instances[{}]") -> CSR:
    """Return instances as (n, D) rows with ascending columns.

    Indices can come in any order; a duplicate is an error, as in svmlight files. Raises InputError
    with code ROW_KIND, NO_TEXT, FIELD_UNKNOWN, ROW_LENGTHS, INDEX_RANGE, DUP_INDEX or DIM.
    """
    kinds = [_instance_kind(instance, location.format(i)) for i, instance in enumerate(instances)]
    _require_text_model(model, kinds, location)
    texts = [
        _text(model, instance, location, i)
        for i, (instance, kind) in enumerate(zip(instances, kinds, strict=True))
        if kind == TEXT
    ]
    encoded = model.text.transform(texts) if model.text is not None else None
    rows, n_texts = [], 0
    for i, (instance, kind) in enumerate(zip(instances, kinds, strict=True)):
        if kind == TEXT and encoded is not None:
            rows.append(encoded.row(n_texts))
            n_texts += 1
        else:
            rows.append(_to_sparse_row(instance, kind, model.n_features, location.format(i)))
    indptr = np.concatenate(([0], np.cumsum([len(indices) for indices, _ in rows])))
    return csr(
        indptr,
        np.concatenate([row[0] for row in rows]),
        np.concatenate([row[1] for row in rows]),
        model.n_features,
    )


def _text(model: Model, instance: Instance, location: str, i: int) -> str:
    """Return the text or the document of an instance. Raises InputError FIELD_UNKNOWN."""
    if instance.fields is None:
        return instance.text or ""
    try:
        return document(instance.fields, model.text_fields)
    except ParameterError as error:
        place = location.format(i)
        raise InputError(f"{place}: {error}", code="FIELD_UNKNOWN", loc=place) from None


def _require_text_model(model: Model, kinds: list[str], location: str) -> None:
    """Raise InputError NO_TEXT if a text is sent to a model without a text pipeline."""
    if model.text is None and TEXT in kinds:
        first = location.format(kinds.index(TEXT))
        raise InputError(
            f"{first}: this model was not trained on text: send indices and values",
            code="NO_TEXT",
            loc=first,
        )


def _instance_kind(instance: Instance, location: str) -> str:
    """Return the kind of an instance: text, sparse or dense."""
    present = tuple(
        name
        for name in ("text", "fields", "indices", "values")
        if getattr(instance, name) is not None
    )
    kinds = {
        ("text",): TEXT,
        ("fields",): TEXT,
        ("indices", "values"): "sparse",
        ("values",): "dense",
    }
    if present not in kinds:
        described = " and ".join(present) or "nothing"
        fix = "give text, or fields, or indices and values, or values of all features"
        raise InputError(f"{location} has {described}: {fix}", code="ROW_KIND", loc=location)
    return kinds[present]


def _sparse_to_csr(instances: Sequence[Instance], n_features: int) -> CSR | None:
    """Return sparse instances as rows in one step; None if one is invalid (`to_csr` names it)."""
    lengths = [len(instance.indices or ()) for instance in instances]
    if lengths != [len(instance.values or ()) for instance in instances]:
        return None
    indices = np.array(
        list(chain.from_iterable([instance.indices or () for instance in instances])), np.int32
    )
    values = np.array(
        list(chain.from_iterable([instance.values or () for instance in instances])), np.float32
    )
    rows = csr([0, *accumulate(lengths)], indices, values, n_features)
    if first_fault(rows)[0] == 0:
        return rows
    order = np.lexsort((indices, np.repeat(np.arange(len(lengths)), lengths)))
    rows = csr(rows.indptr, indices[order], values[order], n_features)
    return rows if first_fault(rows)[0] == 0 else None  # a duplicate or too large index


def _to_sparse_row(
    instance: Instance, kind: str, n_features: int, location: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending indices and the values of a sparse or dense instance."""
    values = np.array(instance.values or [], np.float32)
    if kind == "dense":
        if len(values) != n_features:
            sizes = f"{len(values)} values, the model has {n_features} features"
            raise InputError(
                f"{location} has {sizes}: give all, or indices with them", code="DIM", loc=location
            )
        return np.flatnonzero(values).astype(np.int32), values[values != 0]
    indices = np.array(instance.indices or [], np.int64)
    if len(indices) != len(values):
        sizes = f"{len(indices)} indices and {len(values)} values"
        raise InputError(f"{location} has {sizes}: give as many", code="ROW_LENGTHS", loc=location)
    if len(indices) and indices.max() >= n_features:
        raise InputError(
            f"{location} has index {int(indices.max())}, the model has features 0 to "
            f"{n_features - 1}",
            code="INDEX_RANGE",
            loc=location,
        )
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    duplicates = np.flatnonzero(np.diff(indices) == 0)
    if len(duplicates):
        raise InputError(
            f"{location} has index {int(indices[duplicates[0]])} twice: give each once",
            code="DUP_INDEX",
            loc=location,
        )
    return indices.astype(np.int32), values
