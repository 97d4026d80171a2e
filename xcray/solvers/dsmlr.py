"""DS-MLR: multinomial logistic regression with split rows and split weights.

Blocks of labels rotate over shards of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from xcray.arrays import Int64, csr, frozen, pattern
from xcray.kernels.training import softmax as kernel
from xcray.schedule.rotation import ORDERS
from xcray.solvers.declarations import (
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.label_weights import RECORDS, to_solved_labels
from xcray.solvers.multinomial import Shard, make_shard
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.quasi_newton import MAX_FULL_FEATURES, LbfgsPhase
from xcray.solvers.rotation_contract import (
    GRADIENT_KINDS,
    MUTATING_KINDS,
    STOCHASTIC_KINDS,
    Decision,
    Grid,
    PassMetrics,
    RotationSolver,
    Step,
    SweepMetrics,
    SyncState,
    WeightBlock,
)
from xcray.solvers.shard_state import ShardState
from xcray.solvers.solved_labels import SolvedLabels

# change of a score that the first steps can cause, about; sets the default rate
INITIAL_SCORE_CHANGE: Final = 10.0
# an interval is rolled back if its objective exceeds that of the previous sync point by this factor
MAX_OBJECTIVE_RATIO: Final = 1.02
# a worker gets a second block only if blocks have this many labels: a SIMD register of them
MIN_BLOCK_LABELS: Final = 16
# weights of one block, if there are many labels: the size of one transfer
MAX_BLOCK_BYTES: Final = 1 << 26
# below this rate, stochastic steps are abandoned
MIN_RATE: Final = 0.02
# Armijo's rule: a step must gain this share of what the slope predicts
MIN_DECREASE_SHARE: Final = 1e-4
MIN_STEP_LENGTH: Final = 1e-3
# number of L-BFGS steps whose average gain is compared with `tolerance`
RECENT_STEPS: Final = 5
# Epochs of a training: 49 to 150 on five small sets.
TYPICAL_EPOCHS: Final = 65
EPOCH_SECONDS: Final = 4e-3  # per epoch for any data: calls to the workers and their replies
PRODUCT_SECONDS: Final = 4e-10  # core seconds per number of an inner product
# Products in a sweep of steps, by whether X is dense.
PRODUCTS_PER_SWEEP: Final = {False: 1.0, True: 3.0}
OBSERVE_COST: Final = 0.5  # cost of a sweep that only sums, in sweeps of steps
MAX_CHECKPOINTS: Final = 3  # checkpoints on disk while one is written
# Permanent bytes per row of a shard: b, partial sums, and the state of the last sync point.
BYTES_PER_ROW: Final = 64
SCORE_BYTES: Final = 8 << 20  # bytes of scores in use
STEP_RULES: Final = ("adaptive", "sqrt")

__all__ = [
    "DSMLRSolver",
    "Decision",
    "Grid",
    "PassMetrics",
    "ShardState",
    "Step",
    "SweepMetrics",
    "SyncState",
    "WeightBlock",
]


@dataclass(frozen=True)
class DSMLRSolver(Parameters, RotationSolver):
    """Multinomial logistic regression for data and weights that both exceed one worker.

            min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                                  + sum_i c_i log sum_k exp(w_k.x_i)

    For c_i, y_i and `bias` see `xcray.solvers.multinomial`. With b_i = -log sum_k exp(w_k.x_i) this
    is a sum over rows *and* labels (eq. 10-12)

            sum_i sum_k c_i (lam/2 |w_k|^2 - y_ik w_k.x_i + exp(w_k.x_i + b_i) - b_i / K - 1 / K)

    whose minimum over b is L1. So rows are split into shards and labels into blocks. A block passes
    a shard and updates, for each row (eq. 13 without its factor K)

            w_k <- w_k - eta (lam w_k - y_ik x_i + exp(w_k.x_i + b_i) x_i)

    The factor K in the paper belongs to sampling one label; here all labels of the block take the
    step. Partial sums of exp(w_k.x_i) make b exact again when all blocks have passed. passes = 1: a
    block pass adds the partial sums of the incoming weights and takes the steps at the same time,
    so an epoch is one sweep. passes = 2: a sweep of steps, then a sweep of sums (Algorithm 1 of the
    paper).

    Step sizes. "adaptive": eta_j = rate / sqrt(sum of the squared gradients of feature j over all
    labels), initialised so that a score can change by about 10. It needs one number per feature in
    addition to the block's weights. "sqrt": rate / (mean |x|^2 sqrt(epoch)), as in Theorem 1. If
    the objective rises, training returns to the previous sync point with half the rate.

    L-BFGS phase. Stochastic steps are fast at first and slow at the end, in particular on dense or
    badly scaled data. When an epoch lowers the objective by less than `lbfgs_switch_tol`, training
    switches to exact gradients: one sweep makes b exact, one sweep gathers the gradient of each
    block, and L-BFGS continues with vectors that are split like the weights (`quasi_newton`). Each
    block then stores 2 `history` + 3 arrays of its size at sync points, and 2 |W| travel. With
    history = 0 all epochs are stochastic.

    Norm. Its gradient is distributed over the rows that have a feature, lam N / n_j in each, and
    taken implicitly. The sum is the same, and a sparse row costs O(nnz k). Stale b. Between two
    exact updates w.x + b can exceed 0, so the exponent is bounded by 0.

    State at a worker: the rows of its shards, b and partial sums. Transferred: W and 2 numbers per
    feature. Memory: O(nnz/P + N/P + KD/P). No process holds all of W. With the orders "sync" and
    "ring" the bits of the model depend on grid, data and seed only.

        Example:
            >>> DSMLRSolver(lam=1e-4).grid(1000, 20, 50, 2)
            Grid(shards=4, blocks=2)

    Source: Raman, Srinivasan, Matsushima, Zhang, Yun, Vishwanathan, "DS-MLR: Exploiting double
    separability for scaling up distributed multinomial logistic regression", sections 4 and 5. Step
    sizes per feature: Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 2011, with one sum
    per feature. Differs from the paper: b is exact at the start, exponents are bounded, sums are
    pairs (largest score, sum).
    """

    # incremented with every change of the bits of a model
    revision: ClassVar[int] = 2
    link: ClassVar[Link] = "softmax"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase({"epochs": 30}, "single"),
        CompileCase(
            {"epochs": 4, "passes": 2, "steps": "sqrt", "order": "uniform", "prune_keep": 5},
            "single",
        ),
    )

    lam: float = parameter(
        1e-5, "weight of the squared l2 norm, relative to the mean loss", above=0.0
    )
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: no such feature", low=0.0
    )
    epochs: int = parameter(
        500, "maximum number of epochs; each row meets each label once per epoch", low=1
    )
    tolerance: float = parameter(
        1e-4, "stop when an epoch lowers the objective by at most this share", low=0.0, high=1.0
    )
    lbfgs_switch_tol: float = parameter(
        0.03,
        "switch to L-BFGS when a stochastic epoch lowers the objective by less than this share",
        low=0.0,
    )
    history: int = parameter(
        5,
        "number of steps that L-BFGS keeps; 0: never switch to L-BFGS",
        low=0,
        high=100,
    )
    early_stopping_rounds: int = parameter(
        0,
        "stop when the held-out loss has not fallen for this many sync points; 0: never",
        low=0,
    )
    passes: int = parameter(
        1,
        "sweeps per epoch; 1: partial sums and steps together; 2: steps, then sums",
        low=1,
        high=2,
    )
    order: str = parameter(
        "ring",
        "routing of blocks: sync and ring rotate with and without barriers; "
        "uniform: random worker; shortest: least busy worker",
        choices=ORDERS,
    )
    steps: str = parameter(
        "adaptive",
        "step sizes; adaptive: one per feature; sqrt: one for all, falling with the epochs",
        choices=STEP_RULES,
    )
    rate: float = parameter(1.0, "factor of the step sizes", above=0.0)
    sync_every: int = parameter(
        1, "epochs between two sync points, at which the objective is computed", low=1
    )
    shards: int = parameter(0, "shards of rows; 0: two per worker", low=0, high=1 << 20)
    blocks: int = parameter(
        0,
        "blocks of labels; 0: two per worker, or one if there are few labels, of at most 64 MB",
        low=0,
        high=1 << 20,
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)
    prune_keep: int = parameter(0, "number of largest weights to keep per label; 0: all", low=0)
    seed: int = parameter(0, "seed of all random numbers", low=0, high=2**31 - 1)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends; `decide` returns the reason of a run."""
        reached = f"an epoch lowers the objective by less than {self.tolerance:g} of it"
        rounds = self.early_stopping_rounds
        early = f"the held-out loss has not fallen for {rounds} sync points"
        names = ("tolerance", "epochs")
        return StoppingRule("tolerance", self.tolerance, self.epochs, reached, names, early)

    @property
    def exact_phase(self) -> LbfgsPhase | None:
        """Return the L-BFGS phase, if it is enabled."""
        return LbfgsPhase(self.lam, self.history) if self.history else None

    def objective(self, squared: Sequence[float], losses: Sequence[float]) -> float:
        """Return L1 = lam/2 sum |W_block|^2 + sum of losses."""
        return 0.5 * self.lam * math.fsum(squared) + math.fsum(losses)

    def start_objective(self, n_labels: int) -> float:
        """Return L1 at W = 0."""
        return math.log(n_labels)

    def resources(
        self, shape: ProblemShape, grid: Grid, workers: int, processes: bool
    ) -> ResourceNeeds:
        """Return the resource needs: rows and weights are split, no process holds all of W."""
        m, D = self.history, shape.features
        W = 4 * D * -(-shape.labels // grid.blocks)
        # With its sums or, in the L-BFGS phase, its history: 2 m + 3 arrays like W, and M.
        block = W + 8 * D
        if m:
            block = (2 * m + 4) * W + 4 * (D if D <= MAX_FULL_FEATURES else 1) * D
        # At a sync point the blocks of the previous one still exist: the solver can roll back.
        blocks = (block + 2 * W) * grid.blocks
        shards = -(-shape.n_bytes // workers) + BYTES_PER_ROW * -(-shape.rows // workers)
        # Blocks of other processes are mapped from the store. One is copied, one is created.
        worker = shards + SCORE_BYTES + 2 * block * processes
        checkpoints = MAX_CHECKPOINTS * (block * grid.blocks + 8 * shape.rows)
        epochs = min(TYPICAL_EPOCHS, self.epochs)
        kinds = self.sweep_kinds(self.sync_every, True)
        sweeps = sum(OBSERVE_COST if kind == "observe" else 1.0 for kind in kinds)
        sweeps *= epochs / self.sync_every
        sweep_seconds = PRODUCTS_PER_SWEEP[shape.dense] * shape.product_seconds
        # Most epochs have exact gradients, and blocks return the inner products of their history.
        products = (4 * m + 3) * PRODUCT_SECONDS * D * shape.labels * bool(m)
        return ResourceNeeds(
            driver=0 if processes else blocks,
            worker=worker,
            store=2 * blocks,
            checkpoints=checkpoints,
            weights=shape.expected_weights(self.prune, self.prune_keep),
            core_seconds=sweeps * sweep_seconds + epochs * (products + EPOCH_SECONDS),
            sweeps=sweeps,
            sweep_seconds=sweep_seconds,
        )

    def grid(self, n_rows: int, n_labels: int, n_features: int, workers: int) -> Grid:
        """Return the grid of a run; shards and blocks that are 0 are chosen here."""
        wide = -(-4 * n_labels * n_features // MAX_BLOCK_BYTES)
        shards = self.shards or 2 * workers
        blocks = self.blocks or max(workers, min(2 * workers, n_labels // MIN_BLOCK_LABELS), wide)
        return Grid(max(1, min(shards, n_rows)), max(1, min(blocks, n_labels)))

    def make_shard_state(
        self, shard: Shard, number: int, grid: Grid, held_out: Shard | None
    ) -> ShardState:
        """Return the state of shard `number` at its worker.

        held_out: held-out rows that the shard evaluates, or None.
        """
        return ShardState(shard, number, grid, held_out)

    def initial_block(self, lo: int, hi: int, n_features: int) -> WeightBlock:
        """Return labels lo .. hi-1 at W = 0.

        Its state: (D',) sums of squared gradients. Then, over the shards passed so far: (D',)
        number of rows that have each feature, and (3,) number of rows, sum of |x|_1, sum of |x|^2.
        """
        zeros = [np.zeros(n, np.float32) for n in (n_features, n_features, 3)]
        return WeightBlock(lo, hi, np.zeros((n_features, hi - lo), np.float32), tuple(zeros))

    def sweep_kinds(self, epochs: int, observe: bool) -> tuple[str, ...]:
        """Return the kinds of the sweeps of an interval of `epochs`.

        observe: end with an evaluation of held-out rows, with exact objective and b.
        """
        if self.passes == 1:
            return ("both",) * epochs + ("observe",) * observe
        kinds = ("update", "sum") * epochs
        return (*kinds[:-1], "observe") if observe else kinds

    def step(
        self,
        local: ShardState,
        block: WeightBlock,
        step: Step,
        *,
        owned: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[WeightBlock, PassMetrics]:
        """Run the pass of a block over a shard; return the block after it, and its metrics.

        owned: the arrays of the block can be written in place. For kinds in MUTATING_KINDS the
        returned block differs from `block`. Partial sums change in `local`. Raises Stopped soon
        after `stopped` returns True.
        """
        if step.kind in GRADIENT_KINDS:
            block = local.gather_gradient(block, step.kind == "curvature", owned, stopped)
        elif step.kind in STOCHASTIC_KINDS:
            block = (
                block
                if owned
                else block._replace(
                    W=block.W.copy(), state=tuple(each.copy() for each in block.state)
                )
            )
            if step.epoch == 1:
                for totals, own in zip(block.state[1:], local.feature_summary(), strict=True):
                    totals += own
            seed = (self.seed, 2, step.epoch, local.number, block.lo)
            local.run_steps(
                block,
                np.random.default_rng(seed),
                self._rule(local, block, step),
                step.kind == "both",
                stopped,
            )
        else:
            local.add_partial_sums(block, step.kind == "observe", stopped)
        squared = None if step.kind in MUTATING_KINDS else kernel.squared(block.W)
        return block, PassMetrics(squared, local.finish_pass(step.kind))

    def decide(self, history: Sequence[SyncState]) -> Decision:
        """Decide how to continue after the newest sync point of `history`."""
        newest = history[-1]
        accepted = [state for state in history[:-1] if not state.rolled_back]
        losses = [state.held_out for state in (*accepted, newest) if state.held_out is not None]
        if newest.length is not None:
            decision = self._decide_lbfgs(newest, accepted)
        else:
            decision = self._decide_stochastic(newest, accepted)
        if decision.stop is None and not decision.roll_back:
            if newest.epoch >= self.epochs:
                return decision._replace(
                    stop=f"all {self.epochs} epochs are done", lbfgs_action=None
                )
            rounds = self.early_stopping_rounds
            if rounds and len(losses) > rounds and min(losses[-rounds:]) >= min(losses[:-rounds]):
                return decision._replace(stop=self.stopping.early, lbfgs_action=None)
        return decision

    def _decide_stochastic(self, newest: SyncState, accepted: Sequence[SyncState]) -> Decision:
        """Decide in the stochastic phase.

        Roll back with half the rate if the objective rose. Switch to L-BFGS if it falls slowly.
        """
        before = accepted[-1] if accepted else None
        if not math.isfinite(newest.objective) or (
            before and newest.objective > MAX_OBJECTIVE_RATIO * before.objective
        ):
            again = newest.rate > MIN_RATE or before is None or not self.history
            return Decision(0.5 * newest.rate, None, True, None if again else "enter")
        if before is None:
            return Decision(newest.rate, None, False)
        gain = (
            (before.objective - newest.objective)
            / max(newest.epoch - before.epoch, 1)
            / max(newest.objective, 1e-300)
        )
        if self.history and gain <= self.lbfgs_switch_tol:
            return Decision(newest.rate, None, False, "enter")
        slow = self.stopping.reached if gain <= self.tolerance else None
        return Decision(newest.rate, slow, False)

    def _decide_lbfgs(self, newest: SyncState, accepted: Sequence[SyncState]) -> Decision:
        """Decide in the L-BFGS phase.

        Armijo's rule accepts or halves the step length. The training ends when recent steps gained
        little.
        """
        length, base = newest.length or 0.0, accepted[-1].objective
        # not <=: also true if the objective is not a number
        if not newest.objective <= base + MIN_DECREASE_SHARE * length * newest.slope:
            stuck = self._stuck_reason(newest, base) if length < MIN_STEP_LENGTH else None
            return Decision(newest.rate, stuck, True, "retry", 0.0 if stuck else 0.5 * length)
        recent = [state for state in accepted[-RECENT_STEPS:] if state.length is not None]
        gain = (
            (recent[0].objective - newest.objective) / RECENT_STEPS / max(newest.objective, 1e-300)
            if len(recent) == RECENT_STEPS
            else math.inf
        )
        slow = self.stopping.reached if gain <= self.tolerance else None
        return Decision(newest.rate, slow, False, None if slow else "accept")

    def _stuck_reason(self, newest: SyncState, objective: float) -> str:
        """Return why to stop if no step along a direction lowers the objective.

        A quadratic objective would fall by half the slope. If that is below the tolerance, only
        rounding errors of single precision are left.
        """
        if -0.5 * newest.slope <= self.tolerance * objective:
            return self.stopping.reached
        return f"no step of {newest.length:g} lowers the objective: the limit of single precision"

    def export(self, block: WeightBlock, positives: Int64) -> SolvedLabels:
        """Return the labels of a finished block as sparse rows, without small weights.

        positives: (hi-lo,) training rows of each label.
        """
        return to_solved_labels(
            block.lo, block.W, self.bias, self.prune, positives, keep=self.prune_keep
        )

    def warm_up(self) -> None:
        """Compile or load the kernels, on two rows, sparse and dense."""
        Y = pattern([0, 1, 2], [0, 1], 2)
        for X in (
            csr([0, 1, 2], [0, 1], [1.0, 1.0], 4),
            csr([0, 2, 4], [0, 1, 0, 1], [1.0, 2.0, 2.0, 1.0], 2),
        ):
            shard = make_shard(X, Y, np.arange(2), total=2.0)
            local, block = (
                self.make_shard_state(shard, 0, Grid(1, 1), shard),
                self.initial_block(0, 2, X.n_cols),
            )
            for kind in ("both", "sum", "update", "observe", "curvature"):
                block, _ = self.step(local, block, Step(kind, 1, 1.0), owned=False)
            # the diagonal of C, for many features
            kernel.add_diagonal(local.rows.X, local.rows.weights, np.zeros(X.n_cols, np.float32))

    def _rule(self, local: ShardState, block: WeightBlock, step: Step) -> kernel.StepRule:
        """Return the step sizes of a pass."""
        _, counts, sums = block.state
        rows, ones, squares = (max(float(each), 1e-30) for each in sums)
        adaptive = self.steps == "adaptive"
        rate = (
            INITIAL_SCORE_CHANGE / (ones / rows)
            if adaptive
            else rows / (squares / rows) / math.sqrt(step.epoch)
        )
        norm = frozen(np.float32(self.lam) / np.maximum(counts, np.float32(1.0)), np.float32)
        share = np.float32((block.hi - block.lo) / local.rows.T.n_cols)
        return kernel.StepRule(np.float32(self.rate * step.rate * rate), norm, share, adaptive)
