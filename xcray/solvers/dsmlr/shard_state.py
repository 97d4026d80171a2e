"""One cell of the DS-MLR grid: a block of labels at a shard of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.random import Generator

from xcray.arrays import Float32, Int64, frozen
from xcray.errors import Stopped
from xcray.kernels.training import softmax as kernel
from xcray.solvers.dsmlr.quasi_newton import MAX_FULL_FEATURES
from xcray.solvers.group_contract import WeightBlock
from xcray.solvers.held_out import HeldOut
from xcray.solvers.row_shards import Shard

# multiplications between two checks of the stop flag: 20 to 100 ms
SLICE_MULTIPLICATIONS: Final = 60_000_000
# scores in memory at once: 1 MB, half of an L2 cache
CHUNK_SCORES: Final = 1 << 18
BATCH_ROWS: Final = 32  # dense rows per step
MAX_SUM: Final = 1e32  # limit of sums in float32, which are added over shards
TOP_K: Final = 5  # labels reported per held-out row
# kinds of sweeps that make b exact
SUMMING_KINDS: Final = ("sum", "both", "observe")
# kinds of sweeps that take stochastic steps
STOCHASTIC_KINDS: Final = ("update", "both")
# kinds of sweeps that gather exact gradients at blocks, and C
GRADIENT_KINDS: Final = ("gradient", "curvature")
# kinds of sweeps that change the blocks
MUTATING_KINDS: Final = (*STOCHASTIC_KINDS, *GRADIENT_KINDS)


class Step(NamedTuple):
    """What a block pass does.

    kind: that of its sweep: "update", "sum", "both", "observe", "gradient" or "curvature"; epoch:
    from 1; rate: from the last decision, initially 1.
    """

    kind: str
    epoch: int
    rate: float


class SweepMetrics(NamedTuple):
    """Metrics of a shard after all blocks have passed it.

    loss: its part of L1 without the norm, exact after "sum" and "observe". held_out: after
    "observe", its part of the evaluation of the held-out rows.
    """

    loss: float
    held_out: HeldOut | None = None


class HeldOutMonitor:
    """Held-out rows of a shard in an "observe" sweep: partial sums and best labels; O(n)."""

    def __init__(self, shard: Shard) -> None:
        n = len(shard.rows)
        self.shard = shard
        self.rows = _make_rows(shard)
        self.linear = 0.0
        self.labels = np.full((n, TOP_K), -1, np.int32)
        self.scores = np.full((n, TOP_K), -np.inf, np.float32)

    def add(self, block: WeightBlock, stopped: Callable[[], bool]) -> None:
        """Add a block that passes."""

        def keep_best(S: Float32, some: Int64) -> None:
            kernel.merge_best(S, some, block.lo, self.labels, self.scores)

        self.linear += _add_block(self.shard.dense, self.rows, block, stopped, keep_best)

    def evaluation(self) -> HeldOut:
        """Return the evaluation after a sweep, and reset."""
        loss, k = (
            kernel.update_log_partition(self.rows) - self.linear,
            min(TOP_K, self.rows.T.n_cols),
        )
        labels, scores = self.labels[:, :k].copy(), self.scores[:, :k].astype(np.float64)
        self.reset()
        return HeldOut(loss, labels, scores, self.shard.rows)

    def reset(self) -> None:
        """Discard the sums of all blocks."""
        self.linear = 0.0
        self.labels[:], self.scores[:] = -1, -np.inf
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY_TOP, 0.0


class ShardState:
    """State of shard `number`: its rows, b_i = -log of their partition function, partial sums.

    blocks: number of label blocks. held_out: held-out rows that it evaluates, or None.
    Memory O(nnz + n). b starts exact at W = 0, as -log K. (The paper starts with 1/K.)
    """

    def __init__(self, shard: Shard, number: int, blocks: int, held_out: Shard | None) -> None:
        self.number = number
        self._blocks = blocks
        self.shard = shard
        self.rows = _make_rows(shard)
        self.held_out = (
            None if held_out is None or not len(held_out.rows) else HeldOutMonitor(held_out)
        )
        self.blocks_passed = 0
        self.linear = 0.0
        self._summary: tuple[Float32, Float32] | None = None
        self._C: Float32 | None = None

    def run_steps(
        self,
        block: WeightBlock,
        random: Generator,
        rule: kernel.StepRule,
        *,
        summed: bool,
        batched: bool,
        stopped: Callable[[], bool],
    ) -> None:
        """Take stochastic steps on a block in place, over the rows in random order.

        summed: also add the partial sums of the rows as they are visited. batched: take one step
        for several dense rows, which is faster and less accurate than one for each.
        """
        for rows in _slices(self.rows, block, random.permutation(self.rows.X.n_rows)):
            _check_stopped(stopped)
            if self.shard.dense is None or not batched:
                kernel.steps(self.rows, rows, block.lo, block.W, block.state[0], rule, summed)
            else:
                self._dense_steps(self.shard.dense, rows, block, rule, summed)

    def add_partial_sums(
        self, block: WeightBlock, observe: bool, stopped: Callable[[], bool]
    ) -> None:
        """Add the partial sums of an unchanged block.

        observe: also add its scores of held-out rows.
        """
        self.linear += _add_block(self.shard.dense, self.rows, block, stopped)
        if observe and self.held_out is not None:
            self.held_out.add(block, stopped)

    def gather_gradient(
        self, block: WeightBlock, curvature: bool, owned: bool, stopped: Callable[[], bool]
    ) -> WeightBlock:
        """Add the shard's part of the gradient to the block's state; b must be exact.

        curvature: also add the shard's part of C.
        """
        D, k = block.W.shape
        # the first shard of the sweep
        if len(block.state) != 2 or block.state[0].shape != (D, k):
            size = ((D, D) if D <= MAX_FULL_FEATURES else (D,)) if curvature else (0,)
            block, owned = (
                block._replace(state=(np.zeros((D, k), np.float32), np.zeros(size, np.float32))),
                True,
            )
        G, C = (each if owned else each.copy() for each in block.state)
        for some in _chunks(self.rows, block, stopped):
            S = _scores(self.shard.dense, self.rows, block.W, some)
            kernel.residuals(S, some, self.rows, block.lo)
            if self.shard.dense is None:
                kernel.add_outer(self.rows.X, some, S, G)
            else:
                G += _row_range(self.shard.dense, some).T @ S
        if curvature:
            C += self._curvature(C.shape)
        return block._replace(state=(G, C))

    def finish_pass(self, verb: str) -> SweepMetrics | None:
        """Count a passed block; return the metrics of the shard if its sweep is over."""
        self.blocks_passed += 1
        if self.blocks_passed < self._blocks:
            return None
        self.blocks_passed, linear, self.linear = 0, self.linear, 0.0
        if verb not in SUMMING_KINDS:
            return None
        loss = kernel.update_log_partition(self.rows) - linear
        if verb != "observe" or self.held_out is None:
            return SweepMetrics(loss)
        return SweepMetrics(loss, self.held_out.evaluation())

    def _dense_steps(
        self, X: Float32, order: Int64, block: WeightBlock, rule: kernel.StepRule, summed: bool
    ) -> None:
        """Take steps for batches of dense rows, by matrix products."""
        for lo in range(0, len(order), BATCH_ROWS):
            some = order[lo : lo + BATCH_ROWS]
            batch = X[some]
            S = batch @ block.W
            if summed:
                kernel.add_sums(S, some, self.rows)
            kernel.residuals(S, some, self.rows, block.lo)
            kernel.batch_step(batch.T @ S, len(some), block.W, block.state[0], rule)

    def _curvature(self, shape: tuple[int, ...]) -> Float32:
        """Return the sum of c_i x_i x_i', (D', D'), or its diagonal (D',), computed once."""
        if self._C is None or self._C.shape != shape:
            self._C = np.zeros(shape, np.float32)
            add = kernel.add_squares if len(shape) == 2 else kernel.add_diagonal
            add(self.rows.X, self.rows.weights, self._C)
        return self._C

    def feature_summary(self) -> tuple[Float32, Float32]:
        """Return a summary of the rows of this shard.

        (D',) number of rows that have each feature; (3,) number of rows, sum of |x|_1, sum of
        |x|^2.
        """
        if self._summary is None:
            X = self.shard.X
            data = X.data[X.indptr[0] : X.indptr[-1]].astype(np.float64)
            counts = np.bincount(X.indices[X.indptr[0] : X.indptr[-1]], minlength=X.n_cols)
            sums = [X.n_rows, np.abs(data).sum(), (data**2).sum()]
            self._summary = (
                counts.astype(np.float32),
                np.minimum(sums, MAX_SUM).astype(np.float32),
            )
        return self._summary

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint, at a sync point."""
        return {"b": self.rows.b.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point."""
        self.rows.b[:] = state["b"]
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY_TOP, 0.0
        self.blocks_passed, self.linear = 0, 0.0
        if self.held_out is not None:
            self.held_out.reset()


def _make_rows(shard: Shard) -> kernel.ShardRows:
    """Return the rows of a shard as kernel input, at W = 0."""
    n, K = len(shard.rows), max(int(shard.targets.n_cols), 1)
    b, top = np.full(n, -math.log(K), np.float32), np.full(n, kernel.EMPTY_TOP, np.float32)
    return kernel.ShardRows(
        shard.X, shard.targets, frozen(shard.weights, np.float32), b, top, np.zeros(n)
    )


def _slices(rows: kernel.ShardRows, block: WeightBlock, order: Int64) -> Iterator[Int64]:
    """Yield parts of `order` that each take some tens of milliseconds."""
    row_cost = 4 * (block.hi - block.lo) * (rows.X.nnz / max(rows.X.n_rows, 1) + 8)
    n = max(1, int(SLICE_MULTIPLICATIONS / max(row_cost, 1.0)))
    for lo in range(0, len(order), n):
        yield order[lo : lo + n]


def _check_stopped(stopped: Callable[[], bool]) -> None:
    """Raise Stopped if a stop was requested."""
    if stopped():
        raise Stopped(
            "stopped between two slices of a block pass; "
            "the next run continues from the last checkpoint"
        )


def _row_range(dense: Float32, some: Int64) -> Float32:
    """Return a view of consecutive dense rows."""
    return dense[some[0] : some[-1] + 1]


def _scores(dense: Float32 | None, rows: kernel.ShardRows, W: Float32, some: Int64) -> Float32:
    """Return W' x of consecutive rows: (n, k) float32."""
    if dense is not None:
        return np.asarray(_row_range(dense, some) @ W, np.float32)
    S = np.empty((len(some), W.shape[1]), np.float32)
    kernel.scores(rows.X, some, W, S)
    return S


def _chunks(
    rows: kernel.ShardRows, block: WeightBlock, stopped: Callable[[], bool]
) -> Iterator[Int64]:
    """Yield all rows in order, a few at a time; check for a stop in between."""
    n = max(1, CHUNK_SCORES // (block.hi - block.lo))
    everything = np.arange(rows.X.n_rows)
    for lo in range(0, len(everything), n):
        _check_stopped(stopped)
        yield everything[lo : lo + n]


def _add_block(
    dense: Float32 | None,
    rows: kernel.ShardRows,
    block: WeightBlock,
    stopped: Callable[[], bool],
    on_scores: Callable[[Float32, Int64], None] = lambda S, some: None,
) -> float:
    """Add a block to the partial sums of rows.

    Returns the sum of weight times y.score of its labels. on_scores: called with the scores of some
    rows, (n, k), and their numbers.
    """
    linear = 0.0
    for some in _chunks(rows, block, stopped):
        S = _scores(dense, rows, block.W, some)
        kernel.add_sums(S, some, rows)
        linear += kernel.linear_term(S, some, rows, block.lo)
        on_scores(S, some)
    return linear
