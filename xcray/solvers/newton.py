"""PPDSparse's problem for few features and long rows: Newton's method on the primal.

Dual coordinate descent is slow if C |x|^2 / tau is large. With at most MAX_FEATURES features the
Hessian is small, and a few Newton steps suffice. They are taken over an active set: at first the
positives and a share of the negatives, then all rows near the margin. If the objective over all
rows is larger at the minimum of an active set, the weights become the best ones on the way to it,
so the objective never rises. The certificate over all rows is the same as the kernel's. Its dual
point is alpha_i = 2 c_i z_i, which is optimal at the optimal w, times the best scale.

Source: Mangasarian, "A finite Newton method for classification", 2002. With l1, the model is
minimised by coordinate descent as in Yuan, Ho, Lin, "An improved GLMNET for l1-regularized logistic
regression", 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.training import newton as kernel
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective, null_objective
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem

MAX_FEATURES = 1024
PIECE = 1 << 20  # values that are converted to float64 at once
# Minimum of the mean of C |x|^2 / tau: MIN_CURVATURE and one more for each FEATURES_PER_UNIT, since
# Hessians take longer, but at least the number of rows per ROWS_PER_UNIT positives of the median
# label, since each round reads all rows. Chosen on CLEF, MNIST and kddcup99.
MIN_CURVATURE, FEATURES_PER_UNIT, ROWS_PER_UNIT = 8.0, 20.0, 20.0
MAX_CURVATURE = 1e14  # in float64 a Hessian of larger ones can be singular
CHUNK_MULTIPLICATIONS = 30_000_000  # between two checks of the stop flag
MAX_MODEL_TURNS = 200  # of the minimisation of the quadratic model
EASY_ROUNDS = 5  # labels that take more need precise models
FIRST_STRIDE = 8  # one row of this number is in the first active set
# the later ones are the violating rows and those next to the margin: their number, as multiple of
# that of the violating ones; the least number; and their maximum distance from a violation
ACTIVE_MULTIPLE, LEAST_ACTIVE, NEAR_MARGIN = 1.5, 256, 1.0
GAP_SHARE = 0.5  # of the requested gap; reached over an active set, it ends the work on it
FIRST_STEPS, MAX_STEPS = 3, 8  # on the first active set, and on a later one


class _Precision(NamedTuple):
    """Precision of a model: the share of its fall that is left out, and the type of its sums.

    The weights of a round are those in single precision, except if it is PRECISE.
    """

    tolerance: float
    dtype: Any


FAST, USUAL = _Precision(1e-4, np.float32), _Precision(1e-4, np.float64)
PRECISE = _Precision(1e-8, np.float64)


def is_suitable(problem: PPDSparseProblem, o: Objective) -> bool:
    """Return whether Newton's method is faster.

    It is for the squared hinge, few features, long rows, and labels that are not too small.
    """
    rows = max(len(problem.row_sq), 1)

    def curvature() -> float:
        return o.C * float(problem.row_sq.sum()) / rows / o.tau

    if not _suits(problem.X.n_cols, o, curvature):
        return False
    if curvature() * float(problem.factors.max(initial=1.0)) > MAX_CURVATURE:
        return False
    counts = np.diff(problem.YT.indptr)
    positives = float(np.median(counts[counts > 0])) if counts.any() else 1.0
    return curvature() >= rows / positives / ROWS_PER_UNIT


def suits_rows(X: CSR, o: Objective) -> bool:
    """Return whether Newton's method can be faster for rows X (N, D) that are not loaded yet."""
    return _suits(X.n_cols, o, lambda: o.C * _mean_sq_norm(X) / o.tau)


def _suits(n_features: int, o: Objective, curvature: Callable[[], float]) -> bool:
    """Return whether Newton's method suits the rows; the curvature of wide rows is not computed."""
    if o.loss != SQUARED_HINGE or n_features > MAX_FEATURES:
        return False
    least = MIN_CURVATURE + n_features / FEATURES_PER_UNIT
    return least <= curvature() <= MAX_CURVATURE


def _mean_sq_norm(X: CSR) -> float:
    """Return the mean |x|^2 of a row, in double precision."""
    pieces = (X.data[lo : lo + PIECE].astype(np.float64) for lo in range(0, len(X.data), PIECE))
    return sum(float(piece @ piece) for piece in pieces) / max(X.n_rows, 1)


def own_bytes(X: CSR) -> int:
    """Return the memory of a task: matrices of the features, numbers per row, and dense rows.

    The Hessian is padded and has a copy without padding, of which a factor is computed.
    """
    size, padded = X.n_cols + 1, kernel.padded_size(X.n_cols)
    matrices = 8 * (padded**2 + 2 * size**2) + kernel.BLOCK_BYTES * padded
    return matrices + 160 * X.n_rows + 4 * kernel.dense_size(X)


