"""Products of a shard's rows, sparse or dense, with matrices that have a column a label, in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xcray.arrays import Float64, csr, frozen
from xcray.kernels.training import products
from xcray.solvers.multinomial import Shard

WIDENED = 1 << 20  # entries of dense rows in float64 at a time: 8 MB


class Rows:
    """X (N x D') of a shard; nothing is kept but the shard."""

    def __init__(self, shard: Shard) -> None:
        self._X = shard.X
        self._dense = shard.dense
        self.n_rows, self.n_features = shard.X.shape

    def scores(self, W: Float64, lo: int = 0, hi: int | None = None) -> Float64:
        """X W of rows lo .. hi-1, all by default. W: (D', m) float64; (hi-lo, m) float64."""
        hi = self.n_rows if hi is None else hi
        W, S = frozen(W, np.float64), np.empty((hi - lo, W.shape[1]))
        if self._dense is None:
            products.scores(self._X, W, lo, hi, S)
        for begin, X in self._widened(lo, hi):
            np.matmul(X, W, out=S[begin - lo : begin - lo + len(X)])
        return S

    def add_back(self, R: Float64, lo: int, G: Float64) -> None:
        """G += X'R over rows lo .. lo + len(R) - 1. R: (n, m); G: (D', m); both float64."""
        R = frozen(R, np.float64)
        if self._dense is None:
            products.add_back(self._X, R, lo, G)
        for begin, X in self._widened(lo, lo + len(R)):
            G += X.T @ R[begin - lo : begin - lo + len(X)]

    def back(self, R: Float64) -> Float64:
        """X'R of R (N, m): (D', m) float64."""
        G = np.zeros((self.n_features, R.shape[1]))
        self.add_back(R, 0, G)
        return G

    def back_squared(self, R: Float64) -> Float64:
        """The same with each entry of X squared."""
        R, G = frozen(R, np.float64), np.zeros((self.n_features, R.shape[1]))
        if self._dense is None:
            products.add_back_squared(self._X, R, 0, G)
        for begin, X in self._widened(0, self.n_rows):
            G += np.square(X).T @ R[begin : begin + len(X)]
        return G

    def _widened(self, lo: int, hi: int) -> Iterator[tuple[int, Float64]]:
        """Dense rows lo .. hi-1 in float64, some at a time, with the number of the first; nothing of sparse ones."""
        if self._dense is not None:
            n = max(1, WIDENED // max(self.n_features, 1))
            for begin in range(lo, hi, n):
                yield begin, self._dense[begin : min(begin + n, hi)].astype(np.float64)


def warm_up() -> None:
    """Compile or load the kernels, on one row."""
    X, R = csr([0, 1], [0], [1.0], 1), np.ones((1, 1))
    rows = Rows(Shard(X, None, X, frozen(np.ones(1), np.float64), frozen(np.zeros(1), np.int64)))
    rows.back(rows.scores(R))
    rows.back_squared(R)
