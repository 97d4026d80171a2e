"""High-precision reference of the one-vs-rest problem: Newton's method in float64, with bounds.

    P(w, b) = lam |w|_1 + tau/2 |w|^2 + tau_b/2 b^2 + sum_i loss(z_i),  z_i = 1 - y_i (w.x_i + b)
    D(alpha) = sum_i alpha_i - inv/2 |alpha|^2 - tau/2 |w(alpha)|^2 - tau_b/2 b(alpha)^2
    w(alpha) = soft(v, lam) / tau,  v = sum_i alpha_i y_i x_i,  b(alpha) = sum_i alpha_i y_i / tau_b

    squared hinge: loss = C z_+^2, inv = 1/(2C), alpha >= 0    hinge: loss = C z_+, 0 <= alpha <= C

It shares no code with the solvers of xcray, and no method with its coordinate descent. The squared
hinge is first minimised in the primal, where Newton's method with conjugate gradients takes few
steps unless thousands of weights change their sign. Then, and for the hinge from the beginning, the
dual is maximised by projected Newton steps. Every point gives both an upper and a lower bound, so
the optimum is between `dual` and `primal` of a solution, whatever path led there.

Orthants: Andrew, Gao, "Scalable training of l1-regularized log-linear models", ICML 2007, section
3. Projected Newton steps: Bertsekas, "Projected Newton methods for optimization problems with
simple constraints", SIAM Journal on Control and Optimization, 1982.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

MAX_PRIMAL_STEPS, MAX_DUAL_STEPS, MAX_PRODUCTS = 100, 400, 500
LEAST_LENGTH = 1e-10  # of a step; a line search that needs less ends
DAMPING = 1e-3  # of the dual's second derivatives, where the loss has none


@dataclass(frozen=True)
class LabelProblem:
    """Problem of one label. X: (N, D) float64; y: (N,) of +1 and -1."""

    X: sp.csr_matrix
    y: Any
    squared: bool  # squared hinge, or hinge
    lam: float
    tau: float
    tau_b: float
    C: float

    @property
    def inv(self) -> float:
        """Curvature of the dual from the loss."""
        return 0.5 / self.C if self.squared else 0.0

    @property
    def upper(self) -> float:
        """Upper bound of a dual variable."""
        return math.inf if self.squared else self.C

    def margins(self, u: Any) -> Any:
        """Return z (N,) at u = (w, b)."""
        return 1.0 - self.y * (self.X @ u[:-1] + u[-1])

    def primal(self, u: Any, margins: Any = None) -> float:
        """Return P at u = (w, b); margins: those of u, if they are known."""
        z = np.maximum(self.margins(u) if margins is None else margins, 0.0)
        w, b = u[:-1], float(u[-1])
        norms = self.lam * np.abs(w).sum() + 0.5 * self.tau * (w @ w) + 0.5 * self.tau_b * b * b
        return float(norms + self.C * (z @ z if self.squared else z.sum()))

    def point_of(self, alpha: Any) -> tuple[Any, float]:
        """Return (w(alpha), b(alpha)) as one array, and D(alpha)."""
        signed = alpha * self.y
        v = self.X.T @ signed
        w = np.sign(v) * np.maximum(np.abs(v) - self.lam, 0.0) / self.tau
        b = float(signed.sum()) / self.tau_b
        value = alpha.sum() - 0.5 * self.inv * (alpha @ alpha) - 0.5 * self.tau * (w @ w)
        return np.append(w, b), float(value - 0.5 * self.tau_b * b * b)

    def null_objective(self) -> float:
        """Return the least P at w = 0: at a zero of its slope, or where the hinge has a corner."""
        positive, negative = int((self.y > 0).sum()), int((self.y < 0).sum())
        balance = self.C * (positive - negative)
        b = balance / self.tau_b
        if self.squared:
            b = 2.0 * balance / (self.tau_b + 2.0 * self.C * len(self.y))
        u = np.zeros(self.X.shape[1] + 1)
        return min(self.primal(np.append(u[:-1], at)) for at in (b, -1.0, 1.0))


@dataclass
class Bounds:
    """Best points so far: dual <= optimum <= primal. u: (w, b) of `primal`."""

    target: float  # gap that is small enough
    u: Any = None
    primal: float = math.inf
    dual: float = -math.inf
    steps: int = field(default=0)

    def add(self, u: Any, primal: float, dual: float) -> bool:
        """Take another point and bound; return whether the gap is small enough."""
        if primal < self.primal:
            self.u, self.primal = u, primal
        self.dual = max(self.dual, dual)
        return self.primal - self.dual <= self.target


def solve(problem: LabelProblem, precision: float = 1e-8) -> Bounds:
    """Return bounds that differ by at most `precision` times the null objective, if possible."""
    bounds = Bounds(precision * problem.null_objective())
    if not (problem.squared and descend_primal(problem, bounds)):
        ascend_dual(problem, bounds)
    return bounds


def descend_primal(problem: LabelProblem, bounds: Bounds) -> bool:
    """Minimise the squared hinge by Newton steps within an orthant; return whether it ended."""
    u = np.zeros(problem.X.shape[1] + 1)
    z = problem.margins(u)
    value = problem.primal(u, z)
    for _ in range(MAX_PRIMAL_STEPS):
        alpha = 2.0 * problem.C * np.maximum(z, 0.0)
        if bounds.add(u, value, problem.point_of(alpha)[1]):
            return True
        bounds.steps += 1
        slope = _subgradient(problem, u, alpha)
        step = _primal_step(problem, np.flatnonzero(z > 0.0), u, slope)
        signs, length = np.where(u != 0.0, np.sign(u), -np.sign(slope)), 1.0
        while length > LEAST_LENGTH:
            moved = u + length * step
            moved[:-1][moved[:-1] * signs[:-1] < 0.0] = 0.0
            z = problem.margins(moved)
            new = problem.primal(moved, z)
            if new <= value + 1e-4 * float(slope @ (moved - u)):
                break
            length *= 0.5
        else:
            return False
        u, value = moved, new
    return False


def _subgradient(problem: LabelProblem, u: Any, alpha: Any) -> Any:
    """Return the shortest subgradient of P at u. alpha: (N,) slopes of the losses."""
    signed = alpha * problem.y
    w, g = u[:-1], problem.tau * u[:-1] - problem.X.T @ signed
    at_zero = np.sign(g) * np.maximum(np.abs(g) - problem.lam, 0.0)
    slope = np.where(w != 0.0, g + problem.lam * np.sign(w), at_zero)
    return np.append(slope, problem.tau_b * u[-1] - signed.sum())


def _primal_step(problem: LabelProblem, rows: Any, u: Any, slope: Any) -> Any:
    """Return the Newton step of the coordinates that can move. rows: samples with z > 0."""
    X, curvature = problem.X[rows], 2.0 * problem.C
    free = (u != 0.0) | (slope != 0.0)
    squares = np.bincount(X.indices, X.data**2, X.shape[1])
    diagonal = np.append(problem.tau + curvature * squares, problem.tau_b + curvature * len(rows))

    def product(d: Any) -> Any:
        scores = curvature * (X @ d[:-1] + d[-1])
        out = np.append(problem.tau * d[:-1] + X.T @ scores, problem.tau_b * d[-1] + scores.sum())
        return np.where(free, out, 0.0)

    return _conjugate_gradients(product, np.where(free, -slope, 0.0), diagonal)


def ascend_dual(problem: LabelProblem, bounds: Bounds) -> bool:
    """Maximise D by Newton steps of the variables that can move; return whether it ended."""
    lengths = np.asarray(problem.X.multiply(problem.X).sum(axis=1)).ravel()
    alpha = np.where(problem.y > 0, min(1.0, problem.upper), 0.0)
    u, value = problem.point_of(alpha)
    for _ in range(MAX_DUAL_STEPS):
        z = problem.margins(u)
        if bounds.add(u, problem.primal(u, z), value):
            return True
        bounds.steps += 1
        slope = z - problem.inv * alpha
        can_rise, can_fall = (slope > 0.0) & (alpha < problem.upper), (slope < 0.0) & (alpha > 0.0)
        rows = np.flatnonzero(can_rise | can_fall | ((alpha > 0.0) & (alpha < problem.upper)))
        step, length = _dual_step(problem, rows, u, slope[rows], lengths[rows]), 1.0
        while length > LEAST_LENGTH:
            moved = alpha.copy()
            moved[rows] = np.clip(alpha[rows] + length * step, 0.0, problem.upper)
            u_moved, new = problem.point_of(moved)
            if new >= value + 1e-4 * float(slope @ (moved - alpha)):
                break
            length *= 0.5
        else:
            return False
        alpha, u, value = moved, u_moved, new
    return False


def _dual_step(problem: LabelProblem, rows: Any, u: Any, slope: Any, lengths: Any) -> Any:
    """Return the Newton step of the dual variables of `rows`. lengths: of their rows, squared."""
    X, y, zero = problem.X[rows], problem.y[rows], u[:-1] == 0.0
    own = problem.inv if problem.squared else DAMPING

    def product(d: Any) -> Any:
        signed = d * y
        v = X.T @ signed
        v[zero] = 0.0
        return y * (X @ v / problem.tau + signed.sum() / problem.tau_b) + own * d

    return _conjugate_gradients(product, slope, lengths / problem.tau + 1.0 / problem.tau_b + own)


def _conjugate_gradients(product: Callable[[Any], Any], target: Any, diagonal: Any) -> Any:
    """Solve `product`(x) = target, preconditioned by the diagonal, to a relative 1e-3."""
    x, residual = np.zeros_like(target), target.copy()
    direction = residual / diagonal
    energy = first = float(residual @ direction)
    for _ in range(MAX_PRODUCTS):
        if energy <= 1e-6 * first:
            break
        image = product(direction)
        length = energy / float(direction @ image)
        x, residual = x + length * direction, residual - length * image
        scaled = residual / diagonal
        energy, before = float(residual @ scaled), energy
        direction = scaled + energy / before * direction
    return x
