"""Scores of models that are chains of stages: features, weights and a calibration per stage.

With yhat_0 = 0, stage t computes z = yhat_{t-1} + F_t(x) W_t + b_t. A stage without a calibration
gives yhat_t = z, another one a cubic function of z, see `StageCalibration`. The scores of the model
are those of the last stage. Source: "Least squares revisited: scalable approaches for multi-class
prediction", Algorithms 2 and 3, section 4.

Arithmetic: feature pipelines return float32; everything else is float64. Rows are computed one at
a time, so that the scores of a row do not depend on the other rows of its batch. Sparse products
add the features of a row in ascending order; dense products use the order of the BLAS library.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, csr, frozen
from xcray.errors import InputError, ParameterError, ShapeMismatch
from xcray.features.pipeline import FeaturePipeline, check_width
from xcray.index.filters import LabelFilter
from xcray.index.scorer import Contributions, check_one_row
from xcray.index.search_result import SearchResult, best_positions
from xcray.index.simplex import project_on_simplex
from xcray.index.validate_rows import check_query, check_rows

MAX_DOUBLE_BYTES: Final = 64 << 20  # dense weights that a scorer keeps in float64, at most


class StageCalibration(NamedTuple):
    """A cubic map of the scores z of a stage, c: (K,) float32.

    simplex: [z, z^2, z^3] C + c, projected on the probability simplex, with C: (3K, K) float32.
    Otherwise each label has its own map c + C_0 z + C_1 z^2 + C_2 z^3, clipped to [0, 1], with
    C: (3, K) float32.
    """

    C: Float32
    c: Float32
    simplex: bool = True


class Stage(NamedTuple):
    """One stage of a model.

    W: (n_outputs, K) float32, dense or CSR; b: (K,) float32. features: maps the input of the model
    to n_outputs columns; None for the input itself. calibration: None if the stage has none.
    """

    W: Float32 | CSR
    b: Float32
    features: FeaturePipeline | None = None
    calibration: StageCalibration | None = None


def link_of(stages: Sequence[Stage], link: str) -> str:
    """Return "probability" for scores on the probability simplex, else `link`."""
    last = stages[-1].calibration if stages else None
    return "probability" if last is not None and last.simplex else link


class StagedScorer:
    """The scorer of a chain of stages. Exact: it computes the scores of all labels."""

    def __init__(self, stages: Sequence[Stage], n_inputs: int) -> None:
        """Create a scorer of at least one stage.

        n_inputs: columns of the input. Raises ShapeMismatch if the shapes of a stage do not fit.
        """
        if not stages:
            raise ShapeMismatch("a chain of stages needs at least one stage")
        self.stages = tuple(stages)
        self.n_inputs = n_inputs
        self.n_labels = len(stages[0].b)
        for number, stage in enumerate(stages):
            _check_shapes(stage, number, n_inputs, self.n_labels)
        self._weights = _in_float64([stage.W for stage in stages])

    @property
    def n_bytes(self) -> int:
        """Return the size of weights, biases and calibrations in bytes, without the features.

        Copies of weights in float64 are included.
        """
        doubles = [W.nbytes for W in self._weights if not isinstance(W, CSR) and W.itemsize == 8]
        return sum(doubles, sum(array.nbytes for stage in self.stages for array in _arrays(stage)))

    @property
    def answers_while_compiling(self) -> bool:
        """Return False: there is no compiled code."""
        return False

    def compile(self) -> None:
        """Do nothing: there is no compiled code."""

    def top_k(
        self,
        X: CSR | Float32,
        k: int = 5,
        *,
        label_filter: LabelFilter | None = None,
        deadline_ms: float | None = None,
    ) -> SearchResult:
        """Return the k best allowed labels of each row, see `Scorer.top_k`.

        A row that is not finished at the deadline has the scores of its finished stages (0 if
        none), `exact` False and `bound_gap` -inf. `postings_read` is 0.
        """
        check_query(k, deadline_ms, label_filter, self.n_labels)
        _check_rows(X, self.n_inputs)
        end = math.inf if deadline_ms is None else time.perf_counter() + deadline_ms / 1e3
        allowed = np.arange(self.n_labels) if label_filter is None else label_filter.labels
        k, n = min(k, len(allowed)), X.shape[0]
        labels, scores = np.empty((n, k), np.int32), np.empty((n, k))
        exact, gaps = np.empty(n, np.bool_), np.full(n, -math.inf)
        for i in range(n):
            yhat, exact[i] = self._replay(_row(X, i), end)
            order = best_positions(yhat[allowed], k + 1)
            labels[i] = allowed[order[:k]]
            scores[i] = yhat[labels[i]]
            if exact[i]:
                last = yhat[allowed[order[k]]] if k < len(allowed) else -math.inf
                gaps[i] = scores[i, -1] - last
        scored = np.full(n, self.n_labels, np.int64)
        return SearchResult(labels, scores, exact, scored, np.zeros(n, np.int64), gaps)

    def scores(self, X: CSR | Float32, labels: Sequence[int]) -> Float64:
        """Return the scores (n, len(labels)) float64, see `Scorer.scores`."""
        _check_rows(X, self.n_inputs)
        numbers = [LabelFilter.of(self.n_labels, [j]).labels[0] for j in labels]
        out = np.empty((X.shape[0], len(numbers)))
        for i in range(len(out)):
            out[i] = self._replay(_row(X, i), math.inf)[0][numbers]
        return out

    def log_partition(self, X: CSR | Float32) -> Float64:
        """Return the log of the sum of exp(score) over all labels of each row: (n,) float64."""
        _check_rows(X, self.n_inputs)
        out = np.empty(X.shape[0])
        for i in range(len(out)):
            scores = self._replay(_row(X, i), math.inf)[0]
            largest = scores.max()
            out[i] = largest + math.log(np.exp(scores - largest).sum())
        return out

    def rank(self, X: CSR | Float32, label: int) -> int:
        """Return the rank of a label among all labels for one row, see `Scorer.rank`."""
        _check_rows(X, self.n_inputs)
        check_one_row(X.shape[0])
        j = int(LabelFilter.of(self.n_labels, [label]).labels[0])
        yhat, _ = self._replay(X, math.inf)
        return 1 + int((yhat > yhat[j]).sum() + (yhat[:j] == yhat[j]).sum())

    def contributions(self, X: CSR | Float32, label: int) -> Contributions:
        """Return the summands of the score of one label for one row.

        The weights of all stages over the input are added. Raises ParameterError with the reason
        if a stage has a calibration or features of its own, and otherwise as `Scorer`.
        """
        _check_rows(X, self.n_inputs)
        check_one_row(X.shape[0])
        j = int(LabelFilter.of(self.n_labels, [label]).labels[0])
        for number, stage in enumerate(self.stages):
            if stage.features is not None or stage.calibration is not None:
                reason = "a calibration" if stage.features is None else "features of its own"
                raise ParameterError(
                    f"scores of this model can't be explained by inputs: stage {number} has "
                    f"{reason}, so that the score is not a sum over the inputs; use the scores"
                )
        features, x = _entries(X)
        weights = sum(
            (_column(stage.W, j)[features] for stage in self.stages), np.zeros(len(features))
        )
        bias = math.fsum(float(stage.b[j]) for stage in self.stages)
        return Contributions(features, x, weights, bias)

    def _replay(self, row: CSR | Float32, end: float) -> tuple[Float64, bool]:
        """Return the scores (K,) of one row, and whether all stages were done before `end`.

        Raises InputError if a score is not finite.
        """
        yhat = np.zeros(self.n_labels)
        for stage, W in zip(self.stages, self._weights, strict=True):
            if time.perf_counter() >= end:
                return yhat, False
            outputs = row if stage.features is None else stage.features.transform(row)
            z = yhat + _product(outputs, W) + stage.b
            yhat = z if stage.calibration is None else _calibrate(z, stage.calibration)
        if not np.isfinite(yhat).all():
            raise InputError(
                "a score of this row is not finite: its values are too large for this model; "
                "scale them as those of the training rows",
                code="NOT_FINITE",
            )
        return yhat, True


def _calibrate(z: Float64, calibration: StageCalibration) -> Float64:
    """Return the calibrated scores (K,) of the scores z (K,) of a stage."""
    C, c = calibration.C.astype(np.float64), calibration.c
    if not calibration.simplex:
        own: Float64 = np.clip(c + z * (C[0] + z * (C[1] + z * C[2])), 0.0, 1.0)
        return own
    joint: Float64 = np.concatenate((z, z**2, z**3)) @ C + c
    projected: Float64 = project_on_simplex(joint[None])[0]
    return projected


def _check_rows(X: CSR | Float32, n_inputs: int) -> None:
    """Raise ShapeMismatch for rows of another width, InputError for values that are not finite."""
    if isinstance(X, CSR):
        check_rows(X, n_inputs)
        return
    check_width(X, n_inputs)
    if not np.isfinite(X).all():
        raise InputError(
            "rows of X have values that are not finite; remove or replace NaN and infinity",
            code="NOT_FINITE",
        )


def _row(X: CSR | Float32, i: int) -> CSR | Float32:
    """Return row i as a matrix of one row."""
    if not isinstance(X, CSR):
        return X[i : i + 1]
    indices, data = X.row(i)
    return csr([0, len(indices)], indices, data, X.n_cols)


def _entries(row: CSR | Float32) -> tuple[Int32, Float64]:
    """Return the columns (m,) and the values (m,) of a matrix of one row, as far as not 0."""
    if isinstance(row, CSR):
        indices, data = row.row(0)
        return indices, data.astype(np.float64)
    indices = frozen(np.flatnonzero(row[0]), np.int32)
    return indices, row[0, indices].astype(np.float64)


def _in_float64(weights: Sequence[Float32 | CSR]) -> list[Float32 | Float64 | CSR]:
    """Return the weights of stages, dense ones in float64 if all of them take little memory."""
    dense = sum(W.size for W in weights if not isinstance(W, CSR))
    if 8 * dense > MAX_DOUBLE_BYTES:
        return list(weights)
    return [W if isinstance(W, CSR) else W.astype(np.float64) for W in weights]


def _product(row: CSR | Float32, W: Float32 | Float64 | CSR) -> Float64:
    """Return row (1, d) times W (d, K): (K,) float64."""
    if not isinstance(row, CSR) and not isinstance(W, CSR) and W.dtype == np.float64:
        whole: Float64 = row[0].astype(np.float64) @ W
        return whole
    indices, values = _entries(row)
    if not isinstance(W, CSR):
        product: Float64 = values @ W[indices].astype(np.float64, copy=False)
        return product
    out = np.zeros(W.n_cols)
    for feature, value in zip(indices, values, strict=True):
        labels, weights = W.row(feature)
        out[labels] += value * weights
    return out


def _column(W: Float32 | CSR, j: int) -> Float64:
    """Return column j of W (d, K): (d,) float64."""
    if not isinstance(W, CSR):
        return W[:, j].astype(np.float64)
    out = np.zeros(W.n_rows)
    positions = np.flatnonzero(W.indices == j)
    out[np.searchsorted(W.indptr, positions, side="right") - 1] = W.data[positions]
    return out


def _arrays(stage: Stage) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return the arrays of a stage, without those of its features."""
    weights = stage.W[:3] if isinstance(stage.W, CSR) else (stage.W,)
    calibration = () if stage.calibration is None else stage.calibration[:2]
    return [*weights, stage.b, *calibration]


def _check_shapes(stage: Stage, number: int, n_inputs: int, n_labels: int) -> None:
    """Raise ShapeMismatch if an array of stage `number` does not have the shape it needs."""
    features, calibration = stage.features, stage.calibration
    if features is not None and features.n_inputs != n_inputs:
        raise ShapeMismatch(
            f"stage {number} has features of {features.n_inputs} inputs, the model {n_inputs}"
        )
    n_outputs = n_inputs if features is None else features.n_outputs
    needed = {"W": (stage.W.shape, (n_outputs, n_labels)), "b": (stage.b.shape, (n_labels,))}
    if calibration is not None:
        needed["C"] = (calibration.C.shape, (3 * n_labels if calibration.simplex else 3, n_labels))
        needed["c"] = (calibration.c.shape, (n_labels,))
    for name, (shape, expected) in needed.items():
        if shape != expected:
            raise ShapeMismatch(f"{name} of stage {number} is {shape}, it must be {expected}")
