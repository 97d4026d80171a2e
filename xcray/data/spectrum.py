"""Singular values of the rows of a data set, and which trainings suit them.

Source: Agarwal et al., "Least squares revisited", ICML 2014, Figure 1b and section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, frozen
from xcray.errors import missing_extra
from xcray.kernels.sparse import take_rows

MAX_ROWS: Final = 8192  # drawn of more rows
EXACT: Final = 2048  # all values are computed of at most as many rows or columns
EXTRA, PASSES = 10, 2  # of the randomized method
ILL_CONDITIONED: Final = 100.0  # the paper's sets have 14, 19.8 and 72,000
SHARES: Final = (1, 10, 100)


class Spectrum(NamedTuple):
    """The largest singular values of the rows, descending: at most 1,000.

    rows: of which they were computed. total: the sum of the squares of all singular values.
    """

    values: Float64
    rows: int
    total: float

    @property
    def condition(self) -> float:
        """Return the second value divided by the last one, the paper's measure of conditioning."""
        largest = self.values[min(1, len(self.values) - 1)] if len(self.values) else 0.0
        return float(largest / self.values[-1]) if len(self.values) else 1.0

    def summary(self) -> dict[str, Any]:
        """Return the spectrum and the advice; JSON-ready."""
        sums = np.cumsum(self.values)
        shares = {str(n): float(sums[n - 1] / sums[-1]) for n in SHARES if n <= len(sums)}
        eigenvalues = np.square(self.values) / max(self.rows, 1)
        return {
            "rows": self.rows,
            "values": len(self.values),
            "eigenvalues": [float(value) for value in eigenvalues],
            "shares": shares,
            "covered": float(np.square(self.values).sum() / self.total) if self.total else 1.0,
            "condition": self.condition,
            "advice": advice(self.condition),
        }


def advice(condition: float) -> str:
    """Return which trainings suit rows with this condition number."""
    if condition < ILL_CONDITIONED:
        return (
            "well conditioned: methods that change one weight or one row at a time need few "
            "passes, such as ppdsparse, dismec, memoir and dsmlr"
        )
    return (
        "ill-conditioned: methods that use the second moments of the features need fewer passes, "
        "such as stagewise, generalized-least-squares and least-squares"
    )


def spectrum(X: CSR, count: int = 1000) -> Spectrum:
    """Return the largest singular values of rows X (N, D), without those that are 0.

    Of more than 8,192 rows, as many are drawn. Values are exact for at most 2,048 rows or columns,
    and otherwise from `count` random projections in float32 with two more passes. Memory:
    O(nnz(X) + (rows + D) count). Raises Unavailable if scipy is missing.
    """
    try:
        from scipy.linalg import qr
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    random = np.random.default_rng(0)
    numbers = np.sort(random.permutation(X.n_rows)[:MAX_ROWS])
    rows = take_rows(X, frozen(numbers, np.int64)).to_scipy().astype(np.float64)
    total = float(rows.multiply(rows).sum())
    n, d = rows.shape
    if min(n, d) <= EXACT:
        moments = (rows @ rows.T if n <= d else rows.T @ rows).toarray()
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(moments)[::-1], 0.0))
    else:
        size, rows = min(count + EXTRA, n, d), rows.astype(np.float32)
        start = random.standard_normal((d, size), np.float32)
        Q = qr(rows @ start, mode="economic")[0]
        for _ in range(PASSES):
            Q = qr(rows @ (rows.T @ Q), mode="economic")[0]
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(_gram(rows.T @ Q))[::-1], 0.0))
    largest = float(values[0]) if len(values) else 0.0
    # smaller ones are rounding errors of the squares
    return Spectrum(values[values > 1e-7 * largest][:count], len(numbers), total)


def _gram(B: Any) -> Float64:
    """Return B'B of B (d, m) in float64, some rows at a time."""
    out = np.zeros((B.shape[1],) * 2)
    for lo in range(0, len(B), 4096):
        chunk = B[lo : lo + 4096].astype(np.float64)
        out += chunk.T @ chunk
    return out


def show_eigenvalues(values: Sequence[float], places: Sequence[int]) -> str:
    """Return some of the values as text: `1: 0.9, 10: 0.01`."""
    return ", ".join(f"{n}: {values[n - 1]:.3g}" for n in places if 0 < n <= len(values))
