"""Shard assignment of a rotation training.

It covers the initial placement, the replacement of lost workers, and workers that join or leave.
With the orders "sync" and "ring", results are bit-identical regardless of the assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np

from xcray.errors import Unavailable
from xcray.schedule.calls import Call, at_worker
from xcray.schedule.placement import group_by_node
from xcray.schedule.shard_assignment import assign_by_speed
from xcray.training.shards.rebalancing import WorkerSpeeds
from xcray.training.shards.shard_worker import ShardInfo, ShardWorker
from xcray.training.shards.source import ShardSource
from xcray.workers.calls import WorkerLost, call, call_many, require_ref
from xcray.workers.pool import StopFlag
from xcray.workers.worker_group import WorkerGroup

P = ParamSpec("P")


class ShardAssignment:
    """Workers of an open `group`, and the owner of each of `shards` shards.

    Shards are cut from `source` for workers that do not see the data set's directory. moved_shards:
    number of shards that changed their owner at a sync point.
    """

    def __init__(self, group: WorkerGroup, source: ShardSource, shards: int) -> None:
        self._group = group
        self._source = source
        self.workers = list(group.available)
        self.owners: tuple[str, ...] = ()
        self.costs = np.ones(shards)
        self._speeds = WorkerSpeeds()
        self.moved_shards = 0

    def initialise(self, stop: StopFlag) -> None:
        """Assign all shards evenly by their costs; the workers of a node are neighbours."""
        self.workers = group_by_node(self.workers, self._group.nodes)
        self.apply(assign_by_speed(self.costs, dict.fromkeys(self.workers, 1.0)), stop)

    def apply(self, owners: Sequence[str], stop: StopFlag | None = None) -> None:
        """Make each worker hold exactly the shards that it owns."""
        calls = [
            Call(
                worker,
                ShardWorker.hold_shards,
                [s for s, owner in enumerate(owners) if owner == worker],
            )
            for worker in self.workers
        ]
        unseen, infos = list[int](), list[ShardInfo]()
        for answer in list(call_many(self._group, calls, stop)):
            opened, not_opened = answer.result
            infos += opened
            unseen += not_opened
        for shard in unseen:  # one at a time: this process holds one shard in transit
            cut = self._group.put(self._source.cut_shard(shard))
            request = Call(owners[shard], ShardWorker.receive_shard, shard, at_worker(cut))
            infos.append(call(self._group, request).result)
        for info in infos:
            self.costs[info.shard] = info.cost
        self.owners = tuple(owners)

    def reset(self) -> None:
        """Reload all shards, without anything that they have computed."""
        self.call_all(ShardWorker.hold_shards, [])
        self.apply(self.owners)

    def call_all(
        self,
        method: Callable[Concatenate[ShardWorker, P], tuple[Any, Any]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of every worker, with positional arguments."""
        calls = [Call(worker, method, *args, **kwargs) for worker in self.workers]
        list(call_many(self._group, calls))

    def rebalance(self, speeds: Mapping[str, float], passes: int) -> None:
        """Move shards to faster workers at a sync point, if that makes intervals clearly shorter.

        speeds: measured in the last interval. passes: number of blocks that pass each shard in one.
        """
        self._speeds.update(speeds, self.workers)
        owners = self._speeds.better_assignment(self.owners, self.costs, passes)
        if owners is not None:
            self._move_shards(owners)

    def add_workers(self, workers: Sequence[str], speeds: Mapping[str, float]) -> None:
        """Give new workers their share of the shards, at a sync point.

        They are assumed to be as fast as the fastest known one.
        """
        self._speeds.update(speeds, self.workers)
        self.workers = group_by_node([*self.workers, *workers], self._group.nodes)
        self._move_shards(assign_by_speed(self.costs, self._speeds.speeds_of(self.workers)))

    def recover(self, lost: WorkerLost) -> None:
        """Replace lost workers where possible at once; otherwise the others take over their shards.

        Raises Unavailable if no worker is left.
        """
        # Without room, other workers of the same node need not be requested.
        error_of_place: Unavailable | None = None
        for worker in lost.workers:
            self._speeds.forget(worker)
            others = any(each not in lost.workers for each in self.workers)
            try:
                if error_of_place is None:
                    self._group.replace(worker, at_once=others)
                    continue
            except Unavailable as error:
                error_of_place = error
            self.workers.remove(worker)
        if error_of_place is not None and not self.workers:
            raise error_of_place

    @property
    def draining(self) -> dict[str, float]:
        """Workers on draining nodes with the seconds left; empty if all workers are on such nodes.

        In that case training goes on to the last moment.
        """
        draining = {
            worker: seconds
            for worker, seconds in self._group.draining_workers().items()
            if worker in self.workers
        }
        return draining if len(draining) < len(self.workers) else {}

    def release(self, workers: Sequence[str]) -> None:
        """Release workers on draining nodes."""
        self._group.release(*workers)
        for worker in workers:
            self._speeds.forget(worker)
        self.workers = [worker for worker in self.workers if worker not in workers]

    def _move_shards(self, owners: Sequence[str]) -> None:
        """Move shards to other owners, with their state of the last sync point."""
        moving = [shard for shard, owner in enumerate(owners) if owner != self.owners[shard]]
        snapshots = [
            require_ref(
                call(self._group, Call(self.owners[shard], ShardWorker.get_snapshot, shard)).ref
            )
            for shard in moving
        ]
        self.apply(owners)
        calls = [
            Call(owners[shard], ShardWorker.restore_shard, shard, at_worker(handle))
            for shard, handle in zip(moving, snapshots, strict=True)
        ]
        list(call_many(self._group, calls))
        self.moved_shards += len(moving)
