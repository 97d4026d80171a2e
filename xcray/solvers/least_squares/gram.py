"""Weighted second moments (Gram matrices) of the rows of a shard, and their Cholesky factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from xcray.arrays import Float64
from xcray.errors import Stopped, missing_extra
from xcray.solvers.multinomial import Shard

CHUNK_CELLS: Final = 1 << 21  # entries of dense rows that are weighted at a time: 8 MB of float32
# From this share of non-zero entries, a dense product is faster than a sparse one: it does about
# 400 times as many multiplications per second.
MIN_DENSE_SHARE: Final = 0.05


def weighted_gram(
    shard: Shard, *, double: bool, stopped: Callable[[], bool] = lambda: False
) -> Float64:
    """Return sum_i c_i x_i x_i' of a shard: (D', D') float64.

    double: multiply in float64 instead of float32, as is also done if products overflow. Products
    of chunks are added in float64. Rows with few entries are multiplied as sparse ones, at a cost
    of the sum of the squared row lengths. Raises Stopped if `stopped` returns True between two
    chunks, and Unavailable if scipy is missing.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        gram = _multiply(shard, np.float64 if double else np.float32, stopped)
    if not double and not np.isfinite(gram).all():
        return weighted_gram(shard, double=True, stopped=stopped)
    return gram


def _multiply(shard: Shard, dtype: Any, stopped: Callable[[], bool]) -> Float64:
    """Return the second moments of a shard, with products in `dtype`."""
    n, d = shard.X.shape
    root = np.sqrt(shard.weights)
    rows: Any = shard.X.to_scipy() if shard.dense is None else shard.dense
    if shard.dense is None and shard.X.nnz < MIN_DENSE_SHARE * n * d:
        rows = rows.multiply(root[:, None]).tocsr().astype(dtype)
        return np.asarray((rows.T @ rows).toarray(), np.float64)
    gram = np.zeros((d, d))
    size = max(1, CHUNK_CELLS // max(d, 1))
    for lo in range(0, n, size):
        if stopped():
            raise Stopped("stopped between two chunks of rows")
        chunk = rows[lo : lo + size]
        chunk = chunk.toarray() if shard.dense is None else chunk
        chunk = chunk * root[lo : lo + size, None].astype(dtype)
        gram += chunk.T @ chunk  # NumPy calls syrk: half the work of a general product
    return gram


def solver_of(gram: Float64, ridge: float) -> Callable[[Float64], Float64] | None:
    """Return G -> (gram + ridge I)^-1 G, or None if that matrix is not positive definite.

    gram: (D', D') float64. Raises Unavailable if scipy is missing.
    """
    try:
        from scipy.linalg import LinAlgError, cho_factor, cho_solve
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    matrix = gram.copy()
    matrix.flat[:: len(gram) + 1] += ridge
    try:
        factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    return lambda G: np.asarray(cho_solve(factor, G, check_finite=False))
