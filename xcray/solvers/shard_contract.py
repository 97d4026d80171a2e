"""What group solvers whose workers hold shards of rows have in addition: blocks that rotate.

The program lets blocks rotate over the shards, calls methods of the workers, and yields after each
sync point. The training decides which worker holds which shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from xcray.solvers.group_contract import Grid, GroupSolver, Layout, WeightBlock
from xcray.solvers.row_shards import Shard


class BlockWorker(Protocol):
    """What the training calls of a solver's worker; the program calls further methods."""

    def add_shard(self, number: int, rows: Shard, held_out: Shard | None) -> None:
        """Hold a shard. held_out: held-out rows that it evaluates, or None."""

    def drop_shard(self, number: int) -> None:
        """Free a shard."""

    def state(self, number: int) -> Mapping[str, np.ndarray]:
        """Return the arrays that a shard keeps between passes, at a sync point."""

    def restore(self, number: int, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point, from any other. The arrays can be kept."""

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Any, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, Any, float]]]:
        """Let a block pass shards; create the block after them, none if it is unchanged.

        step: of the sweep, from the program. owned: the block was created in this rotation, so its
        arrays can be written where they are writeable. Returns (shard, report, seconds) of each
        cell. Raises Stopped.
        """


def grid_of(layout: Layout) -> Grid:
    """Return the grid of a layout with shards. Raises ValueError if it has none."""
    if layout.grid is None:
        raise ValueError("workers that hold shards need a grid")
    return layout.grid


class ShardSolver(GroupSolver, Protocol):
    """Group solver whose workers hold shards of rows, which label blocks pass in turn.

    No process holds all weights. `layout` chooses the grid, which the bits of the model can depend
    on; a run keeps it. `create_worker` returns a `BlockWorker` without shards: its rows are empty
    and have the numbers of features and labels only. The program yields at each sync point;
    `placed` of a state are all objects that it needs to go on, each a `PlacedBlock`: of block j at
    j modulo the number of blocks. Entries of the history have "back": whether the sync point does
    not count.
    """

    @property
    def seed(self) -> int:
        """Return the seed of the row split."""

    @property
    def bias(self) -> float:
        """Return the value of a constant feature that is appended to rows; 0: no such feature."""

    def time_sweep(self, shard: Shard, n_labels: int) -> float:
        """Return the core seconds that a block of n_labels labels takes to pass a shard."""
