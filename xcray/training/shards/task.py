"""Task of a training by shards."""

from __future__ import annotations

from dataclasses import dataclass, field

from xcray.arrays import Int64, Pattern
from xcray.solvers.group_contract import Grid, TrainingRows


@dataclass(frozen=True)
class ShardTask:
    """What is trained.

    grid: shards and blocks. rows: of training. positives: (K,) training rows of each label.
    truth: labels of the held-out rows, None without any. max_seconds: time limit, after which the
    blocks of the last sync point are delivered.
    """

    grid: Grid
    rows: TrainingRows = field(repr=False)
    positives: Int64 = field(repr=False)
    truth: Pattern | None = field(default=None, repr=False)
    max_seconds: float | None = None
