"""Worker side of a training by shards: it holds row shards, and snapshots of their state.

What a block does at a shard is the solver's. Here are the shards themselves, and what is needed for
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.solvers.group_contract import WeightBlock
from xcray.solvers.row_shards import Shard
from xcray.solvers.shard_contract import BlockWorker
from xcray.storage.array_files import Arrays, read_arrays, write_arrays
from xcray.storage.checkpoints import file_of
from xcray.training.shards.source import ShardRows, ShardSource


class ShardInfo(NamedTuple):
    """An opened shard: its number of rows, and the cost of a block pass, in entries of X."""

    shard: int
    rows: int
    cost: float


class ShardWorker:
    """Shards of one worker: the solver's worker, and their state at the last sync point.

    Its public methods are called remotely (see `workers.worker_group`) and return (object, result).
    The methods of the solver's worker can be called as well. open_rows: returns the source of
    shards, None if this node does not see the data set.
    """

    def __init__(self, worker: BlockWorker, open_rows: Callable[[], ShardSource | None]) -> None:
        self._worker = worker
        self._open_rows = open_rows
        self._shards: set[int] = set()
        self._snapshots: dict[int, Arrays] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a method of the solver's worker."""
        return getattr(self.__dict__["_worker"], name)

    def hold_shards(self, shards: Sequence[int]) -> tuple[None, tuple[list[ShardInfo], list[int]]]:
        """Hold exactly these shards.

        Returns the infos of newly opened shards, and the shards that cannot be opened because
        this node does not see the data set's directory, or another data set is there.
        """
        for shard in self._shards - set(shards):
            self._worker.drop_shard(shard)
            self._shards.discard(shard)
            self._snapshots.pop(shard, None)
        missing = [shard for shard in shards if shard not in self._shards]
        rows = self._open_rows() if missing else None
        if rows is None:
            return None, ([], missing)
        return None, ([self._add_shard(shard, *rows.cut_shard(shard)) for shard in missing], [])

    def receive_shard(self, shard: int, cut: ShardRows) -> tuple[None, ShardInfo]:
        """Hold a shard that the driver cut."""
        return None, self._add_shard(shard, *cut)

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Any, owned: bool, copied: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, Any, float]]]:
        """Let a block pass shards, see `BlockWorker`.

        copied: also create a block that is unchanged. On groups of several nodes each node that the
        block passed would otherwise keep a copy until its store is full, in the end all of W.
        """
        after, results = self._worker.pass_block(block, shards, step, owned)
        return block if after is None and copied else after, results

    def take_snapshots(self) -> tuple[None, None]:
        """Take a snapshot of the shards' state, for `roll_back` and for checkpoints."""
        self._snapshots = {shard: _copy_arrays(self._worker.state(shard)) for shard in self._shards}
        return None, None

    def roll_back(self) -> tuple[None, None]:
        """Restore the state of the last snapshot."""
        for shard, snapshot in self._snapshots.items():
            self._worker.restore(shard, _copy_arrays(snapshot))
        return None, None

    def get_snapshot(self, shard: int) -> tuple[Arrays, None]:
        """Create a copy of the snapshot of a shard."""
        return self._snapshots[shard], None

    def restore_shard(self, shard: int, snapshot: Arrays) -> tuple[None, None]:
        """Set the state of a shard to a snapshot from here or elsewhere."""
        self._snapshots[shard] = _copy_arrays(snapshot)
        self._worker.restore(shard, _copy_arrays(snapshot))
        return None, None

    def save_shard(self, shard: int, folder: str, name: str) -> tuple[None, str | None]:
        """Write the snapshot of a shard; return its SHA-256, None without the folder."""
        return None, _save(folder, name, self._snapshots[shard])

    def load_shard(self, shard: int, folder: str, name: str, digest: str) -> tuple[None, bool]:
        """Restore a shard from `save_shard`; return whether this node sees the folder.

        Raises Corrupt.
        """
        arrays = _load(folder, name, digest)
        if arrays is not None:
            self.restore_shard(shard, arrays)
        return None, arrays is not None

    def save_block(self, block: WeightBlock, folder: str, name: str) -> tuple[None, str | None]:
        """Write a block; return its SHA-256, None without access to the folder."""
        return None, _save(folder, name, block_to_arrays(block))

    def load_block(self, folder: str, name: str, digest: str) -> tuple[WeightBlock | None, None]:
        """Create the block that `save_block` wrote, none without access. Raises Corrupt."""
        arrays = _load(folder, name, digest)
        return None if arrays is None else arrays_to_block(arrays), None

    def pack_block(self, block: WeightBlock) -> tuple[Arrays, None]:
        """Create the arrays of a block's file."""
        return block_to_arrays(block), None

    def unpack_block(self, arrays: Arrays) -> tuple[WeightBlock, None]:
        """Create a block from such arrays."""
        return arrays_to_block(arrays), None

    def _add_shard(self, shard: int, rows: Shard, held_out: Shard | None) -> ShardInfo:
        """Give a shard to the solver's worker.

        Rows from the object store stay there while they are held: there is no second copy.
        """
        self._worker.add_shard(shard, rows, held_out)
        self._shards.add(shard)
        return ShardInfo(shard, len(rows.rows), float(max(rows.X.nnz, 1)))


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


def _save(folder: str, name: str, arrays: Arrays) -> str | None:
    """Write the arrays of a file; return their SHA-256, None if this node has no such folder."""
    path = Path(folder)
    return write_arrays(file_of(path, name), arrays) if path.is_dir() else None


def _load(folder: str, name: str, digest: str) -> Arrays | None:
    """Read the arrays of a file; None if this node has no such folder. Raises Corrupt."""
    path = Path(folder)
    return read_arrays(file_of(path, name), digest) if path.is_dir() else None
