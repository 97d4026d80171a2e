"""What a training whose blocks go round is asked, and what it tells: the plan, how far it is, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xcray.arrays import Int64, Pattern
from xcray.solvers.rotation_contract import Grid


@dataclass(frozen=True)
class Plan:
    """What is descended, and how.

    grid: shards and blocks; n_labels: K; n_features: D', with the constant feature; positives: (K,) training rows of each label;
    truth: labels of the watched part's rows, None when no rows are watched. order, ahead, hybrid: see `Circulate`; rest_every:
    epochs of a stretch; seed: of the orders that draw. checkpoint_seconds: between two checkpoints, at least; 0 for one at each
    rest, infinity for none. max_seconds: after them the blocks of the last rest are delivered. move: whether shards move to faster
    workers.
    """

    grid: Grid
    n_labels: int
    n_features: int
    positives: Int64 = field(repr=False)
    truth: Pattern | None = field(default=None, repr=False)
    order: str = "ring"
    ahead: int = 2
    hybrid: bool = False
    rest_every: int = 1
    seed: int = 0
    checkpoint_seconds: float = 60.0
    max_seconds: float | None = None
    move: bool = True

    def ends_of(self, block: int) -> tuple[int, int]:
        """The labels lo .. hi-1 of a block."""
        blocks = self.grid.blocks
        return self.n_labels * block // blocks, self.n_labels * (block + 1) // blocks


class Standing(NamedTuple):
    """How far a training is. epoch: done, with the part of the one under way; epochs: at most; seconds: of training, with those of
    earlier attempts; eta: to the last epoch there may be; newest: the entry of the last rest, see `Descent.history`; note: for
    people, what was unusual since the last one."""

    epoch: float
    epochs: int
    seconds: float
    rate: float
    eta: float | None
    newest: Mapping[str, Any]
    note: str


class Descent(NamedTuple):
    """How a training ended. reason: why it stopped; damaged: checkpoints that were set aside; lost: workers; moved: shards.

    history: one entry a rest, in order, JSON: "epoch", "seconds" (of training), "rate", "objective", "back" (whether the solver
    went back from it) and, of watched rows, "held_out" (loss), "P@1" and so on, "micro-F1", "macro-F1" (of the first label), as
    fractions; None where a number is not finite.
    """

    epochs: int
    objective: float | None
    reason: str
    history: list[dict[str, Any]]
    damaged: list[str]
    lost: int
    moved: int
