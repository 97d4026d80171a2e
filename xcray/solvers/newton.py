"""PPDSparse's problem where rows are long and features few: Newton's method on the primal, with the same certificate.

Dual coordinate descent is slow where C |x|^2 / tau is large; with at most FEW features the Hessian is small, and a few Newton
steps do. The dual point that certifies is alpha_i = 2 c_i z_i, which is optimal where w is, times the scale that is best.

Source: Mangasarian, "A finite Newton method for classification", 2002; with l1, the model is minimised by coordinate descent as
in Yuan, Ho, Lin, "An improved GLMNET for l1-regularized logistic regression", 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from xcray.arrays import Float32, Float64, Int32
from xcray.kernels.training import newton as kernel
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective, null_objective
from xcray.kernels.training.ppdsparse import Problem

FEW = 1024  # features at most
LONG = 10.0  # C |x|^2 / tau, on average, at least
CHUNK = 30_000_000  # multiplications between two looks at the stop flag
HALVES = 40  # of a step, at most
MODEL_SWEEPS, MODEL_ENOUGH = 1000, 1e-6  # how well the quadratic model is minimised
SCALES = 60  # steps of the golden section for the dual's scale


def suits(problem: Problem, o: Objective) -> bool:
    """Whether this problem is better solved here: squared hinge, few features, long rows."""
    rows = max(len(problem.row_sq), 1)
    return (
        o.loss == SQUARED_HINGE
        and problem.X.n_cols <= FEW
        and o.C * float(problem.row_sq.sum()) / rows >= LONG * o.tau
    )


def factor_of(problem: Problem, label: int) -> float:
    """What the weights of a label's positives are multiplied by."""
    return float(problem.factors[label]) if len(problem.factors) else 1.0


def _weights(problem: Problem) -> Float64:
    """The weight of each sample: (N,)."""
    return problem.weights.astype(np.float64) if len(problem.weights) else np.ones(problem.X.n_rows)


def gram(problem: Problem) -> Float64:
    """Sum of weighted x x' over all samples, the lower triangle: (D + 1, D + 1), the bias last. Classes begin from it."""
    H = np.zeros((problem.X.n_cols + 1,) * 2)
    kernel.add_outer(problem.X, _weights(problem), 0, problem.X.n_rows, H)
    return H


def weights_of(
    problem: Problem, o: Objective, label: int, samples: Int32, duals: Float32
) -> Float64:
    """The primal point of a dual one: soft(sum of alpha y x, lam) / tau, the bias last; (D + 1,)."""
    signs = np.where(np.isin(samples, problem.YT.row(label)), 1.0, -1.0)
    factors = np.zeros(problem.X.n_rows)
    factors[samples] = signs * np.maximum(duals, 0.0)
    v = np.zeros(problem.X.n_cols + 1)
    kernel.add_rows(problem.X, factors, 0, problem.X.n_rows, v)
    v[:-1] = np.sign(v[:-1]) * np.maximum(np.abs(v[:-1]) - o.lam, 0.0)
    return v / o.tau


def solve(
    problem: Problem,
    G: Float64,
    o: Objective,
    label: int,
    eps: float,
    rounds: int,
    start: Float64 | None,
    check: Callable[[], None],
) -> tuple[Float64, Float64, dict[str, float]]:
    """One class, to a duality gap of `eps` times its null objective, in at most `rounds` steps.

    G: `gram`; start: (D + 1,) weights to begin from, or None; check: called every 200 ms or oftener, may raise. Returns the
    weights (D,), the dual variables (N,), and what the class's record tells, the bias with it.
    """
    return _Class(problem, G, o, label, check).run(
        eps, rounds, np.zeros(len(G)) if start is None else start
    )


