"""DS-MLR: multinomial logistic regression with split rows and split weights.

Blocks of labels rotate over shards of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from xcray.arrays import Int64, csr, pattern
from xcray.kernels.training import softmax as kernel
from xcray.solvers.declarations import (
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
)
from xcray.solvers.dsmlr import program
from xcray.solvers.dsmlr.parameters import DSMLRParameters
from xcray.solvers.dsmlr.quasi_newton import MAX_FULL_FEATURES
from xcray.solvers.dsmlr.shard_state import ShardState, Step
from xcray.solvers.dsmlr.worker import DSMLRWorker, initial_block, run_step
from xcray.solvers.group_contract import Grid, Layout, Program, TrainingRows, WorkerCalls
from xcray.solvers.label_weights import RECORDS
from xcray.solvers.row_shards import Shard, make_shard
from xcray.solvers.shard_contract import ShardSolver, grid_of
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import COPIES_ON_DISK, TrainingState

# a worker gets a second block only if blocks have this many labels: a SIMD register of them
MIN_BLOCK_LABELS: Final = 16
# weights of one block, if there are many labels: the size of one transfer
MAX_BLOCK_BYTES: Final = 1 << 26
# Epochs of a training: 49 to 150 on five small sets.
TYPICAL_EPOCHS: Final = 65
EPOCH_SECONDS: Final = 4e-3  # per epoch for any data: calls to the workers and their replies
PRODUCT_SECONDS: Final = 4e-10  # core seconds per number of an inner product
# Products in a sweep of steps, by whether X is dense.
PRODUCTS_PER_SWEEP: Final = {False: 1.0, True: 3.0}
OBSERVE_COST: Final = 0.5  # cost of a sweep that only sums, in sweeps of steps
# Permanent bytes per row of a shard: b, partial sums, and the state of the last sync point.
BYTES_PER_ROW: Final = 64
SCORE_BYTES: Final = 8 << 20  # bytes of scores in use


@dataclass(frozen=True)
class DSMLRSolver(DSMLRParameters, ShardSolver):
    """Multinomial logistic regression for data and weights that both exceed one worker.

            min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                                  + sum_i c_i log sum_k exp(w_k.x_i)

    For c_i, y_i and `bias` see `xcray.solvers.row_shards`. With b_i = -log sum_k exp(w_k.x_i) this
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
    the objective rises, training returns to the previous sync point with half the rate. Dense rows
    take their steps in batches.

    L-BFGS phase. Stochastic steps are fast at first and slow at the end, in particular on dense or
    badly scaled data. When an epoch lowers the objective by less than `lbfgs_switch_tol`, training
    switches to exact gradients: one sweep makes b exact, one sweep gathers the gradient of each
    block, and L-BFGS continues with vectors that are split like the weights (`quasi_newton`). Each
    block then stores 2 `history` + 3 arrays of its size at sync points, and 2 |W| travel.

    Plain steps. With history = 0 or lbfgs_switch_tol = 0 all epochs are stochastic. Then every row
    takes its own step, each epoch begins at the next shard, and the rate is that which is best for
    a sample of 1,000 rows (`sample_rate`). The result is the best epoch, as in Theorem 1; a rise
    ends nothing. Training ends when five epochs without a rise lower the objective by less than
    `tolerance` each; if one of them rises, the rate is halved instead.

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

    def layout(self, workers: int, processes: bool, rows: TrainingRows) -> Layout:
        """Return the layout, with at most one worker per shard."""
        X = rows.X
        grid = self.grid(X.n_rows, rows.Y.n_cols, self.n_weights(X.n_cols), workers)
        return Layout(min(workers, grid.shards), processes=processes, grid=grid)

    def n_weights(self, n_inputs: int) -> int:
        """Return D', with the constant feature."""
        return n_inputs + bool(self.bias)

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the resource needs: rows and weights are split, no process holds all of W."""
        grid, workers, processes = grid_of(layout), layout.workers, layout.processes
        m, D = self.history, shape.features
        W = 4 * D * -(-shape.labels // grid.blocks)
        # With its sums or, in the L-BFGS phase, its history: 2 m + 3 arrays like W, and M.
        block = W + 8 * D
        # The blocks of the best epoch, if the last one is not the best.
        best = 0 if self.exact_phase else block
        if self.exact_phase:
            block = (2 * m + 4) * W + 4 * (D if D <= MAX_FULL_FEATURES else 1) * D
        # At a sync point the blocks of the previous one still exist: the solver can roll back.
        blocks = (block + best + 2 * W) * grid.blocks
        shards = -(-shape.n_bytes // workers) + BYTES_PER_ROW * -(-shape.rows // workers)
        # Blocks of other processes are mapped from the store. One is copied, one is created.
        worker = shards + SCORE_BYTES + 2 * block * processes
        checkpoints = COPIES_ON_DISK * ((block + best) * grid.blocks + 8 * shape.rows)
        epochs = min(TYPICAL_EPOCHS, self.epochs)
        kinds = self.sweep_kinds(self.sync_every)
        sweeps = sum(OBSERVE_COST if kind == "observe" else 1.0 for kind in kinds)
        sweeps *= epochs / self.sync_every
        sweep_seconds = PRODUCTS_PER_SWEEP[shape.dense] * shape.product_seconds
        # Most epochs have exact gradients, and blocks return the inner products of their history.
        products = (4 * m + 3) * PRODUCT_SECONDS * D * shape.labels * self.exact_phase
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
        """Return the grid of a run; shards and blocks that are 0 are chosen here.

        n_features: D', with the constant feature.
        """
        wide = -(-4 * n_labels * n_features // MAX_BLOCK_BYTES)
        shards = self.shards or 2 * workers
        blocks = self.blocks or max(workers, min(2 * workers, n_labels // MIN_BLOCK_LABELS), wide)
        return Grid(max(1, min(shards, n_rows)), max(1, min(blocks, n_labels)))

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> DSMLRWorker:
        """Return a worker without shards; see `ShardSolver`."""
        return DSMLRWorker(self, grid_of(layout), self.n_weights(rows.X.n_cols), stopped)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Train from a state; see `xcray.solvers.dsmlr.program`."""
        return program.train(self, calls, rows, state)

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the labels of each block."""
        return program.export(calls, state, positives)

    def time_sweep(self, shard: Shard, n_labels: int) -> float:
        """Return the core seconds that a block of n_labels labels takes to pass a shard."""
        step, seconds = Step("both" if self.passes == 1 else "update", 1, 1.0), 0.0
        block = initial_block(0, n_labels, shard.X.n_cols)
        # The first step touches all memory, which takes extra time once.
        for _ in range(2):
            local = ShardState(shard, 0, 1, None)
            began = time.thread_time()
            block, _ = run_step(self, local, block, step, owned=True)
            seconds = time.thread_time() - began
        return seconds

    def warm_up(self) -> None:
        """Compile or load the kernels, on two rows, sparse and dense."""
        Y = pattern([0, 1, 2], [0, 1], 2)
        for X in (
            csr([0, 1, 2], [0, 1], [1.0, 1.0], 4),
            csr([0, 2, 4], [0, 1, 0, 1], [1.0, 2.0, 2.0, 1.0], 2),
        ):
            shard = make_shard(X, Y, np.arange(2), total=2.0)
            local, block = ShardState(shard, 0, 1, shard), initial_block(0, 2, X.n_cols)
            for kind in ("both", "sum", "update", "observe", "curvature"):
                block, _ = run_step(self, local, block, Step(kind, 1, 1.0), owned=False)
            # the diagonal of C, for many features
            kernel.add_diagonal(local.rows.X, local.rows.weights, np.zeros(X.n_cols, np.float32))
