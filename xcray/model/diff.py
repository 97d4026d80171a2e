"""What changed between two models: labels, weights, measures. Labels and features are matched by their names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from xcray.arrays import Float32, Int32, Int64
from xcray.model.model import Model


class ModelDiff(NamedTuple):
    """The difference from a model a to a model b.

    added, removed: labels of one model only; identical, changed: labels of both, whose weights and bias are the same bits
    or are not; same_content: equal content hashes; nnz, n_features: of a and b; measures: name -> (a, b), None where one
    has none.
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
        """The same as plain JSON-ready values."""
        return self._asdict()


def diff(a: Model, b: Model) -> ModelDiff:
    """Compare two models. A label that occurs several times in a model is compared by its first occurrence."""
    rows_a, rows_b = _numbers(a.label_names.to_pylist()), _numbers(b.label_names.to_pylist())
    both = [name for name in rows_a if name in rows_b]
    to_a = _feature_map(a, b)
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


def _numbers(names: list[str]) -> dict[str, int]:
    """The first number of each name, in the order of numbers."""
    out: dict[str, int] = {}
    for i, name in enumerate(names):
        out.setdefault(name, i)
    return out


def _feature_map(a: Model, b: Model) -> Int64 | None:
    """For each feature of b its number in a, -1 for those a does not have; None when both have the same features."""
    if a.feature_names.equals(b.feature_names):
        return None
    found = pc.index_in(b.feature_names, value_set=a.feature_names)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int64)


def _same_row(a: Model, i: int, b: Model, j: int, to_a: Int64 | None) -> bool:
    """Whether two labels have the same bias and the same weights on the same features, to the bit."""
    if a.b[i : i + 1].tobytes() != b.b[j : j + 1].tobytes():
        return False
    (features, weights), (others, values) = a.W.row(i), _renumbered(*b.W.row(j), to_a)
    return bool(np.array_equal(features, others)) and weights.tobytes() == values.tobytes()


def _renumbered(features: Int32, weights: Float32, to_a: Int64 | None) -> tuple[Any, Float32]:
    """A row with the feature numbers of the other model, ascending."""
    if to_a is None:
        return features, weights
    numbers = to_a[features]
    order = np.argsort(numbers, kind="stable")
    return numbers[order], weights[order]
