"""PPDSparse's problem for few features and long rows: Newton's method on the primal.

Dual coordinate descent is slow if C |x|^2 / tau is large. With at most MAX_FEATURES features the
Hessian is small, and a few Newton steps suffice. The certificate is the same. Its dual point is
alpha_i = 2 c_i z_i, which is optimal at the optimal w, times the best scale.

Source: Mangasarian, "A finite Newton method for classification", 2002. With l1, the model is
minimised by coordinate descent as in Yuan, Ho, Lin, "An improved GLMNET for l1-regularized logistic
regression", 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32
from xcray.kernels.training import newton as kernel
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective, null_objective
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem

MAX_FEATURES = 1024
PIECE = 1 << 20  # values that are converted to float64 at once
MIN_MEAN_CURVATURE = 10.0  # minimum of the mean of C |x|^2 / tau
CHUNK_MULTIPLICATIONS = 30_000_000  # between two checks of the stop flag
# limits of the minimisation of the quadratic model
MAX_MODEL_SWEEPS, MODEL_TOLERANCE = 1000, 1e-4


def is_suitable(problem: PPDSparseProblem, o: Objective) -> bool:
    """Return whether Newton's method is faster: squared hinge, few features, long rows."""
    rows = max(len(problem.row_sq), 1)
    return _suits(problem.X, o, lambda: float(problem.row_sq.sum()) / rows)


def suits_rows(X: CSR, o: Objective) -> bool:
    """Return `is_suitable` for rows X (N, D) that are not loaded yet."""
    return _suits(X, o, lambda: _mean_sq_norm(X))


def _suits(X: CSR, o: Objective, mean_sq_norm: Callable[[], float]) -> bool:
    """Return whether Newton's method is faster; the values of wide rows are not read."""
    return (
        o.loss == SQUARED_HINGE
        and X.n_cols <= MAX_FEATURES
        and o.C * mean_sq_norm() >= MIN_MEAN_CURVATURE * o.tau
    )


def _mean_sq_norm(X: CSR) -> float:
    """Return the mean |x|^2 of a row, in double precision."""
    pieces = (X.data[lo : lo + PIECE].astype(np.float64) for lo in range(0, len(X.data), PIECE))
    return sum(float(piece @ piece) for piece in pieces) / max(X.n_rows, 1)


def own_bytes(X: CSR) -> int:
    """Return the memory of a task: matrices of the features, numbers per row, and dense rows."""
    return 24 * (X.n_cols + 1) ** 2 + 80 * X.n_rows + 4 * kernel.dense_size(X)


def positive_factor(problem: PPDSparseProblem, label: int) -> float:
    """Return the factor of the weights of a label's positives."""
    return float(problem.factors[label]) if len(problem.factors) else 1.0


def _taus(o: Objective, n: int) -> Float64:
    """Return the weight of the square of each weight and of the bias: (n,), the bias last."""
    return np.append(np.full(n - 1, o.tau), o.tau_bias)


def _sample_weights(problem: PPDSparseProblem) -> Float64:
    """Return the weight of each sample: (N,)."""
    return problem.weights.astype(np.float64) if len(problem.weights) else np.ones(problem.X.n_rows)


class NewtonData(NamedTuple):
    """What all classes read: the rows, and the weighted sum of x x' over all samples.

    gram: (D + 1, D + 1), upper triangle, the bias last; classes start from it.
    """

    rows: kernel.Rows
    gram: Float64


def prepare(problem: PPDSparseProblem) -> NewtonData:
    """Return the data of a problem for Newton's method."""
    rows, weights = kernel.rows_of(problem.X), _sample_weights(problem)
    H = np.zeros((problem.X.n_cols + 1,) * 2)
    kernel.add_outer(rows, np.arange(problem.X.n_rows), weights, H)
    return NewtonData(rows, H)


def weights_of(
    problem: PPDSparseProblem,
    data: NewtonData,
    o: Objective,
    label: int,
    samples: Int32,
    duals: Float32,
) -> Float64:
    """Return the primal point of a dual one: (D + 1,), the bias last.

    It is soft(sum of alpha y x, lam) / tau.
    """
    signs = np.where(np.isin(samples, problem.YT.row(label)), 1.0, -1.0)
    factors = np.zeros(problem.X.n_rows)
    factors[samples] = signs * np.maximum(duals, 0.0)
    v = np.zeros(problem.X.n_cols + 1)
    kernel.add_rows(data.rows, factors, 0, problem.X.n_rows, v)
    v[:-1] = np.sign(v[:-1]) * np.maximum(np.abs(v[:-1]) - o.lam, 0.0)
    return v / _taus(o, len(v))


def solve(
    problem: PPDSparseProblem,
    data: NewtonData,
    o: Objective,
    label: int,
    eps: float,
    rounds: int,
    start: Float64 | None,
    check: Callable[[], None],
) -> tuple[Float64, Float64, dict[str, float]]:
    """Solve one class to a duality gap of `eps` times its null objective.

    rounds: maximum number of steps; start: (D + 1,) initial weights, or None; check: called every
    200 ms or more often, can raise. Returns the weights (D,), the dual variables (N,),
    and the fields of the class's record, which include the bias.
    """
    return _NewtonClass(problem, data, o, label, check).run(
        eps, rounds, np.zeros(len(data.gram)) if start is None else start
    )


