"""Products of a shard's rows with dense matrices, in double precision.

Rows are sparse or dense; matrices have one column per label.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xcray.arrays import Float64, csr, frozen
from xcray.kernels.training import products
from xcray.solvers.row_shards import Shard

# entries of dense rows that are converted to float64 at a time: 8 MB
DENSE_CHUNK_CELLS = 1 << 20


class RowOperator:
    """X (N, D') of a shard as a linear operator."""

    def __init__(self, shard: Shard) -> None:
        self._X = shard.X
        self._dense = shard.dense
        self.n_rows, self.n_features = shard.X.shape

    def scores(self, W: Float64, lo: int = 0, hi: int | None = None) -> Float64:
        """Return X W of rows lo .. hi-1 (default: all): (hi-lo, m) float64. W: (D', m) float64."""
        hi = self.n_rows if hi is None else hi
        W, S = frozen(W, np.float64), np.empty((hi - lo, W.shape[1]))
        if self._dense is None:
            products.scores(self._X, W, lo, hi, S)
        for begin, X in self._dense_chunks(lo, hi):
            np.matmul(X, W, out=S[begin - lo : begin - lo + len(X)])
        return S

    def add_adjoint(self, R: Float64, lo: int, G: Float64) -> None:
        """Add X'R over rows lo .. lo + len(R) - 1 to G. R: (n, m); G: (D', m); both float64."""
        R = frozen(R, np.float64)
        if self._dense is None:
            products.add_adjoint(self._X, R, lo, G)
        for begin, X in self._dense_chunks(lo, lo + len(R)):
            G += X.T @ R[begin - lo : begin - lo + len(X)]

    def adjoint(self, R: Float64) -> Float64:
        """Return X'R of R (N, m): (D', m) float64."""
        G = np.zeros((self.n_features, R.shape[1]))
        self.add_adjoint(R, 0, G)
        return G

    def adjoint_squared(self, R: Float64) -> Float64:
        """Return `adjoint` with each entry of X squared."""
        R, G = frozen(R, np.float64), np.zeros((self.n_features, R.shape[1]))
        if self._dense is None:
            products.add_adjoint_squared(self._X, R, 0, G)
        for begin, X in self._dense_chunks(0, self.n_rows):
            G += np.square(X).T @ R[begin : begin + len(X)]
        return G

    def _dense_chunks(self, lo: int, hi: int) -> Iterator[tuple[int, Float64]]:
        """Yield dense rows lo .. hi-1 in float64, each chunk with its first row number.

        Yields nothing for sparse rows.
        """
        if self._dense is not None:
            n = max(1, DENSE_CHUNK_CELLS // max(self.n_features, 1))
            for begin in range(lo, hi, n):
                yield begin, self._dense[begin : min(begin + n, hi)].astype(np.float64)


def warm_up() -> None:
    """Compile or load the kernels, on one row."""
    X, R = csr([0, 1], [0], [1.0], 1), np.ones((1, 1))
    rows = RowOperator(
        Shard(X, None, X, frozen(np.ones(1), np.float64), frozen(np.zeros(1), np.int64))
    )
    rows.adjoint(rows.scores(R))
    rows.adjoint_squared(R)