def positive_factor(problem: PPDSparseProblem, label: int) -> float:
    """Return the factor of the weights of a label's positives."""
    return float(problem.factors[label]) if len(problem.factors) else 1.0


def _taus(o: Objective, n: int) -> Float64:
    """Return the weight of the square of each weight and of the bias: (n,), the bias last."""
    return np.append(np.full(n - 1, o.tau), o.tau_bias)


def _first_precision(problem: PPDSparseProblem, o: Objective, label: int) -> _Precision:
    """Return the precision of the first models of a label.

    Sums in single precision are off by less than the squares of the weights count.
    """
    largest = max(problem.column_sq.max(initial=0.0), problem.total)
    curvature = 2.0 * o.C * max(positive_factor(problem, label), 1.0) * largest
    is_fast = curvature * np.finfo(np.float32).epsneg <= min(o.tau, o.tau_bias)
    return FAST if is_fast else USUAL


def _exported(w: Float64) -> Float64:
    """Return w in single precision, which models have."""
    return w.astype(np.float32).astype(np.float64)


def _sample_weights(problem: PPDSparseProblem) -> Float64:
    """Return the weight of each sample: (N,)."""
    return problem.weights.astype(np.float64) if len(problem.weights) else np.ones(problem.X.n_rows)


def weights_of(
    problem: PPDSparseProblem,
    rows: kernel.Rows,
    o: Objective,
    label: int,
    samples: Int32,
    duals: Float32,
) -> Float64:
    """Return the primal point of a dual one: (D + 1,), the bias last.

    It is soft(sum of alpha y x, lam) / tau.
    """
    signs = np.where(np.isin(samples, problem.YT.row(label)), 1.0, -1.0)
    v = np.zeros(problem.X.n_cols + 1)
    kernel.add_rows(rows, samples.astype(np.int64), signs * np.maximum(duals, 0.0), v)
    v[:-1] = np.sign(v[:-1]) * np.maximum(np.abs(v[:-1]) - o.lam, 0.0)
    return v / _taus(o, len(v))


def solve(
    problem: PPDSparseProblem,
    rows: kernel.Rows,
    o: Objective,
    label: int,
    eps: float,
    rounds: int,
    start: Float64 | None,
    check: Callable[[], None],
) -> tuple[Float64, Float64, dict[str, float]]:
    """Solve one label to a duality gap of `eps` times its null objective.

    rows: those of the problem, from `kernel.rows_of`; rounds: maximum number of active sets; start:
    (D + 1,) initial weights, or None; check: called every 200 ms or more often, can raise. Returns
    the weights (D,), the dual variables (N,), and the fields of the label's record, which include
    the bias.
    """
    return _NewtonClass(problem, rows, o, label, check).run(eps, rounds, start)


