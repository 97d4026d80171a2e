"""Features whose values are so large that they hide all others."""

from __future__ import annotations

from typing import Final

import numpy as np

from xcray.arrays import CSR, Float64, frozen

# a feature is large if its square is more than this many times those of all smaller ones together
MAX_SQUARE_RATIO: Final = 10.0
ENTRIES_AT_A_TIME: Final = 1 << 20  # 8 MB of squares


def mean_squares(X: CSR) -> Float64:
    """Return the mean square of each feature: (D,) float64. X: (N, D), read in slices."""
    sums = np.zeros(X.n_cols)
    for lo in range(0, X.nnz, ENTRIES_AT_A_TIME):
        entries = slice(lo, lo + ENTRIES_AT_A_TIME)
        squares = np.square(X.data[entries], dtype=np.float64)
        sums += np.bincount(X.indices[entries], weights=squares, minlength=X.n_cols)
    return frozen(sums / max(X.n_rows, 1), np.float64)


def feature_scales(squares: Float64) -> Float64:
    """Return scales (D',) by which features are divided while the optimum is searched; mostly 1.

    squares: (D',) weighted mean squares of the features. A feature whose square is more than
    MAX_SQUARE_RATIO times that of all smaller ones together, at least half of all, would dominate
    steps and gradients: a test of the norm of the gradient would see nothing else. All such
    features are scaled to have together the square of the others.
    """
    order = np.argsort(-squares, kind="stable")[: np.count_nonzero(squares)]
    tail = np.cumsum(squares[order][::-1])[::-1]  # (m,) squares from each place on
    half = len(order) // 2
    large = np.flatnonzero(squares[order[:half]] > MAX_SQUARE_RATIO * tail[1 : half + 1])
    scales = np.ones(len(squares))
    if len(large):
        n = int(large[-1]) + 1
        scales[order[:n]] = np.sqrt(squares[order[:n]] * n / tail[n])
    return scales