class _Class:
    """One class under way."""

    def __init__(
        self, problem: Problem, G: Float64, o: Objective, label: int, check: Callable[[], None]
    ) -> None:
        self.X = problem.X
        self.o = o
        self.check = check
        n, positives = problem.X.n_rows, problem.YT.row(label)
        weights = _weights(problem)
        factor = factor_of(problem, label)
        self.signs = np.full(n, -1.0)
        self.costs = o.C * weights
        self.signs[positives] = 1.0
        self.costs[positives] *= factor
        positive = float(weights[positives].sum())
        self.null = float(null_objective(o, positive * factor, float(weights.sum()) - positive))
        self.H = 2.0 * o.C * G
        self.M = np.empty_like(G)
        self.counted = 2.0 * o.C * weights  # what each row counts in H
        self.scores = np.empty(n)
        self.z = np.empty(n)
        self.label = label
        self.positives = len(positives)
        self.sweeps = 0
        self.dual = -np.inf

    def run(
        self, eps: float, rounds: int, start: Float64
    ) -> tuple[Float64, Float64, dict[str, float]]:
        """Newton steps until the certificate holds."""
        w, n = start.astype(np.float32).astype(np.float64), 0
        if self.positives == 0:
            w[:], w[-1], rounds = 0.0, -1.0, 0
        self.look(w)
        while True:
            alpha = 2.0 * self.costs * self.z
            v = self.gather(alpha * self.signs)
            self.dual = (
                max(self.dual, self.best_dual(v, alpha))
                if self.positives
                else min(self.null, self.value(w))
            )
            value = self.value(w)
            if (
                value - self.dual <= eps * self.null
                or n >= rounds
                or not (stepped := self.step(w, v, value))
            ):
                return w[:-1], alpha, self.record(w, value, n)
            w, n = stepped[0], n + 1

    def step(self, w: Float64, v: Float64, value: float) -> tuple[Float64] | None:
        """The next weights, a step of the model halved until the objective falls; None when it can't."""
        self.refresh()
        direction = np.empty_like(w)
        self.sweeps += kernel.descend(
            self.M, self.o.tau * w - v, w, self.o.lam, MODEL_SWEEPS, MODEL_ENOUGH, direction
        )
        for _ in range(HALVES):
            new = (w + direction).astype(np.float32).astype(np.float64)
            self.look(new)
            if self.value(new) < value:
                return (new,)
            direction *= 0.5
        self.look(w)
        return None

    def look(self, w: Float64) -> None:
        """Scores of all rows and their violations."""
        for lo, hi in self.chunks(1):
            kernel.scores_of(self.X, w, lo, hi, self.scores)
        kernel.violations(self.signs, self.scores, self.z)

    def gather(self, factors: Float64) -> Float64:
        """Sum of factors[i] x_i: (D + 1,)."""
        v = np.zeros(self.X.n_cols + 1)
        for lo, hi in self.chunks(1):
            kernel.add_rows(self.X, factors, lo, hi, v)
        return v

    def refresh(self) -> None:
        """The Hessian at the rows that violate now: those that came or went since the last time are added or taken off."""
        counts = np.where(self.z > 0.0, 2.0 * self.costs, 0.0)
        for lo, hi in self.chunks(2):
            kernel.add_outer(self.X, counts - self.counted, lo, hi, self.H)
        self.counted = counts
        kernel.mirror(self.H, self.M, self.o.tau)

    def value(self, w: Float64) -> float:
        """The primal, at the violations last looked at."""
        o = self.o
        return float(
            o.lam * np.abs(w[:-1]).sum()
            + 0.5 * o.tau * (w * w).sum()
            + (self.costs * self.z * self.z).sum()
        )

    def best_dual(self, v: Float64, alpha: Float64) -> float:
        """The dual at the best multiple of alpha: it is concave in the multiple; golden section."""
        first, second = float(alpha.sum()), float((alpha * alpha * 0.5 / self.costs).sum())
        low, high, ratio = 0.0, 2.0, 0.5 * (np.sqrt(5.0) - 1.0)

        def at(scale: float) -> float:
            return float(kernel.dual_value(v, first, second, scale, self.o.lam, self.o.tau))

        for _ in range(SCALES):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (a, high) if at(a) < at(b) else (low, b)
        return max(at(1.0), at(0.5 * (low + high)))

    def record(self, w: Float64, value: float, n: int) -> dict[str, float]:
        """What is told of the class at its end."""
        violating = int(np.count_nonzero(self.z))
        return {
            "label": self.label,
            "positives": self.positives,
            "rounds": n,
            "sweeps": self.sweeps,
            "n_active": violating,
            "support": violating,
            "violating": violating,
            "nnz": int(np.count_nonzero(w[:-1])),
            "work": (3 * n + 2) * self.X.nnz,
            "bias": float(w[-1]),
            "primal": value,
            "dual": self.dual,
            "gap": max(0.0, value - self.dual),
            "null": self.null,
            "loss": float((self.costs * self.z * self.z).sum()),
        }

    def chunks(self, power: int) -> Iterator[tuple[int, int]]:
        """Row ranges that cost about CHUNK multiplications, when a row costs its entries to that power; looks up between them."""
        n, nnz = self.X.n_rows, max(self.X.nnz, 1)
        rows = max(1, int(CHUNK // max(1.0, (nnz / max(n, 1)) ** power)))
        for lo in range(0, n, rows):
            self.check()
            yield lo, min(n, lo + rows)
