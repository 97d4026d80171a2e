"""Multinomial logistic regression by L-BFGS.

Rows are split, every worker receives all weights, the optimiser runs on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.data.feature_scales import feature_scales
from xcray.errors import Stopped, missing_extra
from xcray.schedule.calls import at_worker
from xcray.solvers.declarations import (
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    RoundCost,
    StoppingRule,
)
from xcray.solvers.multinomial import Shard, cut_share
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_operator import RowOperator, warm_up
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import (
    RECORDS,
    HeldOut,
    InitialWeights,
    LabelWeights,
    RoundCallback,
    RoundMetrics,
    SynchronousOutcome,
    SynchronousSolver,
    TrainingRows,
    WorkerCalls,
    continue_training,
    merge_held_out,
    sparse_blocks,
    top_k,
    weight_parts,
)

MAX_SCORES = 1 << 19  # scores in memory at once: 4 MB
# maximum number of evaluations of objective and gradient per iteration
EVALUATIONS_PER_ITERATION = 20
# measured on five small sets, where trainings took 15 to 260 rounds
COST = RoundCost(100, 2.1, 1e-8, 1e-7, 8e-3)
SCRATCH_ARRAYS = 8  # arrays of MAX_SCORES scores at a worker


class LBFGSWorker:
    """State of a worker: its rows and held-out rows; O(nnz(X)/P).

    Each call receives all weights, O(D'K).
    """

    def __init__(self, shard: Shard, held_out: Shard | None, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._rows = (shard, RowOperator(shard))
        self._held_out = None if held_out is None else (held_out, RowOperator(held_out))

    def gradient(self, W: Float64) -> tuple[Float64, float]:
        """Return this shard's part of the gradient of L1 and of L1, both without the norm.

        The gradient is (D', K) float64.
        """
        shard, rows = self._rows
        G, loss = np.zeros(W.shape), 0.0
        for lo, hi, S in self._score_chunks(rows, W):
            loss += scores_to_residuals(S, shard, lo, hi)
            rows.add_adjoint(S, lo, G)
        return G, loss

    def squares(self) -> tuple[Float64, None]:
        """Return this shard's part of the weighted mean square of each feature: (D',)."""
        shard, rows = self._rows
        return rows.adjoint_squared(shard.weights[:, None])[:, 0], None

    def watch(self, W: Float64) -> tuple[None, HeldOut | None]:
        """Evaluate the held-out rows of this worker under W; None if it has none."""
        if self._held_out is None or not len(self._held_out[0].rows):
            return None, None
        (shard, rows), loss, tops = self._held_out, 0.0, []
        for lo, hi, S in self._score_chunks(rows, W):
            tops.append(top_k(S, 0))
            loss += scores_to_residuals(S, shard, lo, hi)
        labels, scores = (np.concatenate(each) for each in zip(*tops, strict=True))
        return None, HeldOut(loss, labels, scores, shard.rows)

    def _score_chunks(self, rows: RowOperator, W: Float64) -> Iterator[tuple[int, int, Float64]]:
        """Yield row ranges lo, hi and their scores (hi-lo, K). Raises Stopped if requested."""
        n = max(1, MAX_SCORES // W.shape[1])
        for lo in range(0, rows.n_rows, n):
            if self._stopped():
                raise Stopped(
                    "stopped within an iteration; the weights of the previous iteration are kept"
                )
            hi = min(lo + n, rows.n_rows)
            yield lo, hi, rows.scores(W, lo, hi)


@dataclass(frozen=True)
class LBFGSSolver(Parameters, SynchronousSolver):
    """Multinomial logistic regression with l2 regularisation, by a quasi-Newton method.

            min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                                  + sum_i c_i log sum_k exp(w_k.x_i)

    The row weights c_i add up to 1, and so do the targets y_i of each row. `bias`: the value of a
    constant feature, the last one, regularised like the others (0: no such feature). Every
    iteration uses all rows: the driver sends W to all workers, each returns its rows' part of
    objective and gradient, and these are added in worker order, in double precision. The problem is
    smooth and strictly convex, so the gradient bounds the distance to the only optimum: |W - W*| <=
    |gradient| / lam.

    State at a worker: its N/P rows. Transferred: W to each worker and a gradient back, per
    iteration. Memory: O(nnz(X)/P + KD) per worker; (2 `memory` + 6) vectors of KD doubles on the
    driver. So the weights must fit each machine many times. DS-MLR is for problems where they do
    not.

        Example:
            >>> LBFGSSolver(lam=1e-4).family
            'synchronous'

    Source: Raman, Srinivasan, Matsushima, Zhang, Yun, Vishwanathan, "DS-MLR", eq. 2 and Table 2.
    Byrd, Lu, Nocedal, Zhu, "A limited memory algorithm for bound constrained optimization", 1995,
    in SciPy's implementation, without bounds. Differs from the paper's baseline: SciPy's optimiser
    instead of PETSc's.
    """

    # incremented with every change of the bits of a model
    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "softmax"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase({"max_iterations": 3}, "single"),
    )

    lam: float = parameter(
        1e-4, "weight of the squared l2 norm, relative to the mean loss", above=0.0
    )
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: no such feature", low=0.0
    )
    tolerance: float = parameter(
        1e-4,
        "stop when the norm of the gradient, with large features scaled, is at most this share "
        "of that at W = 0",
        above=0.0,
        high=1.0,
    )
    max_iterations: int = parameter(1000, "maximum number of iterations", low=1)
    memory: int = parameter(10, "number of steps and gradients that are kept", low=1, high=100)
    eval_every: int = parameter(
        1, "iterations between two evaluations of held-out rows; 0: never", low=0
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        names = ("tolerance", "max_iterations")
        reached = "the gradient is small"
        return StoppingRule("tolerance", self.tolerance, self.max_iterations, reached, names)

    def n_weights(self, n_inputs: int) -> int:
        """Return D', with the constant feature."""
        return n_inputs + bool(self.bias)

    def resources(self, shape: ProblemShape, workers: int) -> ResourceNeeds:
        """Return the needs: every worker holds its rows and W, the driver the L-BFGS history."""
        W = 8 * shape.features * shape.labels
        scratch = SCRATCH_ARRAYS * min(8 * MAX_SCORES, 8 * shape.rows * shape.labels)
        worker = int(2.5 * shape.n_bytes) // workers + 2 * W + scratch
        driver = (2 * self.memory + 6) * W
        weights = shape.expected_weights(self.prune)
        return ResourceNeeds(driver, worker, 2 * W, 2 * W, weights, COST.core_seconds(shape))

    def create_worker(
        self, data: TrainingRows, number: int, workers: int, stopped: Callable[[], bool]
    ) -> LBFGSWorker:
        """Return a worker with its share of the rows."""
        share = (number, workers)
        held_out = None
        if data.held_out is not None and data.held_out[1].nnz:
            held_out = cut_share(*data.held_out, share, self.bias)
        shard = cut_share(data.X, data.Y, data.weights, share, self.bias)
        return self.make_worker(shard, held_out, stopped)

    def make_worker(
        self,
        shard: Shard,
        held_out: Shard | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> LBFGSWorker:
        """Return the state of a worker.

        shard: its rows; held_out: its held-out rows, or None; `stopped` is called every few rows.
        """
        return LBFGSWorker(shard, held_out, stopped)

    def train(
        self,
        workers: WorkerCalls,
        n_features: int,
        n_labels: int,
        on_round: RoundCallback = continue_training,
        start: InitialWeights | None = None,
    ) -> SynchronousOutcome:
        """Iterate until the gradient is small, `on_round` returns True, or `max_iterations`.

        n_features: D', including the bias. start: initial weights, or None for 0; the L-BFGS
        history starts empty. `on_round` is called after each iteration and can fetch the weights.
        Raises Stopped, errors of workers, and Unavailable if scipy is missing.
        """
        try:
            from scipy.optimize import minimize
        except ModuleNotFoundError as error:
            raise missing_extra(error) from None
        objective = _DistributedObjective(self, workers, (n_features, n_labels), on_round)
        W = np.zeros((n_features, n_labels))
        if start is not None:
            objective.value(objective.scale(W))  # sets the norm that `tolerance` refers to
            W = start(0, n_labels)
        limits = {
            "maxiter": self.max_iterations,
            "maxfun": EVALUATIONS_PER_ITERATION * self.max_iterations,
            "ftol": 0.0,
            "gtol": 0.0,
        }
        result = minimize(
            objective.value,
            objective.scale(W),
            jac=True,
            method="L-BFGS-B",
            callback=objective.on_iteration,
            options={"maxcor": self.memory, **limits},
        )
        if objective.last.number == 0:
            objective.record_start(result.x)
        stuck = (
            "no step improves the objective in double precision"
            if result.nit < self.max_iterations
            else "after max_iterations"
        )
        return SynchronousOutcome(
            objective.last, objective.reason or stuck, partial(objective.parts, result.x)
        )

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def blocks(self, trained: SynchronousOutcome, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the weights as sparse rows, one range of labels at a time.

        positives: (K,) training rows of each label.
        """
        return sparse_blocks(trained, positives, bias=self.bias, prune=self.prune)


class _DistributedObjective:
    """Objective and gradient for the optimiser, summed over the workers."""

    def __init__(
        self,
        solver: LBFGSSolver,
        workers: WorkerCalls,
        shape: tuple[int, int],
        on_round: RoundCallback,
    ) -> None:
        self._solver = solver
        self._workers = workers
        self._shape = shape
        self._on_round = on_round
        squares = np.zeros(shape[0])
        for handle, _ in workers.call(LBFGSWorker.squares):
            squares += workers.fetch(handle)
        self._scales = feature_scales(squares)[:, None]
        self._first = self._size = 0.0  # norms of the scaled gradient: at W = 0, and the last one
        self.reason = ""
        # metrics of the last evaluated point
        self.last = RoundMetrics(0, math.inf, math.inf, 0, None)

    def scale(self, W: Float64) -> Float64:
        """Return the optimiser's variables (D'K,) of weights (D', K)."""
        return (W * self._scales).ravel()

    def value(self, u: Float64) -> tuple[float, Float64]:
        """Return L1 and its gradient in the optimiser's variables u (D'K,)."""
        W = u.reshape(self._shape) / self._scales
        objective, gradient = 0.5 * self._solver.lam * float(np.vdot(W, W)), self._solver.lam * W
        argument = at_worker(self._workers.put(W))
        for handle, loss in self._workers.call(LBFGSWorker.gradient, argument):
            gradient += self._workers.fetch(handle)
            objective += loss
        self.last = self.last._replace(
            objective=objective,
            gradient=math.sqrt(float(np.vdot(gradient, gradient))),
            products=self.last.products + 2,
        )
        scaled = (gradient / self._scales).ravel()
        self._size = math.sqrt(float(scaled @ scaled))
        self._first = self._first or self._size
        return objective, scaled

    def on_iteration(self, intermediate_result: Any) -> None:
        """Record an iteration that ended at the last evaluated point.

        Raises StopIteration if the training should end.
        """
        number, w = self.last.number + 1, intermediate_result.x
        self.last = self.last._replace(
            number=number,
            held_out=self._evaluate_held_out(w, number),
            ratio=self._size / self._first if self._first else 0.0,
        )
        if self._on_round(self.last, partial(self.parts, w)):
            self.reason = "stopped by the caller"
        elif self._size <= self._solver.tolerance * self._first:
            self.reason = self._solver.stopping.reached
        if self.reason:
            raise StopIteration

    def record_start(self, w: Float64) -> None:
        """Record the start as the only iteration: it is optimal, or no step improves it."""
        self.value(w)
        self.last = self.last._replace(number=1, held_out=self._evaluate_held_out(w, 1))
        self._on_round(self.last, partial(self.parts, w))
        if self.last.gradient == 0.0:
            self.reason = self._solver.stopping.reached

    def parts(self, u: Float64) -> Iterator[LabelWeights]:
        """Yield the weights w (D'K,) by ranges of labels."""
        return weight_parts(u.reshape(self._shape) / self._scales)

    def _evaluate_held_out(self, u: Float64, number: int) -> HeldOut | None:
        """Evaluate the held-out rows, if there are any and an evaluation is due."""
        if not self._solver.eval_every or number % self._solver.eval_every:
            return None
        W = at_worker(self._workers.put(u.reshape(self._shape) / self._scales))
        replies = self._workers.call(LBFGSWorker.watch, W)
        return merge_held_out([part for _, part in replies if part is not None])


def scores_to_residuals(S: Float64, shard: Shard, lo: int, hi: int) -> float:
    """Replace scores S of rows lo .. hi-1 by c_i (p_ik - y_ik), in place.

    Returns the part of these rows in the objective.
    """
    c, (indptr, indices, data, _) = shard.weights[lo:hi], shard.targets
    cells = slice(indptr[lo], indptr[hi])
    rows = np.repeat(np.arange(hi - lo), np.diff(indptr[lo : hi + 1]))
    cost = c[rows] * data[cells]
    loss = -float(cost @ S[rows, indices[cells]])
    largest = S.max(axis=1)
    S -= largest[:, None]
    np.exp(S, out=S)
    total = S.sum(axis=1)
    loss += float(c @ (largest + np.log(total)))
    S *= (c / total)[:, None]
    S[rows, indices[cells]] -= cost
    return loss
