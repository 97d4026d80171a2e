"""Contract of solvers whose blocks rotate over row shards: blocks, metrics, decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

import numpy as np

from xcray.arrays import Float32, Float64, Int32, Int64
from xcray.solvers.contract import Solver
from xcray.solvers.declarations import ProblemShape, ResourceNeeds
from xcray.solvers.multinomial import Shard
from xcray.solvers.solved_labels import SolvedLabels

# kinds of passes that take stochastic steps
STOCHASTIC_KINDS: Final = ("update", "both")
# kinds of passes that gather exact gradients at blocks, and C
GRADIENT_KINDS: Final = ("gradient", "curvature")
# kinds of passes that change the block
MUTATING_KINDS: Final = (*STOCHASTIC_KINDS, *GRADIENT_KINDS)


class Grid(NamedTuple):
    """Number of row shards and of label blocks."""

    shards: int
    blocks: int


class WeightBlock(NamedTuple):
    """Weights of labels lo .. hi-1.

    W: (D', hi-lo) float32, one row per feature; state: arrays that travel along (`initial_block`).
    """

    lo: int
    hi: int
    W: Float32
    state: tuple[Float32, ...]


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

    loss: its part of L1 without the norm, exact after "sum" and "observe". After "observe" also,
    for its held-out rows: their part of the mean loss, best labels (n, k) in descending order,
    their scores, and row numbers.
    """

    shard: int
    loss: float
    held_out_loss: float
    held_out_rows: int
    labels: Int32
    scores: Float32
    rows: Int64


class PassMetrics(NamedTuple):
    """Metrics of a block pass.

    squared: |W|^2 of the block after "sum" and "observe"; sweep: metrics of the shard if this pass
    ended its sweep.
    """

    squared: float | None
    sweep: SweepMetrics | None


class SyncState(NamedTuple):
    """State at a sync point, as input of the solver's decision.

    epoch: number of epochs done; rate: their rate; held_out: the held-out loss, or None;
    rolled_back: whether the training rolled back from it. length, slope: in the L-BFGS phase, the
    step length from the last accepted sync point, and the slope of the objective there. length is
    None in the stochastic phase.
    """

    epoch: int
    rate: float
    objective: float
    held_out: float | None = None
    rolled_back: bool = False
    length: float | None = None
    slope: float = 0.0


class Decision(NamedTuple):
    """How training continues.

    rate: of the next steps; stop: the reason to end, or None; roll_back: return to the previous
    sync point. lbfgs_action: "enter" the L-BFGS phase; "accept" this point and compute the next
    direction; "retry" with another `length` of this direction; None in the stochastic phase.
    """

    rate: float
    stop: str | None
    roll_back: bool
    lbfgs_action: str | None = None
    length: float = 1.0


class RowShardState(Protocol):
    """What a shard keeps at its worker between block passes."""

    def state(self) -> Mapping[str, np.ndarray]:
        """Return the arrays of a checkpoint, at a sync point."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point, from any other. The arrays can be kept."""


class ExactPhase(Protocol):
    """Second phase of a training, with exact gradients: a history for each block, on its worker.

    A history is stored and saved like a block. The driver adds up `products` of all blocks and
    returns coefficients.
    """

    def start(self, block: WeightBlock) -> WeightBlock:
        """Return the history of a block after its first pass of kind "curvature"."""

    def update(self, history: WeightBlock, block: WeightBlock) -> WeightBlock:
        """Return the history after the step to the block's point, which has its gradient."""

    def products(self, history: WeightBlock) -> Float64:
        """Return what the driver adds up over blocks."""

    def coefficients(self, parts: Sequence[Float64]) -> tuple[Float64, float]:
        """Return the coefficients of the direction and its slope; parts: `products` by block."""

    def direct(self, history: WeightBlock, coefs: Float64) -> WeightBlock:
        """Return the history with its direction."""

    def move(self, history: WeightBlock, length: float) -> WeightBlock:
        """Return the block at `length` times the direction."""


class RotationSolver(Solver, Protocol):
    """Solver whose label blocks rotate over row shards, so that no process holds all weights.

    Seed, bias, order and sync_every are parameters of such a solver.
    """

    family: ClassVar[Literal["rotation"]] = "rotation"

    @property
    def seed(self) -> int:
        """Return the seed of the row split and of the orders that draw."""

    @property
    def bias(self) -> float:
        """Return the value of a constant feature that is appended to rows; 0: no such feature."""

    @property
    def order(self) -> str:
        """Return the routing of blocks, see `xcray.schedule.rotation.ORDERS`."""

    @property
    def sync_every(self) -> int:
        """Return the number of epochs between two sync points."""

    @property
    def exact_phase(self) -> ExactPhase | None:
        """Return the phase that the decision "enter" starts; None if there is none."""
        return None

    def grid(self, n_rows: int, n_labels: int, n_features: int, workers: int) -> Grid:
        """Return the grid of a run, which the bits of the model can depend on.

        n_features: D', with the constant feature.
        """

    def make_shard_state(
        self, shard: Shard, number: int, grid: Grid, held_out: Shard | None
    ) -> RowShardState:
        """Return the state of shard `number` at its worker.

        held_out: held-out rows that the shard evaluates, or None.
        """

    def initial_block(self, lo: int, hi: int, n_features: int) -> WeightBlock:
        """Return the initial block of labels lo .. hi-1."""

    def sweep_kinds(self, epochs: int, observe: bool) -> tuple[str, ...]:
        """Return the kinds of the sweeps of an interval of `epochs`, one of `Step` each.

        observe: end with an evaluation of held-out rows, with the exact objective.
        """

    def step(
        self,
        local: Any,
        block: WeightBlock,
        step: Step,
        *,
        owned: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[WeightBlock, PassMetrics]:
        """Run the pass of a block over a shard; return the block after it, and its metrics.

        local: of `make_shard_state`. owned: the arrays of the block can be written in place. For
        kinds in MUTATING_KINDS the returned block differs from `block`. Raises Stopped soon after
        `stopped` returns True.
        """

    def objective(self, squared: Sequence[float], losses: Sequence[float]) -> float:
        """Return the objective from |W|^2 of each block and the loss of each shard.

        Sums are correctly rounded, so they do not depend on the order.
        """

    def start_objective(self, n_labels: int) -> float | None:
        """Return the objective of the initial weights; None if it is not known."""
        return None

    def decide(self, history: Sequence[SyncState]) -> Decision:
        """Decide how to continue after the newest sync point of `history`."""

    def export(self, block: WeightBlock, positives: Int64) -> SolvedLabels:
        """Return the labels of a finished block; positives: (hi-lo,) training rows of each."""

    def resources(
        self, shape: ProblemShape, grid: Grid, workers: int, processes: bool
    ) -> ResourceNeeds:
        """Return the resource needs on a grid.

        processes: whether workers are processes of their own, so that blocks are in a store.
        """
