"""What a model knows about a label: its strongest features, training rows, gap, similar labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from xcray.arrays import CSR, Float64
from xcray.certificate import relative_gaps
from xcray.index.label_groups import LabelGroups
from xcray.index.packed import row_ranges
from xcray.model.model import Model
from xcray.predict.explain import GROUP_NAMES

BLOCK_WEIGHTS: Final = 1 << 22  # weights per step of a pass over all labels


class LabelSummary(NamedTuple):
    """A label in a list.

    number: its position in the model. positives: training rows, gap: duality gap as a share of the
    null objective; None if the model does not know them. weights: number of stored weights; of a
    chain of stages, its weights divided by its labels.
    """

    number: int
    label: str
    positives: int | None
    gap: float | None
    weights: int


def list_labels(
    model: Model, start: int = 0, limit: int | None = None, contains: str | None = None
) -> list[LabelSummary]:
    """Return at most `limit` labels from number `start` on, by number.

    contains: only names that contain this text, in any case.
    """
    if contains is None:
        stop = model.n_labels if limit is None else min(model.n_labels, start + limit)
        return [_summary(model, number) for number in range(min(start, stop), stop)]
    matches = pc.match_substring(model.label_names.array, contains, ignore_case=True)
    numbers = np.flatnonzero(matches.to_numpy(zero_copy_only=False))
    numbers = numbers[numbers >= start]
    return [_summary(model, int(number)) for number in numbers[:limit]]


def label_details(
    model: Model, label: int | str, n_features: int = 10, n_similar: int = 10
) -> dict[str, Any]:
    """Return a `LabelSummary` as a dictionary, "bias", "features", "similar", "groups"; JSON-ready.

    "features": the largest weights by magnitude, with the names of their features. "similar": the
    labels with the most similar weights, with the cosine of both rows of W; only cosines above 0.
    "groups": those of similar labels that the label is in, with the first of their labels.
    One pass over all weights. Raises NotFound with similar names, and ParameterError for a chain of
    stages.
    """
    number = model.label_id(label)
    features, weights = model.W.row(number)
    order = np.argsort(-np.abs(weights), kind="stable")[:n_features]
    names = model.feature_names.take(features[order].astype(np.int64)).to_pylist()
    cosines = cosine_similarities(model.W, number)
    cosines[number] = 0.0
    similar = np.argsort(-cosines, kind="stable")[:n_similar]
    return {
        **_summary(model, number)._asdict(),
        "bias": float(model.b[number]),
        "features": [
            {"feature": name, "weight": weight}
            for name, weight in zip(names, weights[order].tolist(), strict=True)
        ],
        "similar": [
            {"label": model.label_name(int(other)), "cosine": float(cosines[other])}
            for other in similar
            if cosines[other] > 0
        ],
        "groups": [] if model.groups is None else list(_groups(model, model.groups, number)),
    }


def _groups(model: Model, groups: LabelGroups, label: int) -> Iterator[dict[str, Any]]:
    """Yield the groups of a label, from coarse to fine."""
    for group in groups.members[label].tolist():
        labels = groups.labels_of(group)
        names = model.label_names.take(labels[:GROUP_NAMES]).to_pylist()
        yield {"n_labels": len(labels), "labels": names}


def cosine_similarities(W: CSR, label: int) -> Float64:
    """Return the cosine of row `label` of W (K, D) with every row: (K,) float64.

    0 for rows without weights.
    """
    features, weights = W.row(label)
    row = np.zeros(int(W.n_cols), np.float64)
    row[features] = weights
    dots, squares = np.zeros(W.n_rows), np.zeros(W.n_rows)
    for start, stop in row_ranges(W.indptr, BLOCK_WEIGHTS):
        first, last = int(W.indptr[start]), int(W.indptr[stop])
        filled = start + np.flatnonzero(np.diff(W.indptr[start : stop + 1]))
        if len(filled):
            data = W.data[first:last].astype(np.float64)
            starts = W.indptr[filled] - first
            dots[filled] = np.add.reduceat(data * row[W.indices[first:last]], starts)
            squares[filled] = np.add.reduceat(data * data, starts)
    lengths = np.sqrt(squares * squares[label])
    out: Float64 = np.divide(dots, lengths, out=np.zeros(W.n_rows), where=lengths > 0)
    return out


def _summary(model: Model, number: int) -> LabelSummary:
    """Return the summary of a label."""
    record = {} if model.label_table is None else model.label_table.slice(number, 1).to_pylist()[0]
    return LabelSummary(
        number,
        model.label_name(number),
        record.get("positives"),
        _relative_gap(record),
        model.nnz // model.n_labels if model.linear is None else len(model.W.row(number)[0]),
    )


def _relative_gap(record: Mapping[str, Any]) -> float | None:
    """Return the gap of a label record as a share of its null objective, or None."""
    gap, null = record.get("gap"), record.get("null")
    return None if gap is None or null is None else float(relative_gaps(gap, null))
