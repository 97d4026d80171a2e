"""Contract of solvers whose blocks rotate over row shards: blocks, metrics, decisions."""

from __future__ import annotations

from typing import Final, NamedTuple

from xcray.arrays import Float32, Int32, Int64

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
