"""Naive solutions of the PD-Sparse problem: dense loops with every label active, and SLSQP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize


def soft(V: np.ndarray, lam: float) -> np.ndarray:
    """Return V after soft thresholding by lam."""
    return np.sign(V) * np.maximum(np.abs(V) - lam, 0.0)


def loss(z: np.ndarray, labels: Sequence[int]) -> float:
    """Return max(0, 1 + the best score of other labels - the worst score of the row's labels).

    The loss is 0 if there are no labels or no others.
    """
    others = [k for k in range(len(z)) if k not in set(labels)]
    if not len(labels) or not others:
        return 0.0
    return max(0.0, 1.0 + max(z[k] for k in others) - min(z[k] for k in labels))


def primal(
    W: np.ndarray, X: np.ndarray, labels: list[list[int]], lam: float, tau: float, C: float
) -> float:
    """Return lam |W|_1 + tau/2 |W|^2 + C times the sum of losses; W is D x K."""
    losses = sum(loss(x @ W, own) for x, own in zip(X, labels, strict=True))
    return float(lam * np.abs(W).sum() + 0.5 * tau * (W**2).sum() + C * losses)


def dual(beta: np.ndarray, X: np.ndarray, lam: float, tau: float) -> float:
    """Return the sum of the masses m_i - tau/2 |W(beta)|^2.

    beta is N x K; the positive part of row i sums to m_i.
    """
    W = soft(X.T @ beta, lam) / tau
    return float(np.maximum(beta, 0.0).sum() - 0.5 * tau * (W**2).sum())


def over(c: Sequence[float], t: float) -> float:
    """Return the sum of max(x - t, 0) over c."""
    return sum(x - t for x in c if x > t)


def level(c: Sequence[float], mass: float) -> float:
    """Return the t with over(c, t) = mass, by bisection."""
    low, high = min(c) - mass, max(c)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if over(c, middle) > mass else (low, middle)
    return high


def project(c: np.ndarray, n_pos: int, C: float) -> np.ndarray:
    """Return the nearest point to c whose two parts are >= 0 and have equal sums, at most C.

    If the sum is below C, one part is lowered by the amount by which the other is raised, which is
    found by bisection.
    """
    p, n = c[:n_pos].tolist(), c[n_pos:].tolist()
    if max(p) + max(n) <= 0.0:
        return np.zeros(len(c))
    low, high = -max(n), max(p)
    for _ in range(60):
        t = 0.5 * (low + high)
        low, high = (t, high) if over(p, t) > over(n, -t) else (low, t)
    t, h = (low, -low) if over(p, low) <= C else (level(p, C), level(n, C))
    return np.concatenate([np.maximum(c[:n_pos] - t, 0.0), np.maximum(c[n_pos:] - h, 0.0)])


def solve(
    X: np.ndarray,
    labels: list[list[int]],
    K: int,
    lam: float,
    tau: float,
    C: float,
    *,
    sweeps: int = 400,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (W, beta) by block-coordinate ascent in fixed order, all labels active."""
    beta, V = np.zeros((len(X), K)), np.zeros((X.shape[1], K))
    for _ in range(sweeps):
        before = beta.copy()
        for i, own in enumerate(labels):
            others = [k for k in range(K) if k not in set(own)]
            if not own or not others:
                continue
            z, step = X[i] @ soft(V, lam) / tau, tau / max(X[i] @ X[i], 1e-6)
            c = np.concatenate(
                [beta[i, own] + (1.0 - z[own]) * step, -beta[i, others] + z[others] * step]
            )
            new = project(c, len(own), C)
            moved = np.zeros(K)
            moved[own], moved[others] = new[: len(own)], -new[len(own) :]
            V += np.outer(X[i], moved - beta[i])
            beta[i] = moved
        if np.abs(beta - before).max() < 1e-10:
            break
    return soft(V, lam) / tau, beta


def solve_program(
    X: np.ndarray, labels: list[list[int]], K: int, lam: float, tau: float, C: float
) -> tuple[np.ndarray, float]:
    """Return (W, objective) by SLSQP.

    W = A - B with A, B >= 0, one slack per sample, and one constraint per pair of labels.
    """
    n, d = X.shape
    rows, right = [], []
    for i, own in enumerate(labels):
        for p in own:
            for k in set(range(K)) - set(own):
                M = np.zeros((d, K))
                M[:, p] += X[i]
                M[:, k] -= X[i]
                slack = np.zeros(n)
                slack[i] = 1.0
                rows.append(np.concatenate([M.ravel(), -M.ravel(), slack]))
                right.append(1.0)
    A, b, size = np.array(rows), np.array(right), d * K

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        w = u[:size] - u[size : 2 * size]
        slope = np.concatenate([lam + tau * w, lam - tau * w, np.full(n, C)])
        return float(
            lam * u[: 2 * size].sum() + 0.5 * tau * (w @ w) + C * u[2 * size :].sum()
        ), slope

    result = minimize(
        objective,
        np.concatenate([np.zeros(2 * size), np.ones(n)]),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, None)] * (2 * size + n),
        constraints=[{"type": "ineq", "fun": lambda u: A @ u - b, "jac": lambda u: A}],
        options={"maxiter": 500, "ftol": 1e-12},
    )
    W = (result.x[:size] - result.x[size : 2 * size]).reshape(d, K)
    return W, primal(W, X, labels, lam, tau, C)
