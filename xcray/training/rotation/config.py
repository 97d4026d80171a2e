"""Configuration, progress and outcome of a rotation training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xcray.arrays import Int64, Pattern
from xcray.solvers.rotation_contract import Grid


@dataclass(frozen=True)
class RotationConfig:
    """What is trained, and how.

    grid: shards and blocks. n_labels: K. n_features: D', with the constant feature.
    positives: (K,) training rows of each label. truth: labels of the held-out rows, None without
    any.
    order, max_in_flight, hybrid: see `RotationSchedule`. sync_every: epochs per interval.
    seed: of the orders that draw. checkpoint_seconds: between two checkpoints, at least; 0 for
    one at each sync point, infinity for none. max_seconds: time limit, after which the blocks of
    the last sync point are delivered. move_shards: whether shards move to faster workers.
    """

    grid: Grid
    n_labels: int
    n_features: int
    positives: Int64 = field(repr=False)
    truth: Pattern | None = field(default=None, repr=False)
    order: str = "ring"
    max_in_flight: int = 2
    hybrid: bool = False
    sync_every: int = 1
    seed: int = 0
    checkpoint_seconds: float = 60.0
    max_seconds: float | None = None
    move_shards: bool = True

    def label_range(self, block: int) -> tuple[int, int]:
        """Return lo and hi: the labels of a block are lo .. hi-1."""
        blocks = self.grid.blocks
        return self.n_labels * block // blocks, self.n_labels * (block + 1) // blocks


class TrainingOutcome(NamedTuple):
    """How a training ended.

    reason: why it stopped. damaged: checkpoints that were set aside. lost: number of lost workers.
    moved: number of moved shards.
    history: one entry per sync point, in order, JSON: "epoch", "seconds" (of training), "rate",
    "objective", "back" (whether the solver rolled back from it) and, for held-out rows,
    "held_out" (loss), "P@1" and so on, "micro-F1", "macro-F1" (of the first label), as fractions;
    None for numbers that are not finite.
    """

    epochs: int
    objective: float | None
    reason: str
    history: list[dict[str, Any]]
    damaged: list[str]
    lost: int
    moved: int
