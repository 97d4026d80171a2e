"""Multinomial logistic regression by L-BFGS.

Rows are split, every worker receives all weights, the optimiser runs on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.data.feature_scales import feature_scales
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
from xcray.solvers.lbfgs.lbfgsb import EVALUATE, LBFGSB, NEW_POINT, LBFGSBState
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_losses import MAX_SCORES, RowLoss, scores_to_residuals
from xcray.solvers.row_operator import warm_up
from xcray.solvers.row_shards import Shard, cut_share
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import COPIES_ON_DISK, TrainingState

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
        self._shard, self._rows = shard, RowLoss(shard, scores_to_residuals, stopped)
        self._held_out = None
        if held_out is not None and len(held_out.rows):
            self._held_out = RowLoss(held_out, scores_to_residuals, stopped)

    def gradient(self, W: Float64) -> tuple[Float64, float]:
        """Return this shard's part of the gradient of L1 and of L1, both without the norm.

        The gradient is (D', K) float64.
        """
        return self._rows.gradient(W)

    def squares(self) -> tuple[Float64, None]:
        """Return this shard's part of the weighted mean square of each feature: (D',)."""
        weights = self._shard.weights[:, None]
        return self._rows.operator.adjoint_squared(weights)[:, 0], None

    def watch(self, W: Float64) -> tuple[None, HeldOut | None]:
        """Evaluate the held-out rows of this worker under W; None if it has none."""
        return None, None if self._held_out is None else self._held_out.evaluate(W)


@dataclass(frozen=True)
class LBFGSSolver(Parameters, GroupSolver):
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
    iteration. Memory: O(nnz(X)/P + KD) per worker; (2 `memory` + 8) vectors of KD doubles on the
    driver. So the weights must fit each machine many times. DS-MLR is for problems where they do
    not.

        Example:
            >>> LBFGSSolver(lam=1e-4).family
            'group'

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

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: every worker holds its rows and W, the driver the L-BFGS history."""
        W = 8 * shape.features * shape.labels
        scratch = SCRATCH_ARRAYS * min(8 * MAX_SCORES, 8 * shape.rows * shape.labels)
        worker = int(2.5 * shape.n_bytes) // layout.workers + 2 * W + scratch
        history = (2 * self.memory + 8) * W
        weights = shape.expected_weights(self.prune)
        saved = COPIES_ON_DISK * history
        return ResourceNeeds(
            history, worker, STORE_COPIES * W, saved, weights, COST.core_seconds(shape)
        )

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> LBFGSWorker:
        """Return a worker with its share of the rows."""
        share = (number, layout.workers)
        held_out = None
        if rows.held_out is not None and rows.held_out[1].nnz:
            held_out = cut_share(*rows.held_out, share, self.bias)
        shard = cut_share(rows.X, rows.Y, rows.weights, share, self.bias)
        return LBFGSWorker(shard, held_out, stopped)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Iterate until the gradient is small, no step improves the objective, or a limit.

        The state has the history of L-BFGS. Raises Stopped, errors of workers, and Unavailable if
        scipy is missing.
        """
        shape = (self.n_weights(rows.X.n_cols), rows.Y.n_cols)
        if state is None:
            at = LBFGSBState.start(np.zeros(shape[0] * shape[1]), self.memory)
            note: dict[str, Any] = {"number": 0, "evaluations": 0}
        else:
            at, note = LBFGSBState.of_arrays(state.groups["lbfgs"]()), dict(state.note)
        optimiser = LBFGSB(at, self.memory)
        objective = _DistributedObjective(self, calls, shape, note)
        while not (reason := self._reason(note)):
            if not objective.advance(optimiser):
                break
            yield objective.round_at(at)
        if not note["number"]:  # the start is optimal, or no step improves it
            objective.evaluate(at)
            yield objective.round_at(at)
            reason = self.stopping.reached if note["gradient"] == 0.0 else reason
        return reason or "no step improves the objective in double precision"

    def _reason(self, note: Mapping[str, Any]) -> str:
        """Return the reason to end after a round; empty to continue."""
        if not note["number"]:
            return ""
        if note["size"] <= self.tolerance * note["first"]:
            return self.stopping.reached
        most = EVALUATIONS_PER_ITERATION * self.max_iterations
        is_last = note["number"] >= self.max_iterations or note["evaluations"] > most
        return f"after {note['number']} rounds" if is_last else ""

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the weights as sparse rows, one range of labels at a time."""
        scales, x = state.groups["scales"]()["scales"], state.groups["lbfgs"]()["x"]
        W = x.reshape(len(scales), len(positives)) / scales
        rounds = state.note["number"]
        return export_weights(W, positives, rounds, bias=self.bias, prune=self.prune)


class _DistributedObjective:
    """Objective and gradient for the optimiser, summed over the workers.

    note: what the state has as JSON. number: of rounds; evaluations; first, size: norms of the
    scaled gradient, at W = 0 and at the last point; objective, gradient: L1 and the norm of its
    gradient there.
    """

    def __init__(
        self,
        solver: LBFGSSolver,
        calls: WorkerCalls,
        shape: tuple[int, int],
        note: dict[str, Any],
    ) -> None:
        self._solver, self._calls, self._shape, self._note = solver, calls, shape, note
        squares = np.zeros(shape[0])
        for handle, _ in calls.call(LBFGSWorker.squares):
            squares += calls.fetch(handle)
        self._scales = feature_scales(squares)[:, None]

    def advance(self, optimiser: LBFGSB) -> bool:
        """Take the optimiser to its next point; return False if there is none."""
        while (task := optimiser.advance()) == EVALUATE:
            self.evaluate(optimiser.state)
        return task == NEW_POINT

    def evaluate(self, at: LBFGSBState) -> None:
        """Set the objective and its gradient at the optimiser's variables."""
        W, note = self._weights(at.x), self._note
        objective, gradient = 0.5 * self._solver.lam * float(np.vdot(W, W)), self._solver.lam * W
        argument = at_worker(self._calls.put(W))
        for handle, loss in self._calls.call(LBFGSWorker.gradient, argument):
            gradient += self._calls.fetch(handle)
            objective += loss
        scaled = (gradient / self._scales).ravel()
        note["evaluations"] += 1
        note["objective"] = objective
        note["gradient"] = math.sqrt(float(np.vdot(gradient, gradient)))
        note["size"] = math.sqrt(float(scaled @ scaled))
        note.setdefault("first", note["size"])
        at.f[0], at.g[:] = objective, scaled

    def round_at(self, at: LBFGSBState) -> Round:
        """Return the round that ended at the last evaluated point."""
        note = self._note
        note["number"] += 1
        arrays, scales = at._asdict(), {"scales": self._scales}
        state = TrainingState(dict(note), {"scales": lambda: scales, "lbfgs": lambda: arrays})
        entry = {name: note[name] for name in ("objective", "gradient")}
        ratio = note["size"] / note["first"] if note["first"] else 0.0
        return Round(note["number"], state, entry, self._held_out(at.x), ratio)

    def _weights(self, x: Float64) -> Float64:
        """Return the weights (D', K) of the optimiser's variables (D'K,)."""
        W: Float64 = x.reshape(self._shape) / self._scales
        return W

    def _held_out(self, x: Float64) -> HeldOut | None:
        """Evaluate the held-out rows, if there are any and an evaluation is due."""
        every = self._solver.eval_every
        if not every or self._note["number"] % every:
            return None
        argument = at_worker(self._calls.put(self._weights(x)))
        replies = self._calls.call(LBFGSWorker.watch, argument)
        return merge_held_out([part for _, part in replies if part is not None])
