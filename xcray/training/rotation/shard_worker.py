"""Worker side of rotation training.

A worker holds row shards, updates weight blocks against them, and keeps the state that is needed
for checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern
from xcray.solvers.multinomial import Shard, make_shard, shard_rows, total_weight
from xcray.solvers.rotation_contract import (
    MUTATING_KINDS,
    ExactPhase,
    Grid,
    PassMetrics,
    RotationSolver,
    RowShardState,
    Step,
    WeightBlock,
)
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import Arrays, read_arrays, write_arrays
from xcray.workers.solver_task import open_dataset

MAX_HELD_OUT_ROWS: Final = 10_000  # approximate limit of evaluated rows


class ShardInfo(NamedTuple):
    """An opened shard: its number of rows, and the cost of a block pass, in entries of X."""

    shard: int
    rows: int
    cost: float


class SplitPlan(NamedTuple):
    """How rows are split into shards, the same everywhere.

    total: weight of all rows that have labels, see `multinomial.total_weight`.
    bias: value of the constant feature.
    held_out_step: evaluate every n-th held-out row of the shard; 0 disables evaluation.
    held_out_weight: weight of the evaluated rows that have labels.
    """

    grid: Grid
    seed: int
    bias: float
    total: float
    held_out_step: int = 0
    held_out_weight: float = 0.0


# rows of a shard, and its held-out rows
ShardRows: TypeAlias = tuple[Shard, Shard | None]


class ShardSource(NamedTuple):
    """Rows that shards are cut from.

    X (N x D), Y (N x K), weights (N,) or None: of training. held_out: X and Y of the held-out
    part, or None. All of them can be mapped files: a cut reads only the rows that it needs.
    """

    split: SplitPlan
    X: CSR
    Y: Pattern
    weights: Float32 | None = None
    held_out: tuple[CSR, Pattern] | None = None

    def cut_shard(self, number: int) -> ShardRows:
        """Return shard `number`, and its held-out rows."""
        split = self.split
        rows = shard_rows(self.X.n_rows, split.grid.shards, split.seed, number)
        shard = make_shard(
            self.X, self.Y, rows, total=split.total, weights=self.weights, bias=split.bias
        )
        if self.held_out is None or not split.held_out_step:
            return shard, None
        counts = _held_out_rows(
            self.held_out[0].n_rows, split.grid, split.seed, split.held_out_step, number
        )
        return shard, make_shard(
            *self.held_out, counts, total=split.held_out_weight, bias=split.bias
        )


def make_shard_source(
    X: CSR,
    Y: Pattern,
    weights: Float32 | None,
    held_out: tuple[CSR, Pattern] | None,
    *,
    grid: Grid,
    seed: int,
    bias: float,
    max_held_out: int = MAX_HELD_OUT_ROWS,
) -> ShardSource:
    """Return rows and their split plan; arguments as of `ShardSource`.

    max_held_out: approximate limit of the held-out rows that are evaluated.
    """
    split = SplitPlan(grid, seed, bias, total_weight(Y, weights))
    if held_out is None or not held_out[0].n_rows or max_held_out < 1:
        return ShardSource(split, X, Y, weights)
    every = -(-held_out[0].n_rows // max_held_out)
    labelled = np.diff(held_out[1].indptr) > 0
    counts = [
        labelled[_held_out_rows(held_out[0].n_rows, grid, seed, every, number)].sum()
        for number in range(grid.shards)
    ]
    return ShardSource(
        split._replace(held_out_step=every, held_out_weight=float(sum(counts))),
        X,
        Y,
        weights,
        held_out,
    )


def _held_out_rows(n_rows: int, grid: Grid, seed: int, every: int, number: int) -> Int64:
    """Return the held-out rows that shard `number` evaluates."""
    return shard_rows(n_rows, grid.shards, seed, number)[::every]


@dataclass(frozen=True)
class ShardWorkerSpec:
    """Factory of `ShardWorker`s for a data set.

    n_features: D', with the constant feature. path, content_hash: of the data set's directory,
    which is opened on nodes that see it; None if only the driver has the rows.
    """

    solver: RotationSolver
    split: SplitPlan
    n_features: int
    path: str | None = None
    content_hash: str = ""

    @property
    def grid(self) -> Grid:
        """Shards and blocks."""
        return self.split.grid

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShardWorker:
        """Return a worker that holds no shards yet."""
        return ShardWorker(self, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()

    def open(self) -> ShardSource | None:
        """Map the rows if this node has the data set with this content; None otherwise."""
        dataset = None if self.path is None else open_dataset(self.path, self.content_hash)
        if dataset is None:
            return None
        train, test = dataset.train, dataset.test
        return ShardSource(
            self.split, train.X, train.Y, train.weights, None if test is None else (test.X, test.Y)
        )


class ShardWorker:
    """Shards of one worker: their solver state, and a snapshot of it from the last sync point.

    Its public methods are called remotely (see `workers.worker_group`) and return (object, result).
    Rows and weights are not held here: a block arrives, passes the shards, and leaves.
    """

    def __init__(self, work: ShardWorkerSpec, stopped: Callable[[], bool]) -> None:
        self._spec = work
        self._solver = work.solver
        self._stopped = stopped
        self._locals: dict[int, RowShardState] = {}
        self._snapshots: dict[int, Arrays] = {}

    def hold_shards(self, shards: Sequence[int]) -> tuple[None, tuple[list[ShardInfo], list[int]]]:
        """Hold exactly these shards.

        Returns the infos of newly opened shards, and the shards that cannot be opened because
        this node does not see the data set's directory, or another data set is there.
        """
        for shard in set(self._locals) - set(shards):
            del self._locals[shard]
            self._snapshots.pop(shard, None)
        missing = [shard for shard in shards if shard not in self._locals]
        rows = self._spec.open() if missing else None
        if rows is None:
            return None, ([], missing)
        return None, ([self._add_shard(shard, *rows.cut_shard(shard)) for shard in missing], [])

    def receive_shard(self, shard: int, cut: ShardRows) -> tuple[None, ShardInfo]:
        """Hold a shard whose rows the driver sent, the result of `ShardSource.cut_shard`."""
        return None, self._add_shard(shard, *cut)

    def init_block(self, lo: int, hi: int) -> tuple[WeightBlock, None]:
        """Create the initial block of labels lo .. hi-1."""
        return self._solver.initial_block(lo, hi, self._spec.n_features), None

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, PassMetrics, float]]]:
        """Update a block against shards, in this order.

        Creates the updated block, None if it is unchanged. Returns the metrics and seconds of
        each shard.
        owned: the block's arrays are not shared, so they can be written.
        """
        after, results = block, []
        for shard in shards:
            began = time.monotonic()
            mine = (owned or after is not block) and after.W.flags.writeable
            after, metrics = self._solver.step(
                self._locals[shard], after, step, owned=mine, stopped=self._stopped
            )
            results.append((shard, metrics, time.monotonic() - began))
        changed = step.kind in MUTATING_KINDS
        return after if changed else None, results

    def pass_block_copied(
        self, block: WeightBlock, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[WeightBlock, list[tuple[int, PassMetrics, float]]]:
        """Run `pass_block` on groups of several nodes, and also create a block that is unchanged.

        Otherwise each node that the block passed would keep a copy until its store is full, in
        the end all of W.
        """
        after, results = self.pass_block(block, shards, step, owned)
        return block if after is None else after, results

    def take_snapshots(self) -> tuple[None, None]:
        """Take a snapshot of the shards' state, for `roll_back` and for checkpoints."""
        self._snapshots = {
            shard: _copy_arrays(local.state()) for shard, local in self._locals.items()
        }
        return None, None

    def roll_back(self) -> tuple[None, None]:
        """Restore the state of the last snapshot."""
        for shard, snapshot in self._snapshots.items():
            self._locals[shard].restore(_copy_arrays(snapshot))
        return None, None

    def get_snapshot(self, shard: int) -> tuple[Arrays, None]:
        """Create a copy of the snapshot of a shard."""
        return self._snapshots[shard], None

    def restore_shard(self, shard: int, snapshot: Arrays) -> tuple[None, None]:
        """Set the state of a shard to a snapshot from here or elsewhere."""
        self._snapshots[shard] = _copy_arrays(snapshot)
        self._locals[shard].restore(_copy_arrays(snapshot))
        return None, None

    def save_shard(self, shard: int, directory: str, name: str) -> tuple[None, str | None]:
        """Write the snapshot of a shard; return its SHA-256, None without the directory."""
        folder = Path(directory)
        return None, write_arrays(
            folder / name, self._snapshots[shard]
        ) if folder.is_dir() else None

    def load_shard(self, shard: int, directory: str, name: str, digest: str) -> tuple[None, bool]:
        """Restore a shard from `save_shard`; return whether this node sees the directory.

        Raises Corrupt.
        """
        folder = Path(directory)
        if folder.is_dir():
            self.restore_shard(shard, read_arrays(folder / name, digest))
        return None, folder.is_dir()

    def save_block(self, block: WeightBlock, directory: str, name: str) -> tuple[None, str | None]:
        """Write a block; return its SHA-256, None without access to the directory."""
        folder = Path(directory)
        return None, write_arrays(
            folder / name, block_to_arrays(block)
        ) if folder.is_dir() else None

    def load_block(self, directory: str, name: str, digest: str) -> tuple[WeightBlock | None, None]:
        """Create the block that `save_block` wrote, none without access. Raises Corrupt."""
        folder = Path(directory)
        return arrays_to_block(
            read_arrays(folder / name, digest)
        ) if folder.is_dir() else None, None

    def pack_block(self, block: WeightBlock) -> tuple[Arrays, None]:
        """Create the arrays of a block's file."""
        return block_to_arrays(block), None

    def unpack_block(self, arrays: Arrays) -> tuple[WeightBlock, None]:
        """Create a block from such arrays."""
        return arrays_to_block(arrays), None

    def start_history(self, block: WeightBlock) -> tuple[WeightBlock, None]:
        """Create the history of a block that has its first exact gradient."""
        return self._phase.start(block), None

    def update_history(self, history: WeightBlock, block: WeightBlock) -> tuple[WeightBlock, None]:
        """Create the history after the step to the block's point, which has its gradient."""
        return self._phase.update(history, block), None

    def history_products(self, history: WeightBlock) -> tuple[None, Float64]:
        """Return what the driver adds up over the histories of all blocks."""
        return None, self._phase.products(history)

    def set_direction(self, history: WeightBlock, coefs: Float64) -> tuple[WeightBlock, None]:
        """Create the history with its direction."""
        return self._phase.direct(history, coefs), None

    def move_block(self, history: WeightBlock, length: float) -> tuple[WeightBlock, None]:
        """Create the block at `length` times the direction."""
        return self._phase.move(history, length), None

    def export_labels(self, block: WeightBlock, positives: Int64) -> tuple[SolvedLabels, None]:
        """Create the solved labels of a block; positives: (hi-lo,) training rows of each label."""
        return self._solver.export(block, positives), None

    @property
    def _phase(self) -> ExactPhase:
        """Exact phase of the solver. Raises ValueError if it has none."""
        return require_phase(self._solver)

    def _add_shard(self, shard: int, rows: Shard, held_out_shard: Shard | None) -> ShardInfo:
        """Create the solver state of a shard.

        Rows from the object store stay there while they are held: there is no second copy.
        """
        self._locals[shard] = self._solver.make_shard_state(
            rows, shard, self._spec.grid, held_out_shard
        )
        return ShardInfo(shard, len(rows.rows), float(max(rows.X.nnz, 1)))


def require_phase(solver: RotationSolver) -> ExactPhase:
    """Return the exact phase of a solver. Raises ValueError if it has none."""
    if solver.exact_phase is None:
        raise ValueError(f"{type(solver).__name__} has no exact phase to enter")
    return solver.exact_phase


def block_to_arrays(block: WeightBlock) -> Arrays:
    """Return a block as named arrays: W (D', hi-lo), state.0 and so on, and its range of labels."""
    state = {f"state.{number}": array for number, array in enumerate(block.state)}
    return {"W": block.W, **state, "range": np.array([block.lo, block.hi], np.int64)}


def arrays_to_block(arrays: Mapping[str, np.ndarray]) -> WeightBlock:
    """Return the block of `block_to_arrays`; shares memory."""
    lo, hi = (int(end) for end in arrays["range"])
    return WeightBlock(
        lo, hi, arrays["W"], tuple(arrays[f"state.{number}"] for number in range(len(arrays) - 2))
    )


def _copy_arrays(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Return copies of the arrays."""
    return {name: np.array(array) for name, array in arrays.items()}
