"""Weighted second moments (Gram matrices) of the rows of a shard, and their Cholesky factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from xcray.arrays import Float32, Float64
from xcray.errors import Stopped, missing_extra
from xcray.solvers.row_shards import Shard
from xcray.system.blas import add_second_moments

# returns an iterator of (first row number, dense rows) over all rows
Chunks: TypeAlias = Callable[[], Iterator[tuple[int, Float32]]]
Moments: TypeAlias = Float32 | Float64
CHUNK_CELLS: Final = 1 << 21  # entries of dense rows that are weighted at a time: 8 MB of float32
# From this share of non-zero entries, a dense product is faster than a sparse one: it does about
# 400 times as many multiplications per second.
MIN_DENSE_SHARE: Final = 0.05


def weighted_gram(
    shard: Shard, *, double: bool, stopped: Callable[[], bool] = lambda: False
) -> Moments:
    """Return the lower triangle of sum_i c_i x_i x_i' of a shard, zeros above: (D', D').

    double: use float64 instead of float32, as is also done if products overflow. Rows with
    few entries are multiplied as sparse ones, at a cost of the sum of the squared row lengths.
    Raises Stopped if `stopped` returns True between two chunks, and Unavailable if scipy is
    missing.
    """
    n, d = shard.X.shape
    if shard.dense is not None:
        return gram_of_chunks(_chunks(shard.dense, d, stopped), shard.weights, d, double=double)
    rows = shard.X.to_scipy()
    if shard.X.nnz >= MIN_DENSE_SHARE * n * d:
        return gram_of_chunks(_chunks(rows, d, stopped), shard.weights, d, double=double)
    rows = rows.multiply(np.sqrt(shard.weights)[:, None]).tocsr()
    rows = rows.astype(np.float64 if double else np.float32)
    gram: Moments = np.tril((rows.T @ rows).toarray())
    if double or np.isfinite(gram).all():
        return gram
    return weighted_gram(shard, double=True, stopped=stopped)


def gram_of_chunks(
    chunks: Chunks, weights: Float64, n_columns: int, *, double: bool = False
) -> Moments:
    """Return the lower triangle of the second moments of rows that are given in chunks.

    It is float32, or float64 with `double` and if products overflow. chunks: returns an iterator of
    (lo, Z) with the rows from `lo` on, (n, n_columns) float32. weights: (N,) of all rows. A chunk
    is added in place by the symmetric product of BLAS, which does half the work of a general one.
    """
    dtype = np.float64 if double else np.float32
    gram = np.zeros((n_columns, n_columns), dtype, order="F")
    root: Any = np.sqrt(weights).astype(dtype)[:, None]
    with np.errstate(over="ignore"):
        for lo, Z in chunks():
            add_second_moments(gram, np.ascontiguousarray(Z * root[lo : lo + len(Z)]))
    if double or np.isfinite(gram).all():
        return gram
    return gram_of_chunks(chunks, weights, n_columns, double=True)


def _chunks(rows: Any, n_columns: int, stopped: Callable[[], bool]) -> Chunks:
    """Return the chunks of dense or scipy rows, for `gram_of_chunks`."""
    size = max(1, CHUNK_CELLS // max(n_columns, 1))

    def chunks() -> Iterator[tuple[int, Float32]]:
        for lo in range(0, rows.shape[0] if n_columns else 0, size):
            if stopped():
                raise Stopped("stopped between two chunks of rows")
            chunk = rows[lo : lo + size]
            yield lo, chunk if isinstance(chunk, np.ndarray) else chunk.toarray()

    return chunks


def solver_of(gram: Float64, ridge: float) -> Callable[[Float64], Float64] | None:
    """Return G -> (gram + ridge I)^-1 G, or None if that matrix is not positive definite.

    gram: (D', D') float64, of which the lower triangle is read. Raises Unavailable if scipy is
    missing.
    """
    try:
        from scipy.linalg import LinAlgError, cho_factor, cho_solve
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    matrix = gram.copy(order="F")
    matrix.flat[:: len(gram) + 1] += ridge
    try:
        factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    return lambda G: np.asarray(cho_solve(factor, G, check_finite=False))