class _NewtonClass:
    """State of the solution of one class."""

    def __init__(
        self,
        problem: PPDSparseProblem,
        data: NewtonData,
        o: Objective,
        label: int,
        check: Callable[[], None],
    ) -> None:
        self.rows = data.rows
        self.o = o
        self.check = check
        n, positives = problem.X.n_rows, problem.YT.row(label)
        weights = _sample_weights(problem)
        factor = positive_factor(problem, label)
        self.signs = np.full(n, -1.0)
        self.costs = o.C * weights
        self.signs[positives] = 1.0
        self.costs[positives] *= factor
        positive = float(weights[positives].sum())
        self.null = float(null_objective(o, positive * factor, float(weights.sum()) - positive))
        self.H = 2.0 * o.C * data.gram
        self.M = np.empty_like(data.gram)
        self.taus = _taus(o, len(data.gram))
        self.row_curvatures = 2.0 * o.C * weights
        self.scores = np.empty(n)
        self.z = np.empty(n)
        self.label = label
        self.positives = len(positives)
        self.sweeps = 0
        self.dual = -np.inf

    def run(
        self, eps: float, rounds: int, start: Float64
    ) -> tuple[Float64, Float64, dict[str, float]]:
        """Take Newton steps until the certificate holds for weights in single precision."""
        w, n = start, 0
        if self.positives == 0:
            w = np.append(np.zeros(len(w) - 1), -1.0)
            rounds = 0
        self.score_rows(w, self.scores)
        while True:
            kernel.violations(self.signs, self.scores, self.z)
            alpha = 2.0 * self.costs * self.z
            v, value = self.weighted_row_sum(alpha * self.signs), self.value(w)
            self.dual = (
                max(self.dual, self.best_dual(v, alpha))
                if self.positives
                else min(self.null, value)
            )
            done = value - self.dual <= eps * self.null or n >= rounds
            if not done and (new := self.step(w, v)) is not None:
                w, n = new, n + 1
                continue
            exported = w.astype(np.float32).astype(np.float64)
            if np.array_equal(w, exported):
                return w[:-1], alpha, self.record(w, value, n)
            w = exported
            self.score_rows(w, self.scores)

    def step(self, w: Float64, v: Float64) -> Float64 | None:
        """Return the next weights and update the scores; None if no step lowers the objective.

        The step leads to the minimum of the objective on the line through that of the model.
        """
        o = self.o
        self.update_hessian()
        direction, changes = np.empty_like(w), np.empty_like(self.scores)
        self.sweeps += kernel.minimise_model(
            self.M, self.taus * w - v, w, o.lam, MAX_MODEL_SWEEPS, MODEL_TOLERANCE, direction
        )
        self.score_rows(direction, changes)
        length = kernel.best_length(
            self.signs, self.costs, self.scores, changes, w, direction, o.lam, self.taus
        )
        new = w + length * direction
        if np.array_equal(new, w):
            return None
        self.scores += length * changes
        return new

    def score_rows(self, w: Float64, scores: Float64) -> None:
        """Compute the scores of all rows."""
        for lo, hi in self.chunks(self.rows.X.n_rows, 1):
            kernel.score_rows(self.rows, w, lo, hi, scores)

    def weighted_row_sum(self, factors: Float64) -> Float64:
        """Return the sum of factors[i] x_i: (D + 1,)."""
        v = np.zeros(self.rows.X.n_cols + 1)
        for lo, hi in self.chunks(self.rows.X.n_rows, 1):
            kernel.add_rows(self.rows, factors, lo, hi, v)
        return v

    def update_hessian(self) -> None:
        """Update the Hessian to the rows that violate now.

        By the rows that changed, or from zero if fewer rows violate.
        """
        curvatures = np.where(self.z > 0.0, 2.0 * self.costs, 0.0)
        change = curvatures - self.row_curvatures
        if np.count_nonzero(curvatures) < np.count_nonzero(change):
            self.H[:] = 0.0
            change = curvatures
        rows = np.flatnonzero(change)
        for lo, hi in self.chunks(len(rows), 2):
            kernel.add_outer(self.rows, rows[lo:hi], change[rows[lo:hi]], self.H)
        self.row_curvatures = curvatures
        kernel.symmetrise(self.H, self.M, self.taus)

    def value(self, w: Float64) -> float:
        """Return the primal objective, at the last computed violations."""
        o = self.o
        return float(
            o.lam * np.abs(w[:-1]).sum()
            + 0.5 * (self.taus * w * w).sum()
            + (self.costs * self.z * self.z).sum()
        )

    def best_dual(self, v: Float64, alpha: Float64) -> float:
        """Return the dual at the best multiple of alpha."""
        first, second = float(alpha.sum()), float((alpha * alpha * 0.5 / self.costs).sum())
        return float(kernel.best_dual(v, first, second, self.o.lam, self.taus))

    def record(self, w: Float64, value: float, n: int) -> dict[str, float]:
        """Return the fields of the record of the class."""
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
            "work": (2 * n + 3) * self.rows.X.nnz,
            "bias": float(w[-1]),
            "primal": value,
            "dual": self.dual,
            "gap": max(0.0, value - self.dual),
            "null": self.null,
            "loss": float((self.costs * self.z * self.z).sum()),
        }

    def chunks(self, n_rows: int, power: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of `n_rows` of about CHUNK_MULTIPLICATIONS; call `check` in between.

        power: a row costs its number of entries to this power.
        """
        length = max(self.rows.X.nnz, 1) / max(self.rows.X.n_rows, 1)
        size = max(1, int(CHUNK_MULTIPLICATIONS // max(1.0, length**power)))
        for lo in range(0, n_rows, size):
            self.check()
            yield lo, min(n_rows, lo + size)
