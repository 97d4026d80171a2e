"""Least squares and generalized least squares: steps preconditioned by the second moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import ParameterError
from xcray.schedule.calls import at_worker
from xcray.solvers.declarations import (
    STORE_COPIES,
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    RoundCost,
    StoppingRule,
)
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    TrainingRows,
    WorkerCalls,
)
from xcray.solvers.held_out import HeldOut, merge_held_out
from xcray.solvers.label_weights import RECORDS, export_weights
from xcray.solvers.least_squares.quasi_newton import Pairs, descent_direction, no_pairs
from xcray.solvers.least_squares.shard_sums import preconditioner, sum_over_shards
from xcray.solvers.least_squares.worker import LeastSquaresWorker
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_operator import warm_up
from xcray.solvers.row_shards import cut_share, make_shard, shard_rows, total_weight
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import COPIES_ON_DISK, TrainingState

MAX_FEATURES: Final = 16384  # the second moments of as many features take 2 GB
SHARD_SEED: Final = 0
DEFAULT_RIDGE: Final = 0.05  # divided by sqrt(rows); measured on random Fourier features of MNIST
SLOW_STEP: Final = 0.5  # an exact step leaves a smaller share of the gradient
# Lipschitz constant of the link: of the identity, and of the softmax
CURVATURE: Final[dict[Link, float]] = {"identity": 1.0, "softmax": 0.5}
MIN_DECREASE_SHARE, MIN_LENGTH = 1e-4, 1e-6  # of a step of L-BFGS
COST: Final = RoundCost(60, 2.1, 1e-8, 1e-7, 2e-2)
GRAM_SECONDS: Final = 2.5e-11  # per row and pair of features
SCRATCH_ARRAYS: Final = 8


@dataclass(frozen=True)
class LeastSquaresSolver(Parameters, GroupSolver):
    """Least squares with l2 regularisation, by one step with the second moments.

            min over W   lam/2 |W|^2 + 1/2 sum_i c_i |W'x_i - y_i|^2

    y_ik is 1 for each label of a row, else 0. The first step solves the normal equations; if
    rounding left a gradient above `tolerance`, further steps refine the solution.

    The rows are split into `shards`, whatever the number of workers, and sums over shards are added
    in their order. So models are equal bit by bit for any number of workers. At most `shards`
    workers have work. Second moments are multiplied in float32, and again in float64 if the matrix
    is not positive definite. Gradients are exact in double precision, so rounding of the second
    moments affects the number of steps but not the optimum.

    State at a worker: its rows. Memory: O(nnz(X)/P + D'^2 + D'K) per worker and on the driver;
    D' is at most 16,384.

        Example:
            >>> LeastSquaresSolver(lam=1e-4).link
            'identity'

    Source: Agarwal, Kakade, Karampatziakis, Song, Valiant, "Least squares revisited: scalable
    approaches for multi-class prediction", ICML 2014, algorithm 1 with the identity link.
    """

    # incremented with every change of the bits of a model
    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({}, "single"),)

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
    max_rounds: int = parameter(20, "maximum number of steps, of which one is the rule", low=1)
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    eval_every: int = parameter(
        1, "rounds between two evaluations of held-out rows; 0: never", low=0
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)

    @property
    def pairs(self) -> int:
        """Return the number of steps that L-BFGS keeps: none, the step is exact."""
        return 0

    def excess(self, point: _Iterate, first: float, lam: float) -> float:
        """Return what `tolerance` bounds at a point. first: norm of the gradient at W = 0."""
        return point.norm / first if first else 0.0

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule("tolerance", self.tolerance, self.max_rounds, "the gradient is small")

    def n_weights(self, n_inputs: int) -> int:
        """Return D', with the constant feature."""
        return n_inputs + bool(self.bias)

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: second moments and their factor, W, and rows that are split."""
        gram, W = 8 * shape.features**2, 8 * shape.features * shape.labels
        scratch = SCRATCH_ARRAYS * min(4 << 20, 8 * shape.rows * shape.labels)
        worker = int(2.5 * shape.n_bytes) // layout.workers + 2 * gram + 2 * W + scratch
        seconds = COST.core_seconds(shape) + GRAM_SECONDS * shape.rows * shape.features**2
        weights = shape.expected_weights(self.prune)
        store = max((layout.workers + 1) * max(gram, W), STORE_COPIES * W)
        arrays = 1 + 2 * self.pairs
        saved = COPIES_ON_DISK * arrays * W
        return ResourceNeeds(3 * gram + (5 + arrays) * W, worker, store, saved, weights, seconds)

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> LeastSquaresWorker:
        """Return a worker with every P-th shard from `number` on, for P workers."""
        held_out = None
        if rows.held_out is not None and rows.held_out[1].nnz:
            held_out = cut_share(*rows.held_out, (number, layout.workers), self.bias)
        options: Any = {
            "total": total_weight(rows.Y, rows.weights),
            "weights": rows.weights,
            "bias": self.bias,
        }
        n = rows.X.n_rows
        shards = [
            make_shard(rows.X, rows.Y, shard_rows(n, self.shards, SHARD_SEED, shard), **options)
            for shard in range(number, self.shards, layout.workers)
        ]
        return LeastSquaresWorker(shards, held_out, self.link, stopped)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Take steps until the tolerance is met, or `max_rounds` are done.

        The state has the pairs of L-BFGS. Raises ParameterError for too many features, Stopped,
        errors of workers, and Unavailable if scipy is missing.
        """
        n_features = self.n_weights(rows.X.n_cols)
        if n_features > MAX_FEATURES:
            raise ParameterError(
                f"second moments of {n_features} features do not fit: the maximum is "
                f"{MAX_FEATURES}; choose solver dsmlr or ppdsparse"
            )
        return _Descent(self, calls).run((n_features, rows.Y.n_cols), state)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the weights as sparse rows, one range of labels at a time."""
        W, rounds = state.groups["weights"]()["W"], state.note["number"]
        return export_weights(W, positives, rounds, bias=self.bias, prune=self.prune)


@dataclass(frozen=True)
class GeneralizedLeastSquaresSolver(LeastSquaresSolver):
    """Multinomial logistic regression, by steps preconditioned with the second moments.

            min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                                  + sum_i c_i log sum_k exp(w_k.x_i)

    The problem is that of `lbfgs`. The softmax has Lipschitz constant 1/2, so H = 1/2 S + lam I
    with the second moments S = sum_i c_i x_i x_i' bounds the Hessian for each label. The first step
    is that of the paper, -H^-1 G with the gradient G; the others are L-BFGS steps that start from
    H, with `history` pairs. The number of steps does not depend on the scale of the features or
    their correlation. `history=0` takes steps -H^-1 G only, which need no objective.

    The training ends when the duality gap is at most `tolerance` of the objective. For the dual
    point that the probabilities define, the gap is |G|^2 / (2 lam); it bounds the distance of the
    objective to the optimum, which is mostly a hundred times smaller. CLEF, lam=1e-4: after 220
    steps the gap is below 1 %, and the objective 0.009 % above the optimum; after 200 steps without
    history 55 %.

    Everything else is as in `least-squares`: shards, workers, precision, memory, with 2 `history`
    arrays of weights on the driver.

        Example:
            >>> GeneralizedLeastSquaresSolver(lam=1e-4).link
            'softmax'

    Source: Agarwal, Kakade, Karampatziakis, Song, Valiant, "Least squares revisited: scalable
    approaches for multi-class prediction", ICML 2014, algorithm 1, which is `history=0`. Differs:
    L-BFGS, and the ridge is part of the objective.
    """

    revision: ClassVar[int] = 2
    link: ClassVar[Link] = "softmax"
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({"max_rounds": 3}, "single"),)

    tolerance: float = parameter(
        1e-2,
        "stop when the duality gap is at most this share of the objective",
        above=0.0,
    )
    max_rounds: int = parameter(500, "maximum number of steps", low=1)
    history: int = parameter(
        5, "steps that L-BFGS keeps; 0: steps of the paper's algorithm 1", low=0, high=100
    )

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        reached = "the duality gap is small"
        return StoppingRule("certificate", self.tolerance, self.max_rounds, reached)

    @property
    def pairs(self) -> int:
        """Return the number of steps that L-BFGS keeps."""
        return self.history

    def excess(self, point: _Iterate, first: float, lam: float) -> float:
        """Return the duality gap relative to the objective."""
        return point.norm**2 / (2.0 * lam) / point.objective if point.norm else 0.0


class _Iterate(NamedTuple):
    """Weights W (D', K), gradient G there, its norm, and the objective."""

    W: Float64
    G: Float64
    norm: float
    objective: float


class _Descent:
    """A training: its preconditioner, and its rounds."""

    def __init__(self, solver: LeastSquaresSolver, calls: WorkerCalls) -> None:
        self._solver, self._calls = solver, calls
        rows = sum(count for _, count in calls.call(LeastSquaresWorker.count_rows))
        self._lam = solver.lam or DEFAULT_RIDGE / math.sqrt(max(rows, 1))
        self._double = False

    def run(self, shape: tuple[int, int], state: TrainingState | None) -> Program:
        """Take steps from a state, or from W = 0."""
        number, before, W, pairs = 0, 0.0, np.zeros(shape), no_pairs(shape)
        if state is not None:
            names = ("number", "before", "double")
            number, before, self._double = (state.note[name] for name in names)
            arrays = state.groups["weights"]()
            W, pairs = arrays["W"], Pairs(arrays["steps"], arrays["changes"])
        self._solve = self._factorize()
        at = self._evaluate(W)
        first = state.note["first"] if state is not None else at.norm
        while not (reason := self._reason(number, at, first)):
            if number and self._is_inexact(before, at.norm):
                self._double = True
                self._solve = self._factorize()
            before, last = at.norm, at
            if (new := self._step(at, pairs)) is None:
                return "no step improves the objective in double precision"
            at, pairs = new, pairs.add(new.W - last.W, new.G - last.G, self._solver.pairs)
            number += 1
            note = {"number": number, "before": before, "double": self._double, "first": first}
            excess = self._solver.excess(at, first, self._lam)
            entry = {"objective": at.objective, "gradient": at.norm}
            if self._solver.stopping.kind == "certificate":
                entry["gap"] = excess
            yield Round(
                number, _state(note, at.W, pairs), entry, self._held_out(at.W, number), excess
            )
        return reason

    def _reason(self, number: int, at: _Iterate, first: float) -> str:
        """Return the reason to end after a round; empty to continue."""
        if number and self._solver.excess(at, first, self._lam) <= self._solver.tolerance:
            return self._solver.stopping.reached
        return f"after {number} rounds" if number >= self._solver.max_rounds else ""

    def _step(self, at: _Iterate, pairs: Pairs) -> _Iterate | None:
        """Return the next point; None if no step along the direction lowers the objective.

        The step -H^-1 G needs no search: it is exact, or H bounds the Hessian.
        """
        if not len(pairs.steps):
            return self._evaluate(at.W - self._solve(at.G))
        direction, length = descent_direction(at.G, pairs, self._solve), 1.0
        slope = float(np.vdot(at.G, direction))
        while length >= MIN_LENGTH:
            new = self._evaluate(at.W - length * direction)
            if new.objective <= at.objective - MIN_DECREASE_SHARE * length * slope:
                return new
            length *= 0.5
        return None

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

    def _evaluate(self, W: Float64) -> _Iterate:
        """Return the gradient (D', K) at W, its norm, and the objective."""
        G, loss = self._sum(LeastSquaresWorker.gradient, at_worker(self._calls.put(W)))
        G = G + self._lam * W
        objective = loss + 0.5 * self._lam * float(np.vdot(W, W))
        return _Iterate(W, G, float(np.linalg.norm(G)), objective)

    def _sum(self, method: Callable[..., Any], argument: Any) -> tuple[Float64, float]:
        """Return the sums of arrays and values of a method over all shards."""
        return sum_over_shards(self._calls, self._solver.shards, method, argument)

    def _held_out(self, W: Float64, number: int) -> HeldOut | None:
        """Evaluate the held-out rows, if there are any and an evaluation is due."""
        if not self._solver.eval_every or number % self._solver.eval_every:
            return None
        replies = self._calls.call(LeastSquaresWorker.watch, at_worker(self._calls.put(W)))
        return merge_held_out([part for _, part in replies if part is not None])


def _state(note: dict[str, Any], W: Float64, pairs: Pairs) -> TrainingState:
    """Return the state after a round."""
    arrays = {"W": W, **pairs._asdict()}
    return TrainingState(note, {"weights": lambda: arrays})
