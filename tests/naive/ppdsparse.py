"""Naive solution of the PPDSparse problem: dense arrays, L-BFGS-B on a smooth split of w.

C is a number, or an array with one value per sample. penalty: weight of b^2 as a multiple of tau.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def loss(z: np.ndarray, C: float | np.ndarray, kind: str) -> float:
    """Return the sum of the losses of margins violated by z."""
    z = np.maximum(z, 0.0)
    return float((C * z**2).sum() if kind == "squared_hinge" else (C * z).sum())


def primal(
    w: np.ndarray,
    b: float,
    X: np.ndarray,
    y: np.ndarray,
    lam: float,
    tau: float,
    C: float | np.ndarray,
    kind: str = "squared_hinge",
    penalty: float = 1.0,
) -> float:
    """Return lam |w|_1 + tau/2 (|w|^2 + penalty b^2) + C times the sum of losses."""
    z = 1.0 - y * (X @ w + b)
    return float(lam * np.abs(w).sum() + 0.5 * tau * (w @ w + penalty * b * b) + loss(z, C, kind))


def solve_squared_hinge(
    X: np.ndarray,
    y: np.ndarray,
    lam: float,
    tau: float,
    C: float | np.ndarray,
    penalty: float = 1.0,
) -> tuple[np.ndarray, float, float]:
    """Return (w, b, objective).

    w = p - m with p, m >= 0 makes the l1 norm linear and the problem smooth with bounds.
    """
    n, d = X.shape

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = u[:d] - u[d : 2 * d], u[-1]
        z = np.maximum(1.0 - y * (X @ w + b), 0.0)
        slope = -2.0 * C * (y * z)
        g = tau * w + X.T @ slope
        value = lam * u[: 2 * d].sum() + 0.5 * tau * (w @ w + penalty * b * b) + (C * z * z).sum()
        return value, np.concatenate([lam + g, lam - g, [tau * penalty * b + slope.sum()]])

    bounds = [(0.0, None)] * (2 * d) + [(None, None)]
    result = minimize(
        objective,
        np.zeros(2 * d + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 20_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    w, b = result.x[:d] - result.x[d : 2 * d], float(result.x[-1])
    return w, b, primal(w, b, X, y, lam, tau, C, penalty=penalty)


def null_objective(
    y: np.ndarray,
    tau: float,
    C: float | np.ndarray,
    kind: str = "squared_hinge",
    penalty: float = 1.0,
) -> float:
    """Return the minimum over b of the primal at w = 0, on a fine grid."""
    b, power = np.linspace(-1.0, 1.0, 20_001), 2 if kind == "squared_hinge" else 1
    values = 0.5 * tau * penalty * b * b
    for sign in (-1.0, 1.0):  # the samples of a sign have the same margin
        values += (C * (y == sign)).sum() * np.maximum(1.0 - sign * b, 0.0) ** power
    return float(values.min())