class _Samples:
    """Some samples of a label: their signs, costs, scores, and the losses at these.

    chosen: (n,) int64, their numbers. z: margin violations; pulls: y alpha of alpha = 2 c z; loss:
    the sum of losses; total: that of alpha. Work is split into parts of about
    CHUNK_MULTIPLICATIONS; check: called before each.
    """

    def __init__(
        self,
        rows: kernel.Rows,
        chosen: Int64,
        signs: Float64,
        costs: Float64,
        check: Callable[[], None],
    ) -> None:
        self.rows, self.chosen = rows, chosen
        self.signs, self.costs = signs, costs
        self.check = check
        self.row_entries = max(1.0, rows.X.nnz / max(rows.X.n_rows, 1))
        self.scores, self.z, self.pulls = np.empty((3, len(chosen)))
        self.loss, self.total = 0.0, 0.0

    def take(self, which: Int64) -> _Samples:
        """Return those of the samples at positions `which`."""
        taken = self.chosen[which], self.signs[which], self.costs[which]
        return _Samples(self.rows, *taken, self.check)

    def score(self, w: Float64) -> None:
        """Compute scores and losses at w."""
        self.set_scores(self.products(w))

    def set_scores(self, scores: Float64) -> None:
        """Set the scores, and compute the losses."""
        self.scores = scores
        self.loss, self.total = kernel.violations(
            self.signs, self.costs, scores, self.z, self.pulls
        )

    def objective(self, w: Float64, o: Objective, taus: Float64) -> float:
        """Return the objective over the samples at w, where their losses are."""
        return float(kernel.penalty(w, o.lam, taus)) + self.loss

    def move_on_line(
        self,
        w: Float64,
        direction: Float64,
        scores: Float64,
        changes: Float64,
        o: Objective,
        taus: Float64,
    ) -> Float64:
        """Return the minimum of the objective on the line from w, and set the scores there.

        scores: those at w; changes: products of the direction with the rows.
        """
        length = kernel.best_length(
            self.signs, self.costs, scores, changes, w, direction, o.lam, taus
        )
        self.set_scores(scores + length * changes)
        return w + length * direction

    def products(self, w: Float64) -> Float64:
        """Return the products of w with the rows: (n,)."""
        out = np.empty(len(self.chosen))
        for part in self.parts(self.row_entries):
            kernel.score_rows(self.rows, self.chosen[part], w, out[part])
        return out

    def pull(self) -> Float64:
        """Return the sum of alpha y x: (D + 1,)."""
        v = np.zeros(self.rows.X.n_cols + 1)
        for part in self.parts(self.row_entries):
            kernel.add_rows(self.rows, self.chosen[part], self.pulls[part], v)
        return v

    def add_outer(
        self, which: Int64, factors: Float64, block: Float32 | Float64, H: Float64
    ) -> None:
        """Add the sum of factors[k] x x' over the samples which[k] to H.

        block: memory, see `kernel.empty_block`.
        """
        chosen = self.chosen[which]
        for part in self.parts(self.row_entries**2, len(which), block.shape[1]):
            kernel.add_outer(self.rows, chosen[part], factors[part], block, H)

    def parts(self, row_cost: float, n: int | None = None, unit: int = 1) -> Iterator[slice]:
        """Yield parts of n (default: all) samples; call `check` before each.

        row_cost: multiplications per row. The size of a part is a multiple of `unit`.
        """
        size = unit * max(1, int(CHUNK_MULTIPLICATIONS // (row_cost * unit)))
        for lo in range(0, len(self.chosen) if n is None else n, size):
            self.check()
            yield slice(lo, lo + size)


class _Minimiser:
    """Newton's method over an active set of samples."""

    def __init__(
        self, o: Objective, taus: Float64, samples: _Samples, precision: _Precision
    ) -> None:
        self.o, self.taus, self.samples = o, taus, samples
        self.H = kernel.empty_hessian(len(taus) - 1)
        self.block = kernel.empty_block(len(taus) - 1, precision.dtype)
        self.M = np.empty((len(taus), len(taus)))
        self.curvatures = np.zeros(len(samples.chosen))  # of the rows in H
        self.tolerance = precision.tolerance
        self.sweeps = 0

    def run(self, w: Float64, gap: float, most: int) -> tuple[Float64, int]:
        """Take steps until the duality gap over the samples is at most `gap`, or `most` steps.

        Returns the weights and the number of steps.
        """
        samples = self.samples
        samples.score(w)
        for n in range(most):
            v = samples.pull()
            sums = samples.total, 2.0 * samples.loss
            dual = kernel.dual_value(v, *sums, 1.0, self.o.lam, self.taus)
            value = samples.objective(w, self.o, self.taus)
            if value - dual <= gap or np.array_equal(new := self.step(w, v), w):
                return w, n
            w = new
        return w, most

    def step(self, w: Float64, v: Float64) -> Float64:
        """Return the next weights and update the scores; w if no step lowers the objective.

        v: the sum of alpha y x. The step leads to the minimum of the objective on the line through
        that of the model.
        """
        samples, o = self.samples, self.o
        self.update_hessian()
        direction = np.empty_like(w)
        self.sweeps += kernel.minimise_model(
            self.M, self.taus * w - v, w, o.lam, MAX_MODEL_TURNS, self.tolerance, direction
        )
        changes = samples.products(direction)
        return samples.move_on_line(w, direction, samples.scores, changes, o, self.taus)

    def update_hessian(self) -> None:
        """Update the Hessian to the rows that violate now.

        By the rows that changed, or from zero if fewer rows violate.
        """
        which, change, rebuilt = kernel.changed_curvatures(
            self.samples.z, self.samples.costs, self.curvatures
        )
        if rebuilt:
            self.H[:] = 0.0
        self.samples.add_outer(which, change, self.block, self.H)
        kernel.symmetrise(self.H, self.M, self.taus)


class _NewtonClass:
    """State of the solution of one label."""

    def __init__(
        self,
        problem: PPDSparseProblem,
        rows: kernel.Rows,
        o: Objective,
        label: int,
        check: Callable[[], None],
    ) -> None:
        self.o = o
        n, positives = problem.X.n_rows, problem.YT.row(label)
        weights = _sample_weights(problem)
        factor = positive_factor(problem, label)
        signs, costs = np.full(n, -1.0), o.C * weights
        signs[positives] = 1.0
        costs[positives] *= factor
        positive = float(weights[positives].sum())
        self.null = float(null_objective(o, positive * factor, float(weights.sum()) - positive))
        self.samples = _Samples(rows, np.arange(n), signs, costs, check)
        self.taus = _taus(o, problem.X.n_cols + 1)
        self.precision = _first_precision(problem, o, label)
        self.label = label
        self.positives = len(positives)
        self.sweeps, self.visited = 0, 0
        self.dual = -np.inf

    def run(
        self, eps: float, rounds: int, start: Float64 | None
    ) -> tuple[Float64, Float64, dict[str, float]]:
        """Minimise over active sets until the certificate holds for weights in single precision."""
        samples, n = self.samples, 0
        w = np.zeros(len(self.taus)) if start is None else start
        if self.positives == 0:
            w[-1] = -1.0
            rounds = 0
        elif start is None and rounds > 0:
            n = 1
            w = _exported(self.minimise(w, self.first_samples(), eps, FIRST_STEPS))
        self.score(w)
        while True:
            value = samples.objective(w, self.o, self.taus)
            v = samples.pull()
            self.dual = (
                max(self.dual, self.best_dual(v)) if self.positives else min(self.null, value)
            )
            if value - self.dual > eps * self.null and n < rounds:
                n += 1
                is_final = self.precision is PRECISE
                new = self.minimise(w, self.next_samples(), eps, MAX_STEPS)
                new = self.move(w, new if is_final else _exported(new), value)
                is_stuck = np.array_equal(new, w)
                if is_stuck or n == EASY_ROUNDS:
                    self.precision = PRECISE
                if not (is_stuck and is_final):
                    w = new
                    continue
            if np.array_equal(w, exported := _exported(w)):
                return w[:-1], samples.signs * samples.pulls, self.record(w, value, n)
            w = exported
            self.score(w)

    def move(self, w: Float64, new: Float64, value: float) -> Float64:
        """Return `new` or, if the objective is larger there, the best point on the way from w.

        value: the objective at w. An active set contains all violating samples, so its objective
        has the same slope at w as the whole, which therefore falls at first.
        """
        samples, before = self.samples, self.samples.scores
        self.score(new)
        if samples.objective(new, self.o, self.taus) <= value:
            return new
        changes = samples.scores - before
        return samples.move_on_line(w, new - w, before, changes, self.o, self.taus)

    def next_samples(self) -> Int64:
        """Return the samples of the next active set."""
        samples = self.samples
        margins = samples.signs * samples.scores
        near = np.flatnonzero(margins < 1.0 + NEAR_MARGIN)
        margins = margins[near]
        size = int(max(ACTIVE_MULTIPLE * np.count_nonzero(margins < 1.0), LEAST_ACTIVE))
        return near[margins < np.partition(margins, size)[size]] if size < len(near) else near

    def score(self, w: Float64) -> None:
        """Score all samples."""
        self.samples.score(w)
        self.visited += len(self.samples.chosen)

    def first_samples(self) -> Int64:
        """Return the first active set: the positives, and one row of FIRST_STRIDE."""
        is_first = self.samples.signs > 0.0
        is_first[::FIRST_STRIDE] = True
        return np.flatnonzero(is_first)

    def minimise(self, w: Float64, active: Int64, eps: float, most: int) -> Float64:
        """Minimise over an active set, nearly as precisely as the certificate needs."""
        minimiser = _Minimiser(self.o, self.taus, self.samples.take(active), self.precision)
        w, steps = minimiser.run(w, GAP_SHARE * eps * self.null, most)
        self.sweeps += minimiser.sweeps
        self.visited += (2 * steps + 1) * len(active)
        return w

    def best_dual(self, v: Float64) -> float:
        """Return the dual at the best multiple of alpha; v: the sum of alpha y x."""
        samples = self.samples
        sums = samples.total, 2.0 * samples.loss
        return float(kernel.best_dual(v, *sums, self.o.lam, self.taus))

    def record(self, w: Float64, value: float, n: int) -> dict[str, float]:
        """Return the fields of the record of the label."""
        X = self.samples.rows.X
        violating = int(np.count_nonzero(self.samples.z))
        return {
            "label": self.label,
            "positives": self.positives,
            "rounds": n,
            "sweeps": self.sweeps,
            "n_active": violating,
            "support": violating,
            "violating": violating,
            "nnz": int(np.count_nonzero(w[:-1])),
            "work": self.visited * X.nnz // max(X.n_rows, 1),
            "bias": float(w[-1]),
            "primal": value,
            "dual": self.dual,
            "gap": max(0.0, value - self.dual),
            "null": self.null,
            "loss": self.samples.loss,
        }
