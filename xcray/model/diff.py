"""Differences between two models in labels, weights and measures, matched by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from xcray.arrays import Float32, Int32, Int64
from xcray.model.model import Model


class ModelDiff(NamedTuple):
    """The difference from model a to model b.

    added, removed: labels of one model only; identical, changed: labels of both, by whether
    bias and weights are bit-identical; same_content: equal content hashes; nnz, n_features: of
    a and b; measures: name -> (a, b), None if a model lacks one.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    identical: tuple[str, ...]
    changed: tuple[str, ...]
    same_content: bool
    nnz: tuple[int, int]
    n_features: tuple[int, int]
    measures: dict[str, tuple[float | None, float | None]]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON-ready values."""
        return self._asdict()


def diff(a: Model, b: Model) -> ModelDiff:
    """Compare two models.

    Repeated label names in a model are compared by their first occurrence. Labels of a chain of
    stages are identical if all of both models is.
    """
    rows_a, rows_b = (
        _first_numbers(a.label_names.to_pylist()),
        _first_numbers(b.label_names.to_pylist()),
    )
    both = [name for name in rows_a if name in rows_b]
    to_a = _feature_map(a, b)
    if a.linear is None or b.linear is None:  # labels of a chain share its stages
        same = set(both) if a.sha256 == b.sha256 else set()
    else:
        same = {name for name in both if _same_row(a, rows_a[name], b, rows_b[name], to_a)}
    measures = {
        name: (a.measures.get(name), b.measures.get(name))
        for name in sorted({*a.measures, *b.measures})
    }
    return ModelDiff(
        added=tuple(name for name in rows_b if name not in rows_a),
        removed=tuple(name for name in rows_a if name not in rows_b),
        identical=tuple(name for name in both if name in same),
        changed=tuple(name for name in both if name not in same),
        same_content=a.sha256 == b.sha256,
        nnz=(a.nnz, b.nnz),
        n_features=(a.n_features, b.n_features),
        measures=measures,
    )


def _first_numbers(names: list[str]) -> dict[str, int]:
    """Return the first number of each name, in the order of numbers."""
    out: dict[str, int] = {}
    for i, name in enumerate(names):
        out.setdefault(name, i)
    return out


def _feature_map(a: Model, b: Model) -> Int64 | None:
    """Return the number in a of each feature of b, -1 if a lacks it.

    None means that both models have the same features.
    """
    if a.feature_names.equals(b.feature_names):
        return None
    positions = pc.index_in(b.feature_names, value_set=a.feature_names)
    return np.asarray(pc.fill_null(positions, -1).to_numpy(zero_copy_only=False), np.int64)


def _same_row(a: Model, i: int, b: Model, j: int, to_a: Int64 | None) -> bool:
    """Whether two labels have bit-identical bias and weights on the same features."""
    if a.b[i : i + 1].tobytes() != b.b[j : j + 1].tobytes():
        return False
    (features, weights), (others, values) = a.W.row(i), _renumber_row(*b.W.row(j), to_a)
    return bool(np.array_equal(features, others)) and weights.tobytes() == values.tobytes()


def _renumber_row(features: Int32, weights: Float32, to_a: Int64 | None) -> tuple[Any, Float32]:
    """Return a row with the feature numbers of the other model, ascending."""
    if to_a is None:
        return features, weights
    numbers = to_a[features]
    order = np.argsort(numbers, kind="stable")
    return numbers[order], weights[order]
