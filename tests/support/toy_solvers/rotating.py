"""Toy solver of family "rotation": least squares, with a gradient step of a block per shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import Stopped
from xcray.solvers.declarations import (
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.label_weights import RECORDS, to_solved_labels
from xcray.solvers.multinomial import Shard
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.rotation_contract import (
    Decision,
    Grid,
    PassMetrics,
    RotationSolver,
    Step,
    SweepMetrics,
    SyncState,
    WeightBlock,
)
from xcray.solvers.solved_labels import SolvedLabels


class RotatingState:
    """A row shard: its rows, and the loss and number of the blocks that have passed in a sweep."""

    def __init__(self, shard: Shard, number: int, blocks: int) -> None:
        self.number, self.blocks, self.passed, self.loss = number, blocks, 0, 0.0
        self.X, self.T = shard.X.to_scipy(), shard.targets.to_scipy().tocsc()
        self.c = shard.weights[:, None]
        largest = float(np.asarray(self.X.multiply(self.X).sum(axis=1)).max(initial=0.0))
        self.size = 1.0 / max(largest * float(self.c.sum()), 1e-30)

    def residuals(self, block: WeightBlock) -> Float64:
        """Return the scores of a block's labels minus their targets."""
        R: Float64 = self.X @ block.W - self.T[:, block.lo : block.hi].toarray()
        return R

    def state(self) -> dict[str, np.ndarray]:
        """Return what outlives a sweep."""
        return {"passed": np.array([self.passed])}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to a sync point."""
        self.passed, self.loss = int(state["passed"][0]), 0.0


@dataclass(frozen=True)
class RotatingSolver(Parameters, RotationSolver):
    """min over W  1/2 sum_i c_i |W'x_i - y_i|^2; labels do not depend on each other."""

    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RECORDS

    epochs: int = parameter(8, "maximum number of epochs", low=1)
    tolerance: float = parameter(1e-3, "stop at this relative decrease of an epoch", low=0.0)
    bias: float = parameter(0.0, "value of a constant feature", low=0.0)
    order: str = parameter("ring", "routing of blocks", choices=("sync", "ring"))
    sync_every: int = parameter(1, "epochs between two sync points", low=1)
    seed: int = parameter(0, "seed of the shards", low=0)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule(
            "tolerance",
            self.tolerance,
            self.epochs,
            "an epoch gained little",
            ("tolerance", "epochs"),
        )

    def grid(self, n_rows: int, n_labels: int, n_features: int, workers: int) -> Grid:
        """Return four shards and two blocks, for any workers."""
        return Grid(min(4, n_rows), min(2, n_labels))

    def make_shard_state(
        self, shard: Shard, number: int, grid: Grid, held_out: Shard | None
    ) -> RotatingState:
        """Return the state of a shard; held-out rows are not evaluated."""
        return RotatingState(shard, number, grid.blocks)

    def initial_block(self, lo: int, hi: int, n_features: int) -> WeightBlock:
        """Return a block of zeros."""
        return WeightBlock(lo, hi, np.zeros((n_features, hi - lo), np.float32), ())

    def sweep_kinds(self, epochs: int, observe: bool) -> tuple[str, ...]:
        """Return one sweep of steps per epoch, and one that sums the loss."""
        return ("update",) * epochs + ("observe",) * observe

    def step(
        self,
        local: RotatingState,
        block: WeightBlock,
        step: Step,
        *,
        owned: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[WeightBlock, PassMetrics]:
        """Take one gradient step on the shard, or add its loss."""
        if stopped():
            raise Stopped("stopped between two passes")
        R, squared = local.residuals(block), None
        if step.kind == "update":
            G = local.size * step.rate * (local.X.T @ (local.c * R))
            block = block._replace(W=np.asarray(block.W - G, np.float32))
        else:
            squared, local.loss = 0.0, local.loss + 0.5 * float((local.c * R * R).sum())
        local.passed = (local.passed + 1) % local.blocks
        if local.passed or step.kind == "update":
            return block, PassMetrics(squared, None)
        loss, local.loss = local.loss, 0.0
        none = np.empty((0, 1))
        rows = np.empty(0, np.int64)
        sweep = SweepMetrics(local.number, loss, 0.0, 0, none.astype(np.int32), none, rows)
        return block, PassMetrics(squared, sweep)

    def objective(self, squared: Sequence[float], losses: Sequence[float]) -> float:
        """Return the sum of the losses."""
        return math.fsum(losses)

    def decide(self, history: Sequence[SyncState]) -> Decision:
        """Stop after the last epoch, or when an epoch gained little."""
        newest, before = history[-1], history[-2].objective if len(history) > 1 else math.inf
        reason = (
            self.stopping.reached if newest.objective >= (1.0 - self.tolerance) * before else None
        )
        if newest.epoch >= self.epochs:
            reason = f"all {self.epochs} epochs are done"
        return Decision(newest.rate, reason, roll_back=False)

    def export(self, block: WeightBlock, positives: Int64) -> SolvedLabels:
        """Return the labels of a block."""
        return to_solved_labels(block.lo, block.W, self.bias, 0.0, positives)

    def resources(
        self, shape: ProblemShape, grid: Grid, workers: int, processes: bool
    ) -> ResourceNeeds:
        """Return the needs: rows and weights are split."""
        W, weights = 4 * shape.features * shape.labels, shape.expected_weights(0.0)
        seconds = 3.0 * self.epochs * shape.product_seconds
        return ResourceNeeds(W, shape.n_bytes // workers + W, 2 * W, 3 * W, weights, seconds)
