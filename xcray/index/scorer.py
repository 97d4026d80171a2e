"""Contract of scorers, the second seam of every model, and the scorer of one sparse matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, csr
from xcray.errors import ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.label_groups import GroupSummands
from xcray.index.search import SearchIndex
from xcray.index.search_result import SearchResult


class Contributions(NamedTuple):
    """The summands of one score: score = bias + sum(x * weights), plus those of the label's groups.

    features: (m,) int32, inputs of the row in ascending order; x, weights: (m,) float64.
    """

    features: Int32
    x: Float64
    weights: Float64
    bias: float
    groups: tuple[GroupSummands, ...] = ()


class Scorer(Protocol):
    """Scores all labels of a model for rows of its input. Exact for its model, and thread-safe."""

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""

    @property
    def n_labels(self) -> int:
        """Return the number of labels."""

    @property
    def n_bytes(self) -> int:
        """Return the size of the arrays of the scorer in bytes."""

    @property
    def answers_while_compiling(self) -> bool:
        """Return whether `top_k` needs no kernels for a few rows, and they are not compiled yet."""

    def compile(self) -> None:
        """Load or compile the kernels of `top_k`, if there are any."""

    def top_k(
        self,
        X: CSR | Float32,
        k: int = 5,
        *,
        label_filter: LabelFilter | None = None,
        deadline_ms: float | None = None,
    ) -> SearchResult:
        """Return the k best allowed labels of each row, best first, ties by lower label number.

        X: (n, n_inputs). k: at least 1, clipped to the number of allowed labels. deadline_ms: time
        limit in milliseconds; rows not finished by then have `exact` False. Raises ShapeMismatch or
        ParameterError.
        """

    def scores(self, X: CSR | Float32, labels: Sequence[int]) -> Float64:
        """Return the scores (n, len(labels)) float64 of these labels.

        Raises NotFound for an invalid label number, ShapeMismatch for rows of another width.
        """

    def rank(self, X: CSR | Float32, label: int) -> int:
        """Return the rank of a label among all labels for one row, from 1. Raises as `scores`."""

    def contributions(self, X: CSR | Float32, label: int) -> Contributions:
        """Return the summands of the score of one label for one row.

        Raises ParameterError with the reason if the score is not a sum over the inputs, NotFound
        for an invalid label number, ShapeMismatch unless X has one row of the right width.
        """


class SparseScorer:
    """The scorer of a linear model: exact sparse search over (W, b)."""

    def __init__(self, index: SearchIndex, *, threads: int = 1) -> None:
        """Create a scorer. threads: cores used per batch; results do not depend on it."""
        self.index = index
        self.threads = threads

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return self.index.n_features

    @property
    def n_labels(self) -> int:
        """Return the number of labels."""
        return self.index.n_labels

    @property
    def n_bytes(self) -> int:
        """Return the size of the arrays of the index in bytes."""
        return self.index.n_bytes

    @property
    def answers_while_compiling(self) -> bool:
        """Return whether NumPy answers, see `SearchIndex`."""
        return self.index.answers_while_compiling

    def compile(self) -> None:
        """Load or compile the kernel of the index."""
        self.index.compile()

    def top_k(
        self,
        X: CSR | Float32,
        k: int = 5,
        *,
        label_filter: LabelFilter | None = None,
        deadline_ms: float | None = None,
    ) -> SearchResult:
        """Return the k best allowed labels of each row, see `Scorer.top_k`."""
        return self.index.query(
            sparse_rows(X),
            k,
            threads=self.threads,
            deadline_ms=deadline_ms,
            label_filter=label_filter,
        )

    def scores(self, X: CSR | Float32, labels: Sequence[int]) -> Float64:
        """Return the scores (n, len(labels)) float64, see `Scorer.scores`."""
        rows = sparse_rows(X)
        values = [[self.index.score(rows, j, i) for j in labels] for i in range(rows.n_rows)]
        return np.array(values, np.float64).reshape(rows.n_rows, len(labels))

    def rank(self, X: CSR | Float32, label: int) -> int:
        """Return the rank of a label among all labels for one row, see `Scorer.rank`."""
        rows = sparse_rows(X)
        check_one_row(rows.n_rows)
        return self.index.rank(rows, label)

    def contributions(self, X: CSR | Float32, label: int) -> Contributions:
        """Return the summands of the score of one label for one row, as far as they have a weight.

        See `Scorer.contributions`.
        """
        rows = sparse_rows(X)
        check_one_row(rows.n_rows)
        self.index.score(rows, label)  # validates the row and the label
        rows = self.index.input_rows(rows)
        (features, x), (weighted, weights) = rows.row(0), self.index.W.row(label)
        shared, at_x, at_w = np.intersect1d(
            features, weighted, assume_unique=True, return_indices=True
        )
        wide = x[at_x].astype(np.float64), weights[at_w].astype(np.float64)
        groups = self.index.groups
        parts = () if groups is None else tuple(groups.summands(rows, label))
        return Contributions(shared, *wide, float(self.index.b[label]), parts)


def sparse_rows(X: CSR | Float32) -> CSR:
    """Return rows as a CSR. X: CSR, returned unchanged, or dense float32 (n, d)."""
    if isinstance(X, CSR):
        return X
    row, column = np.nonzero(X)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=len(X)))))
    return csr(indptr, column, X[row, column], X.shape[1])


def check_one_row(n_rows: int) -> None:
    """Raise ShapeMismatch unless there is exactly one row."""
    if n_rows != 1:
        raise ShapeMismatch(f"explain takes one row, got {n_rows}; select one, as in X[i : i + 1]")
