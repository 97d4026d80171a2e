"""Shards of a training and their state at the workers of a group.

At sync points shards move to faster workers, and draining nodes are left. With the orders "sync"
and "ring", results are bit-identical regardless of the assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec

from xcray.errors import Corrupt
from xcray.schedule.calls import Call, at_worker
from xcray.schedule.shard_assignment import assign_by_speed
from xcray.solvers.group_contract import Grid
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.shards.checkpoints import load_checkpoint, save_checkpoint
from xcray.training.shards.rebalancing import WorkerSpeeds
from xcray.training.shards.shard_worker import ShardInfo, ShardWorker
from xcray.training.shards.source import ShardSource
from xcray.workers.call_queue import WorkerLost, call, call_many, require_ref
from xcray.workers.parts import Parts
from xcray.workers.worker_group import WorkerGroup

P = ParamSpec("P")


class ShardAssignment(Parts):
    """The owner of each shard among the workers of an open group of `ShardWorker`s.

    Shards are cut from `source` for workers that do not see the data set's directory.
    """

    keeps_state: ClassVar[bool] = True

    def __init__(self, group: WorkerGroup, source: ShardSource, grid: Grid) -> None:
        super().__init__(group, grid.shards)
        self._source = source
        self._n_blocks = grid.blocks
        self._speeds = WorkerSpeeds()
        self._has_begun = False  # shards can be in an intermediate state

    def place(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Assign all shards evenly by their costs; the workers of a node are neighbours."""
        self._apply(assign_by_speed(self.costs, dict.fromkeys(self.workers, 1.0)), stopped)

    def recover(self, lost: WorkerLost) -> None:
        """Replace lost workers where possible at once; the shards are assigned again by `place`."""
        for worker in lost.workers:
            self._speeds.forget(worker)
        super().recover(lost)

    def leave(self) -> str:
        """Release the workers on draining nodes, if there are any now; return what happened."""
        for worker in self.draining:
            self._speeds.forget(worker)
        return super().leave()

    def has_changes(self, seconds_left: float | None) -> bool:
        """Return whether a node is about to go; if all are, work goes on to the last moment."""
        return bool(self.group.draining_workers())

    def adapt(self) -> str:
        """Do nothing: shards move at sync points, with their state."""
        return ""

    def rebalance(
        self, speeds: Mapping[str, float], sweeps: int, seconds_left: float | None
    ) -> str:
        """Move shards at a sync point to new or to faster workers; return what happened.

        speeds: of the workers in the last interval of `sweeps` sweeps. seconds_left: as of
        `has_changes`.
        """
        self._speeds.update(speeds, self.workers)
        joined = self.group.poll_new_workers(seconds_left)
        if joined:  # they are assumed to be as fast as the fastest known one
            known = self._speeds.speeds_of(self.workers)
            self._move_shards(assign_by_speed(self.costs, known))
            return f"{', '.join(joined)} joined"
        passes = sweeps * self._n_blocks
        owners = self._speeds.better_assignment(self.owners, self.costs, passes)
        if owners is not None:
            self._move_shards(owners)
        return ""

    def save(self, folder: CheckpointFolder, number: int, state: TrainingState) -> None:
        """Save a state with the snapshots of all shards."""
        save_checkpoint(folder, self.group, number, state.note, state.placed, self.owners)

    def load(self, folder: CheckpointFolder | None) -> TrainingState | None:
        """Restore the newest valid checkpoint, or the start."""
        began, self._has_begun = self._has_begun, True
        while folder is not None and (saved := folder.newest_files()) is not None:
            try:
                blocks = load_checkpoint(self.group, saved, self.owners, self._n_blocks)
            except Corrupt:
                folder.set_aside(saved.path)
                continue
            return TrainingState(saved.note, {}, blocks)
        if began:  # there is no snapshot to go back to: load the shards again
            self._call_all(ShardWorker.hold_shards, [])
            self._apply(self.owners)
        return None

    def keep_state(self) -> None:
        """Take a snapshot of the state of all shards."""
        self._call_all(ShardWorker.take_snapshots)

    def restore_state(self) -> None:
        """Restore all shards from their last snapshots."""
        self._call_all(ShardWorker.roll_back)

    def _apply(self, owners: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> None:
        """Make each worker hold exactly the shards that it owns."""
        self.owners = tuple(owners)
        calls = [
            Call(worker, ShardWorker.hold_shards, self._held_by(worker)) for worker in self.workers
        ]
        unseen, infos = list[int](), list[ShardInfo]()
        for answer in list(call_many(self.group, calls, stopped)):
            opened, not_opened = answer.result
            infos += opened
            unseen += not_opened
        for shard in unseen:  # one at a time: this process holds one shard in transit
            cut = self.group.put(self._source.cut_shard(shard))
            request = Call(owners[shard], ShardWorker.receive_shard, shard, at_worker(cut))
            infos.append(call(self.group, request).result)
        for info in infos:
            self.costs[info.shard] = info.cost

    def _call_all(
        self,
        method: Callable[Concatenate[ShardWorker, P], tuple[Any, Any]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of every worker, with positional arguments."""
        calls = [Call(worker, method, *args, **kwargs) for worker in self.workers]
        list(call_many(self.group, calls))

    def _move_shards(self, owners: Sequence[str]) -> None:
        """Move shards to other owners, with their state of the last sync point."""
        moving = [shard for shard, owner in enumerate(owners) if owner != self.owners[shard]]
        gets = [Call(self.owners[shard], ShardWorker.get_snapshot, shard) for shard in moving]
        snapshots = [require_ref(reply.ref) for reply in call_many(self.group, gets)]
        self._apply(owners)
        calls = [
            Call(owners[shard], ShardWorker.restore_shard, shard, at_worker(handle))
            for shard, handle in zip(moving, snapshots, strict=True)
        ]
        list(call_many(self.group, calls))
        self.moved += len(moving)
