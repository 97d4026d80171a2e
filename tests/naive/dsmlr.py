"""DS-MLR as in the paper: dense, float64, one formula per function, one row and label at a time."""

from __future__ import annotations

from typing import Any

import numpy as np


def split_objective(W: Any, b: Any, X: Any, Y: Any, c: Any, lam: float) -> float:
    """Return eq. (10): the sum of `term` over all rows and labels.

    W: (D, K); b: (N,); X: (N, D); Y: (N, K); c: (N,) with sum 1.
    """
    return sum(term(W, b, X, Y, c, lam, i, k) for i in range(len(X)) for k in range(W.shape[1]))


def term(W: Any, b: Any, X: Any, Y: Any, c: Any, lam: float, i: int, k: int) -> float:
    """Return eq. (12), f_ki, with c_i for 1/N."""
    K, score = W.shape[1], float(W[:, k] @ X[i])
    return c[i] * (
        lam / 2 * float(W[:, k] @ W[:, k])
        - Y[i, k] * score
        + np.exp(score + b[i])
        - b[i] / K
        - 1 / K
    )


def term_gradient(W: Any, b: Any, X: Any, Y: Any, c: Any, lam: float, i: int, k: int) -> Any:
    """Return the gradient of f_ki with respect to w_k, (D,): eq. (13) without its factor K."""
    return c[i] * (lam * W[:, k] + (np.exp(W[:, k] @ X[i] + b[i]) - Y[i, k]) * X[i])


def exact_b(W: Any, X: Any) -> Any:
    """Return eq. (9): -log sum_k exp(w_k.x_i); (N,)."""
    S = X @ W
    most = S.max(axis=1)
    return -(most + np.log(np.exp(S - most[:, None]).sum(axis=1)))


def steps(
    W: Any,
    h: Any,
    b: Any,
    X: Any,
    Y: Any,
    c: Any,
    rows: Any,
    rate: float,
    norm: Any,
    share: float,
    adaptive: bool,
) -> Any:
    """Return W and h of one block after the steps of all rows.

    W: (D, k); h: (D,); Y: (N, k), the rows' targets of the block.
    """
    W, h = W.copy(), h.copy()
    for i in rows:
        r = c[i] * (np.exp(np.minimum(X[i] @ W + b[i], 0.0)) - Y[i])
        for j in np.flatnonzero(X[i]):
            h[j] += X[i, j] ** 2 * float(r @ r) / share
            size = rate / np.sqrt(h[j]) if adaptive else rate
            W[j] = (W[j] - size * X[i, j] * r) / (1 + size * norm[j])
    return W, h


def plain_epochs(X: Any, Y: Any, lam: float, eta: float, epochs: int, seed: int = 0) -> Any:
    """Return W after epochs of eq. (13) with steps eta / sqrt(t), for all labels of a row at once.

    b is exact after each epoch; exponents are at most 0, because without that bound W overflows.
    """
    W, random = np.zeros((X.shape[1], Y.shape[1])), np.random.default_rng(seed)
    for t in range(1, epochs + 1):
        b = exact_b(W, X)
        for i in random.permutation(len(X)):
            residual = np.exp(np.minimum(X[i] @ W + b[i], 0.0)) - Y[i]
            W -= eta / np.sqrt(t) * (lam * W + np.outer(X[i], residual))
    return W


def two_loops(g: Any, S: Any, Y: Any, M: Any) -> Any:
    """Return the direction -H g of L-BFGS by its two loops, for vectors of any shape.

    The start is H0 = (s.y / y.My) M of the last pair.
    """
    q, alphas = g.copy(), []
    for s, y in zip(S[::-1], Y[::-1], strict=True):
        alphas.append((s * q).sum() / (s * y).sum())
        q = q - alphas[-1] * y
    r = M @ q
    if len(S):
        r = r * (S[-1] * Y[-1]).sum() / (Y[-1] * (M @ Y[-1])).sum()
    for s, y, alpha in zip(S, Y, alphas[::-1], strict=True):
        r = r + (alpha - (y * r).sum() / (s * y).sum()) * s
    return -r
