"""Differences between two models in labels, weights and measures, matched by name."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Int64
from xcray.model.label_groups import weights_hash
from xcray.model.model import Model

BLOCK_WEIGHTS: Final = 1 << 22  # weights of one model that are compared in one step


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

    A label with groups is identical if weights and members of its groups are, too. Repeated label
    names in a model are compared by their first occurrence. Labels of a chain of stages are
    identical if all of both models is.
    """
    rows_a, rows_b = _first_numbers(a.label_names.array), _first_numbers(b.label_names.array)
    names_a, names_b = a.label_names.take(rows_a), b.label_names.take(rows_b)
    positions = pc.fill_null(pc.index_in(names_a, value_set=names_b), -1)
    to_b = np.asarray(positions.to_numpy(zero_copy_only=False), np.int64)
    in_both = to_b >= 0
    if a.linear is None or b.linear is None:  # labels of a chain share its stages
        same = np.full(int(in_both.sum()), a.sha256 == b.sha256)
    else:
        same = _same_rows(a, rows_a[in_both], b, rows_b[to_b[in_both]])
        same &= _same_groups(a, rows_a[in_both], b, rows_b[to_b[in_both]])
    both = names_a.filter(pa.array(in_both))
    is_added = np.ones(len(rows_b), bool)
    is_added[to_b[in_both]] = False
    measures = {
        name: (a.measures.get(name), b.measures.get(name))
        for name in sorted({*a.measures, *b.measures})
    }
    return ModelDiff(
        added=_selected(names_b, is_added),
        removed=_selected(names_a, ~in_both),
        identical=_selected(both, same),
        changed=_selected(both, ~same),
        same_content=a.sha256 == b.sha256,
        nnz=(a.nnz, b.nnz),
        n_features=(a.n_features, b.n_features),
        measures=measures,
    )


def _first_numbers(names: pa.LargeStringArray) -> Int64:
    """Return the number of the first occurrence of each name, ascending."""
    codes = names.dictionary_encode().indices.to_numpy()
    return np.unique(codes, return_index=True)[1].astype(np.int64)


def _selected(names: pa.LargeStringArray, mask: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the names that a mask selects."""
    return tuple(names.filter(pa.array(mask)).to_pylist())


def _feature_map(a: Model, b: Model) -> Int64 | None:
    """Return the number in a of each feature of b, -1 if a lacks it.

    None means that both models have the same features.
    """
    if a.feature_names == b.feature_names:
        return None
    positions = pc.index_in(b.feature_names.array, value_set=a.feature_names.array)
    return np.asarray(pc.fill_null(positions, -1).to_numpy(zero_copy_only=False), np.int64)


def _same_rows(a: Model, rows_a: Int64, b: Model, rows_b: Int64) -> NDArray[np.bool_]:
    """Return which pairs of labels have bit-identical bias and weights on the same features."""
    to_a = _feature_map(a, b)
    lengths = a.W.indptr[rows_a + 1] - a.W.indptr[rows_a]
    same: NDArray[np.bool_] = a.b[rows_a].view(np.int32) == b.b[rows_b].view(np.int32)
    same &= lengths == b.W.indptr[rows_b + 1] - b.W.indptr[rows_b]
    todo = np.flatnonzero(same & (lengths > 0))
    blocks = np.cumsum(lengths[todo]) // BLOCK_WEIGHTS
    for pairs in np.split(todo, np.flatnonzero(np.diff(blocks)) + 1):
        own, other = _entries(a.W, rows_a[pairs], None), _entries(b.W, rows_b[pairs], to_a)
        differs = (own[0] != other[0]) | (own[1] != other[1])
        if len(pairs):
            starts = np.concatenate([[0], np.cumsum(lengths[pairs])[:-1]])
            same[pairs] = ~np.logical_or.reduceat(differs, starts)
    return same


def _same_groups(a: Model, rows_a: Int64, b: Model, rows_b: Int64) -> Any:
    """Return which pairs of labels are in the same groups, whose weights are bit-identical."""
    if a.groups is None or b.groups is None:
        return a.groups is b.groups
    if a.feature_names != b.feature_names or weights_hash(a.groups) != weights_hash(b.groups):
        return False
    return (a.groups.members[rows_a] == b.groups.members[rows_b]).all(axis=1)


def _entries(W: CSR, rows: Int64, to_other: Int64 | None) -> tuple[Any, Any]:
    """Return the feature numbers and the bits of the weights of rows, one row after the other.

    to_other: new numbers of the features; each row is then sorted again.
    """
    lengths = W.indptr[rows + 1] - W.indptr[rows]
    row = np.repeat(np.arange(len(rows)), lengths)
    ends = np.cumsum(lengths)
    at = np.arange(len(row)) + (W.indptr[rows] - ends + lengths)[row]
    features, weights = W.indices[at], W.data[at].view(np.int32)
    if to_other is None:
        return features, weights
    numbers = to_other[features]
    order = np.lexsort((numbers, row))
    return numbers[order], weights[order]
