"""Least squares and generalized least squares: steps preconditioned by the second moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import ParameterError
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
from xcray.solvers.least_squares.acceleration import Momentum, accelerated_step
from xcray.solvers.least_squares.shard_sums import preconditioner, sum_over_shards
from xcray.solvers.least_squares.worker import LeastSquaresWorker
from xcray.solvers.multinomial import cut_share, make_shard, shard_rows, total_weight
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_operator import warm_up
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import (
    RECORDS,
    HeldOut,
    InitialWeights,
    RoundCallback,
    RoundMetrics,
    SynchronousOutcome,
    SynchronousSolver,
    TrainingRows,
    WorkerCalls,
    continue_training,
    merge_held_out,
    sparse_blocks,
    weight_parts,
)

MAX_FEATURES: Final = 16384  # the second moments of as many features take 2 GB
SHARD_SEED: Final = 0
DEFAULT_RIDGE: Final = 0.05  # divided by sqrt(rows); measured on random Fourier features of MNIST
SLOW_STEP: Final = 0.5  # an exact step leaves a smaller share of the gradient
# Lipschitz constant of the link: of the identity, and of the softmax
CURVATURE: Final[dict[Link, float]] = {"identity": 1.0, "softmax": 0.5}
COST: Final = RoundCost(40, 2.1, 1e-8, 1e-7, 2e-2)
GRAM_SECONDS: Final = 2.5e-11  # per row and pair of features
SCRATCH_ARRAYS: Final = 8


@dataclass(frozen=True)
class GeneralizedLeastSquaresSolver(Parameters, SynchronousSolver):
    """Multinomial logistic regression, by steps preconditioned with the second moments.

            min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                                  + sum_i c_i log sum_k exp(w_k.x_i)

    The problem is that of `lbfgs`. The softmax has Lipschitz constant 1/2, so 1/2 S + lam I with
    the second moments S = sum_i c_i x_i x_i' bounds the Hessian for each label. Each step solves
    with this matrix, whose Cholesky factor is computed once; Nesterov's acceleration restarts when
    a step points uphill. The number of steps does not depend on the scale of the features or their
    correlation, only on the link.

    The rows are split into `shards`, whatever the number of workers, and sums over shards are added
    in their order. So models are equal bit by bit for any number of workers. At most `shards`
    workers have work. Second moments are multiplied in float32, and again in float64 if the matrix
    is not positive definite. Gradients are exact in double precision, so rounding of the second
    moments affects the number of steps but not the optimum.

    State at a worker: its rows. Memory: O(nnz(X)/P + D'^2 + D'K) per worker and on the driver;
    D' is at most 16,384.

        Example:
            >>> GeneralizedLeastSquaresSolver(lam=1e-4).link
            'softmax'

    Source: Agarwal, Kakade, Karampatziakis, Song, Valiant, "Least squares revisited: scalable
    approaches for multi-class prediction", ICML 2014, algorithm 1. Differs: accelerated with
    restarts (O'Donoghue, Candes, "Adaptive restart for accelerated gradient schemes", 2015), and
    the ridge is part of the objective.
    """

    # incremented with every change of the bits of a model
    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "softmax"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({"max_rounds": 3}, "single"),)

    lam: float = parameter(
        0.0,
        "weight of the squared l2 norm, relative to the mean loss; 0: 0.05 / sqrt(rows)",
        low=0.0,
    )
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: no such feature", low=0.0
    )
    tolerance: float = parameter(
        1e-3,
        "stop when the norm of the gradient is at most this share of that at W = 0",
        above=0.0,
        high=1.0,
    )
    max_rounds: int = parameter(100, "maximum number of steps", low=1)
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    eval_every: int = parameter(
        1, "rounds between two evaluations of held-out rows; 0: never", low=0
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule("tolerance", self.tolerance, self.max_rounds, "the gradient is small")

    def n_weights(self, n_inputs: int) -> int:
        """Return D', with the constant feature."""
        return n_inputs + bool(self.bias)

    def resources(self, shape: ProblemShape, workers: int) -> ResourceNeeds:
        """Return the needs: second moments and their factor, W, and rows that are split."""
        gram, W = 8 * shape.features**2, 8 * shape.features * shape.labels
        scratch = SCRATCH_ARRAYS * min(4 << 20, 8 * shape.rows * shape.labels)
        worker = int(2.5 * shape.n_bytes) // workers + 2 * gram + 2 * W + scratch
        seconds = COST.core_seconds(shape) + GRAM_SECONDS * shape.rows * shape.features**2
        weights = shape.expected_weights(self.prune)
        store = (workers + 1) * max(gram, W)
        return ResourceNeeds(3 * gram + 6 * W, worker, store, 2 * W, weights, seconds)

    def create_worker(
        self, data: TrainingRows, number: int, workers: int, stopped: Callable[[], bool]
    ) -> LeastSquaresWorker:
        """Return a worker with every `workers`-th shard from `number` on."""
        held_out = None
        if data.held_out is not None and data.held_out[1].nnz:
            held_out = cut_share(*data.held_out, (number, workers), self.bias)
        options: Any = {
            "total": total_weight(data.Y, data.weights),
            "weights": data.weights,
            "bias": self.bias,
        }
        n = data.X.n_rows
        shards = [
            make_shard(data.X, data.Y, shard_rows(n, self.shards, SHARD_SEED, shard), **options)
            for shard in range(number, self.shards, workers)
        ]
        return LeastSquaresWorker(shards, held_out, self.link, stopped)

    def train(
        self,
        workers: WorkerCalls,
        n_features: int,
        n_labels: int,
        on_round: RoundCallback = continue_training,
        start: InitialWeights | None = None,
    ) -> SynchronousOutcome:
        """Take steps until the gradient is small, `on_round` returns True, or `max_rounds`.

        n_features: D', including the bias. start: initial weights, or None for 0, without
        momentum. Raises ParameterError for too many features, Stopped, errors of workers, and
        Unavailable if scipy is missing.
        """
        if n_features > MAX_FEATURES:
            raise ParameterError(
                f"second moments of {n_features} features do not fit: the maximum is "
                f"{MAX_FEATURES}; choose solver dsmlr or ppdsparse"
            )
        return _Descent(self, workers, on_round).run(np.zeros((n_features, n_labels)), start)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def blocks(self, trained: SynchronousOutcome, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the weights as sparse rows, one range of labels at a time.

        positives: (K,) training rows of each label.
        """
        return sparse_blocks(trained, positives, bias=self.bias, prune=self.prune)


@dataclass(frozen=True)
class LeastSquaresSolver(GeneralizedLeastSquaresSolver):
    """Least squares with l2 regularisation, by one step with the second moments.

            min over W   lam/2 |W|^2 + 1/2 sum_i c_i |W'x_i - y_i|^2

    y_ik is 1 for each label of a row, else 0. The first step solves the normal equations; if
    rounding left a gradient above `tolerance`, further steps refine the solution. Everything else
    is as in `generalized-least-squares`: shards, workers, precision, memory.

        Example:
            >>> LeastSquaresSolver(lam=1e-4).link
            'identity'

    Source: Agarwal et al., "Least squares revisited", ICML 2014, algorithm 1 with the identity
    link.
    """

    link: ClassVar[Link] = "identity"
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the same kernels

    max_rounds: int = parameter(20, "maximum number of steps, of which one is the rule", low=1)


class _Descent:
    """A training: its preconditioner, and its rounds."""

    def __init__(
        self,
        solver: GeneralizedLeastSquaresSolver,
        workers: WorkerCalls,
        on_round: RoundCallback,
    ) -> None:
        self._solver, self._workers, self._on_round = solver, workers, on_round
        rows = sum(count for _, count in workers.call(LeastSquaresWorker.count_rows))
        self._lam = solver.lam or DEFAULT_RIDGE / math.sqrt(max(rows, 1))
        self._double = False
        self._solve = self._factorize()

    def run(self, W: Float64, start: InitialWeights | None) -> SynchronousOutcome:
        """Take steps from `start`, or from W = 0."""
        G, _, first = self._gradient(W)
        norm, number, products, reason = first, 0, 2.0, ""
        if start is not None:
            W = start(0, W.shape[1])
            G, _, norm = self._gradient(W)
        momentum = Momentum(W)
        while not reason:
            before, (W, momentum) = norm, self._step(W, G, momentum)
            G, objective, norm = self._gradient(W)
            number, products = number + 1, products + 2.0
            last = RoundMetrics(number, objective, norm, products, self._held_out(W, number))
            parts = partial(weight_parts, W)
            if self._on_round(last, parts):
                reason = "stopped by the caller"
            elif norm <= self._solver.tolerance * first:
                reason = self._solver.stopping.reached
            elif number >= self._solver.max_rounds:
                reason = "after max_rounds"
            elif self._is_inexact(before, norm):
                self._double, momentum = True, Momentum(W)
                self._solve = self._factorize()
        return SynchronousOutcome(last, reason, parts)

    def _step(self, W: Float64, G: Float64, momentum: Momentum) -> tuple[Float64, Momentum]:
        """Return the point of the next gradient, and the momentum after a step from W."""
        if self._solver.link == "identity":  # the step is exact
            return W - self._solve(G), momentum
        return accelerated_step(W, G, momentum, self._solve)

    def _is_inexact(self, before: float, norm: float) -> bool:
        """Return whether a step of least squares shows that float32 moments are not enough."""
        identity = self._solver.link == "identity"
        return identity and not self._double and norm > SLOW_STEP * before

    def _factorize(self) -> Callable[[Float64], Float64]:
        """Return the preconditioner G -> H^-1 G, in float64 if float32 is not enough."""

        def gram(double: bool) -> Float64:
            moments = self._sum(LeastSquaresWorker.gram, double)[0]
            return CURVATURE[self._solver.link] * moments

        solve, self._double = preconditioner(gram, self._lam, double=self._double)
        return solve

    def _gradient(self, W: Float64) -> tuple[Float64, float, float]:
        """Return the gradient (D', K) at W, the objective, and the norm of the gradient."""
        G, loss = self._sum(LeastSquaresWorker.gradient, at_worker(self._workers.put(W)))
        G = G + self._lam * W
        objective = loss + 0.5 * self._lam * float(np.vdot(W, W))
        return G, objective, float(np.linalg.norm(G))

    def _sum(self, method: Callable[..., Any], argument: Any) -> tuple[Float64, float]:
        """Return the sums of arrays and values of a method over all shards."""
        return sum_over_shards(self._workers, self._solver.shards, method, argument)

    def _held_out(self, W: Float64, number: int) -> HeldOut | None:
        """Evaluate the held-out rows, if there are any and an evaluation is due."""
        if not self._solver.eval_every or number % self._solver.eval_every:
            return None
        replies = self._workers.call(LeastSquaresWorker.watch, at_worker(self._workers.put(W)))
        return merge_held_out([part for _, part in replies if part is not None])
