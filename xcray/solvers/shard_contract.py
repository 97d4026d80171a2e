"""What group solvers whose workers hold shards of rows have in addition: blocks that rotate.

The program lets blocks rotate over the shards, calls methods of the workers, and yields after each
sync point. The training decides which worker holds which shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from xcray.arrays import Float32
from xcray.schedule.calls import Call, ObjectHandle
from xcray.solvers.declarations import Rows
from xcray.solvers.group_contract import Grid, GroupSolver, Layout
from xcray.solvers.row_shards import Shard

T = TypeVar("T")
R = TypeVar("R")


class WeightBlock(NamedTuple):
    """Weights of labels lo .. hi-1.

    W: (D', hi-lo) float32, one row per feature; state: arrays that travel along.
    """

    lo: int
    hi: int
    W: Float32
    state: tuple[Float32, ...]


class PlacedBlock(NamedTuple):
    """A block at the worker that created it."""

    worker: str
    handle: ObjectHandle[WeightBlock]


class CellReport(NamedTuple):
    """A block has passed a shard: their numbers, and what the solver's worker reports of it."""

    block: int
    shard: int
    report: Any


class Rotation(NamedTuple):
    """Blocks after a rotation, and the reports of all cells: of a block or shard in their order."""

    blocks: list[PlacedBlock]
    reports: list[CellReport]


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


class RotationCalls(Protocol):
    """What a program can do with the workers of a training; see `xcray.training.shards.calls`.

    Every method raises Stopped, errors of the workers, and an error if a worker was lost: then the
    program is started again from the newest checkpoint.
    """

    grid: Grid
    n_labels: int

    def create_blocks(
        self, method: Callable[[Any, int, int], tuple[WeightBlock, None]]
    ) -> list[PlacedBlock]:
        """Call `method(lo, hi)` for each block, on workers in turn."""

    def rotate(
        self,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
        *,
        seed: int,
        epochs: int,
        first: int = 0,
    ) -> Rotation:
        """Let every block pass every shard, once per step; `blocks` are not changed.

        steps: an argument of `pass_block` for each sweep. seed: of orders that draw. first: shard
        at which block 0 starts in the other orders, modulo their number.
        epochs: how many the rotation adds, for the report of progress.
        """

    def call_many(self, calls: Sequence[Call[Any, R]]) -> list[R]:
        """Run calls of single workers and return the result of each, in order."""

    def create_many(self, calls: Sequence[Call[WeightBlock, Any]]) -> list[PlacedBlock]:
        """Run calls of single workers that create an object each; return where these are."""

    def fetch_many(self, calls: Sequence[Call[T, Any]]) -> Iterator[T]:
        """Run calls of single workers and yield the object of each, in order."""

    def keep_shards(self) -> None:
        """Take a snapshot of the state of all shards: this sync point counts."""

    def restore_shards(self) -> None:
        """Restore all shards from their last snapshots."""


def grid_of(layout: Layout) -> Grid:
    """Return the grid of a layout with shards. Raises ValueError if it has none."""
    if layout.grid is None:
        raise ValueError("workers that hold shards need a grid")
    return layout.grid


class ShardSolver(GroupSolver, Protocol):
    """Group solver whose workers hold shards of rows, which label blocks pass in turn.

    No process holds all weights. `layout` chooses the grid, which the bits of the model can depend
    on; a run keeps it. `create_worker` returns a `BlockWorker` without shards: its rows are empty
    and have the numbers of features and labels only. `program` and `export` receive
    `RotationCalls`. The program yields at each sync point; `placed` of a state are all objects that
    it needs to go on, each a `PlacedBlock`: of block j at j modulo the number of blocks. Entries of
    the history have "back": whether the sync point does not count.

    Seed, bias and order are parameters of such a solver.
    """

    rows: ClassVar[Rows] = "shards"

    @property
    def seed(self) -> int:
        """Return the seed of the row split and of the orders that draw."""

    @property
    def bias(self) -> float:
        """Return the value of a constant feature that is appended to rows; 0: no such feature."""

    @property
    def order(self) -> str:
        """Return the routing of blocks, see `xcray.schedule.rotation.ORDERS`."""

    def time_sweep(self, shard: Shard, n_labels: int) -> float:
        """Return the core seconds that a block of n_labels labels takes to pass a shard."""
