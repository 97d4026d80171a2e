"""Contract of indexes for maximum inner products, and the order of their answers."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from xcray.arrays import CSR, Float64, Int32, TopK, frozen
from xcray.errors import ShapeMismatch
from xcray.kernels.search.candidates import score_candidates


class InnerProductIndex(Protocol):
    """Finds rows w of a matrix W (K, D) with a large inner product with a query x.

    Scores are exact: only the choice of the rows can be wrong. Immutable and thread-safe.
    """

    def query(self, X: CSR, k: int) -> TopK:
        """Return up to k rows for each query of X (n, D): best first, ties by lower number.

        Shape (n, min(k, K)); the label of a missing row is -1 and its score -inf. Raises
        ShapeMismatch for queries of another width.
        """


def rank_candidates(X: CSR, W: CSR, candidates: Int32, k: int) -> TopK:
    """Return the k best of the candidates (n, m) of each query by exact scores; -1: no candidate.

    Candidates of a query are different from each other.
    """
    scores: Float64 = np.empty(candidates.shape)
    score_candidates(X, W, candidates, scores)
    numbers = np.where(candidates < 0, np.iinfo(np.int32).max, candidates)
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return TopK(
        frozen(np.take_along_axis(candidates, order, axis=1), np.int32),
        frozen(np.take_along_axis(scores, order, axis=1), np.float64),
    )


def check_width(X: CSR, W: CSR) -> None:
    """Raise ShapeMismatch unless queries X (n, D) have the width of W (K, D)."""
    if X.n_cols != W.n_cols:
        raise ShapeMismatch(f"queries have {X.n_cols} features, the index {W.n_cols}")
