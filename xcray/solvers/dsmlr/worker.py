"""DS-MLR at a worker: the passes of blocks over its shards, and the L-BFGS histories of blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64, frozen
from xcray.kernels.training import softmax as kernel
from xcray.solvers.dsmlr import quasi_newton
from xcray.solvers.dsmlr.parameters import DSMLRParameters
from xcray.solvers.dsmlr.shard_state import (
    GRADIENT_KINDS,
    MUTATING_KINDS,
    STOCHASTIC_KINDS,
    ShardState,
    Step,
    SweepMetrics,
)
from xcray.solvers.group_contract import Grid, WeightBlock
from xcray.solvers.label_weights import to_solved_labels
from xcray.solvers.row_shards import Shard
from xcray.solvers.solved_labels import SolvedLabels

# change of a score that the first steps can cause, about; sets the default rate
INITIAL_SCORE_CHANGE: Final = 10.0


class PassMetrics(NamedTuple):
    """Metrics of a block that has passed a shard.

    squared: |W|^2 of the block after "sum" and "observe"; sweep: metrics of the shard if this pass
    ended its sweep.
    """

    squared: float | None
    sweep: SweepMetrics | None


class DSMLRWorker:
    """The shards of a worker, see `xcray.solvers.shard_contract.BlockWorker`.

    Weights are not held here: a block arrives, passes the shards, and leaves. The history of a
    block in the L-BFGS phase is stored and saved like a block.
    """

    def __init__(
        self, params: DSMLRParameters, grid: Grid, n_features: int, stopped: Callable[[], bool]
    ) -> None:
        self._params = params
        self._grid = grid
        self._n_features = n_features
        self._stopped = stopped
        self._shards: dict[int, ShardState] = {}

    def add_shard(self, number: int, rows: Shard, held_out: Shard | None) -> None:
        """Hold a shard. held_out: held-out rows that it evaluates, or None."""
        self._shards[number] = ShardState(rows, number, self._grid.blocks, held_out)

    def drop_shard(self, number: int) -> None:
        """Free a shard."""
        del self._shards[number]

    def state(self, number: int) -> Mapping[str, np.ndarray]:
        """Return the arrays that a shard keeps between passes, at a sync point."""
        return self._shards[number].state()

    def restore(self, number: int, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point, from any other."""
        self._shards[number].restore(state)

    def create_block(self, lo: int, hi: int) -> tuple[WeightBlock, None]:
        """Create the block of labels lo .. hi-1 at W = 0."""
        return initial_block(lo, hi, self._n_features), None

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, PassMetrics, float]]]:
        """Let a block pass shards; create the block after them, if the step changes it.

        owned: the block was created in this rotation. Only then its arrays can be written in
        place. Blocks from an object store are read-only.
        """
        results, after = list[tuple[int, PassMetrics, float]](), block
        for shard in shards:
            began = time.monotonic()
            mine = (owned or after is not block) and after.W.flags.writeable
            state = self._shards[shard]
            after, metrics = run_step(
                self._params, state, after, step, owned=mine, stopped=self._stopped
            )
            results.append((shard, metrics, time.monotonic() - began))
        return after if step.kind in MUTATING_KINDS else None, results

    def start_history(self, block: WeightBlock) -> tuple[WeightBlock, None]:
        """Create the history of a block that has its first exact gradient, with C."""
        G, C = block.state
        memory = quasi_newton.start_history(block.lo, block.hi, block.W, G, C, self._params.lam)
        return quasi_newton.pack(memory), None

    def update_history(self, history: WeightBlock, block: WeightBlock) -> tuple[WeightBlock, None]:
        """Create the history after the step to the block's point, which has its gradient."""
        memory, params = quasi_newton.unpack(history), self._params
        memory = quasi_newton.update_history(
            memory, block.W, block.state[0], params.lam, params.history
        )
        return quasi_newton.pack(memory), None

    def history_products(self, history: WeightBlock) -> tuple[None, Float64]:
        """Return the inner products of a history, which the driver adds up over all blocks."""
        return None, quasi_newton.products(quasi_newton.unpack(history))

    def set_direction(self, history: WeightBlock, coefs: Float64) -> tuple[WeightBlock, None]:
        """Create the history with its direction."""
        memory = quasi_newton.with_direction(quasi_newton.unpack(history), coefs)
        return quasi_newton.pack(memory), None

    def move_block(self, history: WeightBlock, length: float) -> tuple[WeightBlock, None]:
        """Create the block at `length` times the direction."""
        W = quasi_newton.weights_at_step(quasi_newton.unpack(history), length)
        return WeightBlock(history.lo, history.hi, W, ()), None

    def export_labels(self, block: WeightBlock, positives: Int64) -> tuple[SolvedLabels, None]:
        """Create the solved labels of a block; positives: (hi-lo,) training rows of each label."""
        return export_block(self._params, block, positives), None


def initial_block(lo: int, hi: int, n_features: int) -> WeightBlock:
    """Return labels lo .. hi-1 at W = 0.

    Its state: (D',) sums of squared gradients. Then, over the shards passed so far: (D',)
    number of rows that have each feature, and (3,) number of rows, sum of |x|_1, sum of |x|^2.
    """
    zeros = [np.zeros(n, np.float32) for n in (n_features, n_features, 3)]
    return WeightBlock(lo, hi, np.zeros((n_features, hi - lo), np.float32), tuple(zeros))


def run_step(
    params: DSMLRParameters,
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
        if not owned:
            state = tuple(each.copy() for each in block.state)
            block = block._replace(W=block.W.copy(), state=state)
        if step.epoch == 1:
            for totals, own in zip(block.state[1:], local.feature_summary(), strict=True):
                totals += own
        random = np.random.default_rng((params.seed, 2, step.epoch, local.number, block.lo))
        rule = _step_rule(params, local, block, step)
        # L-BFGS makes up for what the batches lose
        local.run_steps(
            block,
            random,
            rule,
            summed=step.kind == "both",
            batched=params.exact_phase,
            stopped=stopped,
        )
    else:
        local.add_partial_sums(block, step.kind == "observe", stopped)
    squared = None if step.kind in MUTATING_KINDS else kernel.squared(block.W)
    return block, PassMetrics(squared, local.finish_pass(step.kind))


def export_block(params: DSMLRParameters, block: WeightBlock, positives: Int64) -> SolvedLabels:
    """Return the labels of a finished block as sparse rows, without small weights.

    positives: (hi-lo,) training rows of each label.
    """
    return to_solved_labels(
        block.lo, block.W, params.bias, params.prune, positives, keep=params.prune_keep
    )


def _step_rule(
    params: DSMLRParameters, local: ShardState, block: WeightBlock, step: Step
) -> kernel.StepRule:
    """Return the step sizes of a pass."""
    _, counts, sums = block.state
    rows, ones, squares = (max(float(each), 1e-30) for each in sums)
    adaptive = params.steps == "adaptive"
    rate = (
        INITIAL_SCORE_CHANGE / (ones / rows)
        if adaptive
        else rows / (squares / rows) / math.sqrt(step.epoch)
    )
    norm = frozen(np.float32(params.lam) / np.maximum(counts, np.float32(1.0)), np.float32)
    share = np.float32((block.hi - block.lo) / local.rows.T.n_cols)
    return kernel.StepRule(np.float32(params.rate * step.rate * rate), norm, share, adaptive)
