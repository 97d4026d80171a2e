"""Textbook multinomial logistic regression: dense, float64, one formula per function."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from xcray.arrays import csr_from, frozen
from xcray.solvers.row_shards import Shard


def objective(W: Any, X: Any, Y: Any, c: Any, lam: float) -> float:
    """Return lam/2 |W|^2 + sum_i c_i (log sum_k exp(w_k.x_i) - sum_k y_ik w_k.x_i).

    W: (D, K); Y: (N, K); c: (N,).
    """
    total = lam / 2 * float((W**2).sum())
    for x, y, weight in zip(X, Y, c, strict=True):
        scores = x @ W
        most = scores.max()
        total += weight * (most + np.log(np.exp(scores - most).sum()) - y @ scores)
    return total


def gradient(W: Any, X: Any, Y: Any, c: Any, lam: float) -> Any:
    """Return lam w_k + sum_i c_i (p_ik - y_ik) x_i for each k: (D, K)."""
    G = lam * W
    for x, y, weight in zip(X, Y, c, strict=True):
        p = np.exp(x @ W - (x @ W).max())
        G = G + weight * np.outer(x, p / p.sum() - y)
    return G


def solve(X: Any, Y: Any, c: Any, lam: float) -> Any:
    """Return the optimum by BFGS over the whole matrix: (D, K)."""
    shape = (X.shape[1], Y.shape[1])

    def value(w: Any) -> tuple[float, Any]:
        W = w.reshape(shape)
        return objective(W, X, Y, c, lam), gradient(W, X, Y, c, lam).ravel()

    return minimize(
        value, np.zeros(shape).ravel(), jac=True, method="BFGS", options={"gtol": 1e-9}
    ).x.reshape(shape)


def shard_of(X: Any, Y: Any, c: Any, rows: Any, sparse: bool = True) -> Shard:
    """Return rows of dense X (N, D), Y (N, K), c (N,) in the form for a solver."""
    rows = np.asarray(rows, np.int64)
    dense = None if sparse else frozen(X[rows], np.float32)
    return Shard(
        csr_from(X[rows]),
        dense,
        csr_from(Y[rows]),
        frozen(c[rows], np.float64),
        frozen(rows, np.int64),
    )
