"""Row shards: some rows with their targets and weights, as input of group solvers.

The weight c_i of row i is its share of the total weight (1/N without weights). Its targets y_i add
up to 1: each label of a row with m labels has target 1/m, so the softmax of a multinomial model
should spread over all of them. Rows without labels are left out. `bias` is the value of a constant
feature, the last one, regularised like the others; 0 for no such feature.

Source: targets of several labels: Menon et al., "Multilabel reductions: what is my loss
optimising?", NeurIPS 2019, the normalised pick-all-labels loss. Constant feature: option -B of
LIBLINEAR.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern, csr, frozen
from xcray.kernels.sparse import take_pattern_rows, take_rows, to_dense

# a shard consists of at most this many groups of neighbouring rows
MAX_GROUPS_PER_SHARD: Final = 4096
# from this share of non-zero entries, rows are stored dense and processed by matrix products
MIN_DENSE_SHARE: Final = 0.4
SHARE_SEED: Final = 0  # of the shares of group workers; the optimum does not depend on it


class Shard(NamedTuple):
    """A subset of the rows.

    X: (n, D') with the constant feature, if any, as the last column; dense: the same as an array
    for rows with few zeros, else None; targets: (n, K), each row adds up to 1; weights: (n,) the
    c_i, which add up to 1 over all shards; rows: (n,) their numbers in the data set, ascending.
    """

    X: CSR
    dense: Float32 | None
    targets: CSR
    weights: Float64
    rows: Int64


def shard_rows(n_rows: int, shards: int, seed: int, number: int) -> Int64:
    """Return the rows of shard `number` of `shards`: ascending int64, drawn by `seed`.

    Every row is in exactly one shard. For many rows, groups of neighbouring rows are drawn, so that
    memory is needed for the groups only.
    """
    size = max(1, n_rows // (shards * MAX_GROUPS_PER_SHARD))
    groups = np.random.default_rng((seed, 1)).permutation(-(-n_rows // size))
    own = np.sort(groups[number::shards])
    rows = (own[:, None] * size + np.arange(size)).ravel()
    return frozen(rows[rows < n_rows], np.int64)


def total_weight(Y: Pattern, weights: Float32 | None = None) -> float:
    """Return the total weight of the rows with labels.

    Y: (N, K); weights: (N,), or None for 1 each.
    """
    labelled = np.diff(Y.indptr) > 0
    return (
        float(labelled.sum())
        if weights is None
        else float(np.asarray(weights, np.float64)[labelled].sum())
    )


def make_shard(
    X: CSR,
    Y: Pattern,
    rows: Int64,
    *,
    total: float,
    weights: Float32 | None = None,
    bias: float = 0.0,
) -> Shard:
    """Return those of `rows` that have labels, as a shard.

    X: (N, D); Y: (N, K); weights: (N,) or None; total: see `total_weight`.
    """
    rows = frozen(rows, np.int64)
    rows = frozen(rows[np.diff(Y.indptr)[rows] > 0], np.int64)
    X_rows, labels = append_constant(take_rows(X, rows), bias), take_pattern_rows(Y, rows)
    shares = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)[rows]
    return Shard(
        X_rows,
        _dense(X_rows),
        label_targets(labels),
        frozen(shares / max(total, 1e-300), np.float64),
        rows,
    )


def cut_share(
    X: CSR, Y: Pattern, weights: Float32 | None, share: tuple[int, int], bias: float
) -> Shard:
    """Return share (number, of how many) of the rows, the same for any run, as a shard."""
    number, shares = share
    rows = shard_rows(X.n_rows, shares, SHARE_SEED, number)
    return make_shard(X, Y, rows, total=total_weight(Y, weights), weights=weights, bias=bias)


def label_targets(Y: Pattern) -> CSR:
    """Return equal targets that add up to 1 in each row: (n, K)."""
    counts = np.diff(Y.indptr)
    return csr(Y.indptr, Y.indices, np.repeat(1.0 / np.maximum(counts, 1), counts), Y.n_cols)


def append_constant(X: CSR, bias: float) -> CSR:
    """Return X with a last column of `bias`; X itself if bias is 0."""
    if bias == 0.0:
        return X
    n, ends = X.n_rows, X.indptr[1:]
    return csr(
        X.indptr + np.arange(n + 1),
        np.insert(X.indices[: X.indptr[-1]], ends, X.n_cols),
        np.insert(X.data[: X.indptr[-1]], ends, np.float32(bias)),
        X.n_cols + 1,
    )


def _dense(X: CSR) -> Float32 | None:
    """Return the rows as an array (n, D) if they have few zeros, else None."""
    if X.nnz < MIN_DENSE_SHARE * X.n_rows * X.n_cols or not X.nnz:
        return None
    return to_dense(X)
