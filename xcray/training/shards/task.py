"""Task and outcome of a training by shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xcray.arrays import Int64, Pattern
from xcray.solvers.rotation_contract import Grid


@dataclass(frozen=True)
class ShardTask:
    """What is trained.

    grid: shards and blocks. n_labels: K. positives: (K,) training rows of each label.
    truth: labels of the held-out rows, None without any. max_seconds: time limit, after which the
    blocks of the last sync point are delivered.
    """

    grid: Grid
    n_labels: int
    positives: Int64 = field(repr=False)
    truth: Pattern | None = field(default=None, repr=False)
    max_seconds: float | None = None


class TrainingOutcome(NamedTuple):
    """How a training ended.

    reason: why it stopped. damaged: checkpoints that were set aside. lost: number of lost workers.
    moved: number of moved shards.
    history: one entry per sync point, in order, JSON: "epoch", "seconds" (of training),
    "objective", "back" (whether it does not count), further numbers of the solver and, for held-out
    rows, "held_out" (loss), "P@1" and so on, "micro-F1", "macro-F1" (of the first label), as
    fractions; None for numbers that are not finite.
    """

    epochs: int
    objective: float | None
    reason: str
    history: list[dict[str, Any]]
    damaged: list[str]
    lost: int
    moved: int
