"""Weights of a linear model without names of features, as other programs store them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, csr, frozen
from xcray.data.dataset import Dataset
from xcray.errors import InputError, ShapeMismatch, excerpt
from xcray.model.label_groups import fold_groups
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model

IMPORTED: Final = "imported"  # the solver in the manifest of a model of another program


class ForeignWeights(NamedTuple):
    """The weights of a linear model: the score of label k for row x is W_k.x + b_k.

    W: (K, D) CSR float32; b: (K,) float32; labels: K names, in the order of the rows. row_norm:
    "l2" if rows are divided by their length before they are scored.
    """

    W: CSR
    b: Float32
    labels: list[str]
    row_norm: str = "none"


def number_names(n: int) -> list[str]:
    """Return the names "0" to "n - 1"."""
    return [str(number) for number in range(n)]


def from_entries(rows: Any, columns: Any, values: Any, shape: tuple[int, int]) -> CSR:
    """Return a matrix of this shape with entries in any order, each at most once.

    Raises ShapeMismatch for an entry outside of the matrix.
    """
    rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
    for kind, numbers, size in (("row", rows, shape[0]), ("column", columns, shape[1])):
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < size:
            raise ShapeMismatch(f"a weight is in {kind} {numbers.max()}, of {size}")
    order = np.lexsort((columns, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return csr(indptr, columns[order], to_float32(np.asarray(values)[order]), shape[1])


def to_float32(values: Any) -> Float32:
    """Return numbers in float32; those beyond its range become infinite, without a warning."""
    with np.errstate(over="ignore"):
        return frozen(values, np.float32)


def split_bias(weights: ForeignWeights) -> ForeignWeights:
    """Return the weights with the last feature, a constant 1, as the bias.

    Raises ShapeMismatch without a feature.
    """
    W, last = weights.W, weights.W.n_cols - 1
    if last < 0:
        raise ShapeMismatch("the model has no feature, so that none can be the bias")
    is_bias = W.indices == last
    found = np.flatnonzero(is_bias)
    rows = np.searchsorted(W.indptr, found, side="right") - 1
    bias = weights.b.copy()
    bias[rows] += W.data[found]
    indptr = W.indptr - np.searchsorted(found, W.indptr)
    rest = csr(indptr, W.indices[~is_bias], W.data[~is_bias], last)
    return weights._replace(W=rest, b=frozen(bias, np.float32))


def _fit_width(W: CSR, n_features: int) -> CSR:
    """Return the weights with features without weights added or left out at the end.

    Other programs count features up to the last that occurs. Raises ShapeMismatch if a weight would
    be lost.
    """
    used = int(W.indices.max(initial=-1)) + 1
    if used > n_features:
        raise ShapeMismatch(f"the model has {used} features, but there are {n_features} names")
    return csr(W.indptr, W.indices, W.data, n_features)


def join_bias(weights: ForeignWeights) -> CSR:
    """Return (K, D + 1): the weights with the bias as the last feature."""
    W, b, numbers = weights.W, weights.b, np.flatnonzero(weights.b)
    rows = np.concatenate([row_numbers(W), numbers])
    columns = np.concatenate([W.indices, np.full(len(numbers), W.n_cols)])
    values = np.concatenate([W.data, b[numbers]])
    return from_entries(rows, columns, values, (W.n_rows, W.n_cols + 1))


def row_numbers(W: CSR) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(W.n_rows), np.diff(W.indptr))


def save_weights(
    path: str | Path,
    weights: ForeignWeights,
    origin: dict[str, Any],
    *,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
) -> Model:
    """Write a model directory at `path`.

    origin: where the weights come from, JSON-ready; it is kept in the manifest. like: data set
    whose names and text pipeline the model gets. labels, features: names instead of those of the
    data set or of the file; features may be more than those that have weights. Raises ShapeMismatch
    if the number of names does not fit the weights, InputError for repeated label names, Conflict
    if `path` exists, NotFound, Corrupt.
    """
    data = None if like is None else Dataset.open(like)
    K, D = weights.W.shape
    if labels is None:
        labels = weights.labels if data is None else data.label_names.to_pylist()
    if features is None:
        features = number_names(D) if data is None else data.feature_names.to_pylist()
    if len(labels) != K:
        raise ShapeMismatch(f"the model has {K} labels, but there are {len(labels)} names")
    repeated = [name for name, times in Counter(labels).items() if times > 1]
    if repeated:
        raise InputError(f"several labels are named {excerpt(repeated[0])!r}")
    content = ModelContent(
        _fit_width(weights.W, len(features)),
        weights.b,
        labels,
        features,
        text=None if data is None else data.text,
        row_norm=weights.row_norm,
    )
    record = TrainingRecord(
        IMPORTED,
        origin,
        "" if data is None else data.content_hash,
        reading={} if data is None else data.reading,
    )
    return write_model(path, content, record)


def weights_of(model: Model) -> ForeignWeights:
    """Return the weights of a model, with those of its label groups added.

    Raises ParameterError for a chain of stages.
    """
    W, b, search = model.require_linear()
    if search.groups is not None:
        W, b = fold_groups(W, b, search.groups)
    return ForeignWeights(W, b, model.labels, model.row_norm)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises InputError."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} can't be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path.name} is not a JSON object")
    return value
