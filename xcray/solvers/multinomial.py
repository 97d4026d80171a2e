"""The problem of multinomial logistic regression, and the rows of a shard as its solvers take them.

    L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i + sum_i c_i log sum_k exp(w_k.x_i)

c_i: the weight of row i as a share of all rows' (1/N without weights); y_i: its targets, which add up to 1. A row with m labels has
1/m for each: the softmax is to spread over all of them. A row without labels says nothing and is left out. `bias` is the value
of a constant feature, the last one, regularised like the others; 0 for none.

Source: Raman et al., "DS-MLR", eq. (2); targets of several labels: Menon et al., "Multilabel reductions: what is my loss
optimising?", NeurIPS 2019, the normalised pick-all-labels loss; the constant feature: LIBLINEAR's -B.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern, csr, frozen
from xcray.kernels.sparse import take_pattern_rows, take_rows

GROUPS: Final = 4096  # of neighbouring rows that a shard is made of, at most
DENSE: Final = 0.4  # from this share of entries that are not zero, rows are kept dense, and met in batches by matrix products


class Shard(NamedTuple):
    """Some rows. X: (n, D') with the constant feature, if any, as its last column; dense: the same as an array, for rows with few
    zeros, else None; targets: (n, K), each row adds up to 1; weights: (n,) the c_i, which add up to 1 over all shards; rows: (n,)
    their numbers in the data set, ascending."""

    X: CSR
    dense: Float32 | None
    targets: CSR
    weights: Float64
    rows: Int64


def shard_rows(n_rows: int, shards: int, seed: int, number: int) -> Int64:
    """The rows of shard `number` of `shards`: ascending int64, drawn by `seed`; every row is in just one shard.

    Where rows are many they are drawn in groups of neighbours, so that drawing takes memory for the groups only.
    """
    size = max(1, n_rows // (shards * GROUPS))
    groups = np.random.default_rng((seed, 1)).permutation(-(-n_rows // size))
    mine = np.sort(groups[number::shards])
    rows = (mine[:, None] * size + np.arange(size)).ravel()
    return frozen(rows[rows < n_rows], np.int64)


def total_weight(Y: Pattern, weights: Float32 | None = None) -> float:
    """The weight of all rows that have labels. Y: (N, K); weights: (N,) or None for 1 each."""
    labelled = np.diff(Y.indptr) > 0
    return (
        float(labelled.sum())
        if weights is None
        else float(np.asarray(weights, np.float64)[labelled].sum())
    )


def shard_of(
    X: CSR,
    Y: Pattern,
    rows: Int64,
    *,
    total: float,
    weights: Float32 | None = None,
    bias: float = 0.0,
) -> Shard:
    """Those of `rows` that have labels, as a shard. X: (N, D); Y: (N, K); weights: (N,) or None; total: see `total_weight`."""
    rows = frozen(rows, np.int64)
    rows = frozen(rows[np.diff(Y.indptr)[rows] > 0], np.int64)
    mine, labels = with_constant(take_rows(X, rows), bias), take_pattern_rows(Y, rows)
    shares = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)[rows]
    return Shard(
        mine,
        _dense(mine),
        targets_of(labels),
        frozen(shares / max(total, 1e-300), np.float64),
        rows,
    )


def targets_of(Y: Pattern) -> CSR:
    """Each row's labels with equal parts of 1: (n, K)."""
    counts = np.diff(Y.indptr)
    return csr(Y.indptr, Y.indices, np.repeat(1.0 / np.maximum(counts, 1), counts), Y.n_cols)


def with_constant(X: CSR, bias: float) -> CSR:
    """X with a last column of `bias`; X itself when that is 0."""
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
    """The rows as an array (n, D), where that is the better form."""
    if X.nnz < DENSE * X.n_rows * X.n_cols or not X.nnz:
        return None
    out = np.zeros(X.shape, np.float32)
    out[np.repeat(np.arange(X.n_rows), np.diff(X.indptr)), X.indices] = X.data
    return frozen(out, np.float32)
