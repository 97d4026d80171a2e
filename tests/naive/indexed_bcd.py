"""Naive hinge and truncated hinge problems with a regularised bias, dense and in float64.

X: (N, D); y: (N,) 1 or -1; costs: (N,) above 0; v: (D + 1,) weights and bias.
"""

from __future__ import annotations

import numpy as np


def margins(X: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return y_i (w.x_i + b) of each row."""
    out: np.ndarray = y * (X @ v[:-1] + v[-1])
    return out


def truncated_objective(
    X: np.ndarray, y: np.ndarray, costs: np.ndarray, v: np.ndarray, s: float
) -> float:
    """Return the objective with losses of at most 1 + s."""
    losses = np.minimum(np.maximum(1.0 - margins(X, y, v), 0.0), 1.0 + s)
    return float(0.5 * v @ v + costs @ losses)


def primal(X: np.ndarray, y: np.ndarray, costs: np.ndarray, v: np.ndarray) -> float:
    """Return the objective with hinge losses."""
    return truncated_objective(X, y, costs, v, np.inf)


def boundary_rows(
    X: np.ndarray, y: np.ndarray, v: np.ndarray, outlier_v: np.ndarray, s: float
) -> np.ndarray:
    """Return which rows violate the margin at v and are not outliers at outlier_v: (N,) bool.

    Outliers have y_i (w.x_i + b) < -s; s = inf has none. The paper's eq. 10.
    """
    out: np.ndarray = (margins(X, y, v) < 1.0) & (margins(X, y, outlier_v) >= -s)
    return out


def squared_primal(X: np.ndarray, y: np.ndarray, costs: np.ndarray, v: np.ndarray) -> float:
    """Return the objective with squared hinge losses."""
    z = np.maximum(1.0 - margins(X, y, v), 0.0)
    return float(0.5 * v @ v + costs @ (z * z))


def solve_dual(
    X: np.ndarray, y: np.ndarray, costs: np.ndarray, sweeps: int
) -> tuple[np.ndarray, float]:
    """Return v and the dual objective after sweeps in the order of the rows."""
    Z = y[:, None] * np.column_stack([X, np.ones(len(X))])
    alpha = np.zeros(len(X))
    for _ in range(sweeps):
        for i, z in enumerate(Z):
            gradient = z @ (Z.T @ alpha) - 1.0
            alpha[i] = np.clip(alpha[i] - gradient / (z @ z), 0.0, costs[i])
    v = Z.T @ alpha
    return v, float(alpha.sum() - 0.5 * v @ v)


def pegasos(
    X: np.ndarray, y: np.ndarray, costs: np.ndarray, order: np.ndarray, is_squared: bool = False
) -> np.ndarray:
    """Return v after one projected step for each row of `order`."""
    Z = np.column_stack([X, np.ones(len(X))])
    v, radius = np.zeros(Z.shape[1]), np.sqrt(costs.sum() / (2.0 if is_squared else 1.0))
    for t, i in enumerate(order, 1):
        z = 1.0 - y[i] * (Z[i] @ v)
        v *= 1.0 - 1.0 / t
        if z > 0.0:
            v += y[i] * len(X) * costs[i] / t * (2.0 * z if is_squared else 1.0) * Z[i]
        v *= min(1.0, radius / max(np.linalg.norm(v), 1e-300))
    return v
