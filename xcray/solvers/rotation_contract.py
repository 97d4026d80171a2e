"""The contract of solvers whose blocks of labels go round shards of rows: what travels, what is told, what is decided."""

from __future__ import annotations

from typing import Final, NamedTuple

from xcray.arrays import Float32, Int32, Int64

STEPPING: Final = ("update", "both")  # verbs that take stochastic steps
GATHERING: Final = ("gradient", "curvature")  # verbs that gather exact gradients at blocks, and C
CHANGING: Final = (*STEPPING, *GATHERING)  # verbs after which a block is another


class Grid(NamedTuple):
    """In how many shards rows are split, and in how many blocks labels."""

    shards: int
    blocks: int


class Weights(NamedTuple):
    """A block of labels lo .. hi-1 as it travels. W: (D', hi-lo) float32, a row a feature; state: what steps remember (`start`)."""

    lo: int
    hi: int
    W: Float32
    state: tuple[Float32, ...]


class Step(NamedTuple):
    """What a visit does. verb: of its lap, "update", "sum", "both", "observe", "gradient" or "curvature"; epoch: from 1; rate: what
    `judge` said last, 1 at first."""

    verb: str
    epoch: int
    rate: float


class LapFigures(NamedTuple):
    """What a shard tells when all blocks have passed it: its part of L1 without the norm, exact after "sum" and "observe". After
    "observe" too, of its watched rows: their part of the mean loss, best labels (n, k), best first, scores, and row numbers."""

    shard: int
    loss: float
    watched_loss: float
    watched_rows: int
    labels: Int32
    scores: Float32
    rows: Int64


class Told(NamedTuple):
    """What a visit tells: |W|^2 of the block after "sum" and "observe", and figures of the shard if its lap is over."""

    squared: float | None
    lap: LapFigures | None


class Rest(NamedTuple):
    """What the judge sees of a rest: epochs done, the rate they were done with, the objective, the held-out loss, or None.

    back: whether the judge went back from it. length, slope: where exact gradients lead, how much of their direction had been gone
    from the rest before that was kept, and the objective's slope there; length is None while steps are stochastic.
    """

    epoch: int
    rate: float
    objective: float
    held_out: float | None = None
    back: bool = False
    length: float | None = None
    slope: float = 0.0


class Decision(NamedTuple):
    """What is next. rate: of the steps; stop: why training ends, or None; back: whether to go back to the rest before.

    turn: of exact gradients: "enter", let them take over; "accept" this point and take the next direction; "retry", another
    `length` of this one. None while steps are stochastic.
    """

    rate: float
    stop: str | None
    back: bool
    turn: str | None = None
    length: float = 1.0
