"""What a program does with the workers of a training by shards; see `RotationCalls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from xcray.schedule.calls import Call
from xcray.schedule.rotation import RotationSchedule
from xcray.solvers.group_contract import Grid
from xcray.solvers.shard_contract import PlacedBlock, Rotation, WeightBlock
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.rotate import MeasuredRotation, run_rotation
from xcray.training.shards.shard_worker import ShardWorker
from xcray.workers.calls import RecordedGroup, call_many, fetch, require_ref
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import Span
from xcray.workers.worker_group import WorkerGroup

T = TypeVar("T")
R = TypeVar("R")
# orders that can pass all workers of a node before the next node
RANDOM_ORDERS: Final = ("uniform", "shortest")


class ShardCalls:
    """Calls of the workers of an open group that own the shards of an assignment.

    order: of the rotations. ends: time limit on the clock of `time.monotonic`. record: receives
    each pass, numbered from the first pass of the training, and other calls. tick: called during a
    rotation with the epochs done in it, and the seconds that are left of it. rebalance: called
    before a rotation that begins at a sync point.
    """

    def __init__(
        self,
        group: WorkerGroup,
        assignment: ShardAssignment,
        grid: Grid,
        n_labels: int,
        *,
        order: str,
        ends: float | None,
        stop: StopFlag,
        record: Callable[[Span], None],
        tick: Callable[[float, float], None],
        rebalance: Callable[[], None],
    ) -> None:
        self._group = group
        self._assignment = assignment
        self.grid = grid
        self.n_labels = n_labels
        self._order = order
        self._ends = ends
        self._stop = stop
        self._record = record
        self._recorded = RecordedGroup(group, record)
        self._tick = tick
        self._rebalance = rebalance
        self._is_sync_point = False  # since the last rotation
        self._n_passes = 0
        self._seconds = 0.0  # of the last rotation
        self.last: MeasuredRotation | None = None

    def create_blocks(
        self, method: Callable[[Any, int, int], tuple[WeightBlock, None]]
    ) -> list[PlacedBlock]:
        """Call `method(lo, hi)` for each block, on workers in turn."""
        owners, n = self._assignment.owners, self.grid.blocks
        ends = [self.n_labels * block // n for block in range(n + 1)]
        calls = [
            Call(owners[block * len(owners) // n], method, ends[block], ends[block + 1])
            for block in range(n)
        ]
        replies = call_many(self._group, calls)
        return [PlacedBlock(reply.worker, require_ref(reply.ref)) for reply in replies]

    def rotate(
        self,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
        *,
        seed: int,
        epochs: int,
        first: int = 0,
    ) -> Rotation:
        """Let every block pass every shard, once per step."""
        if self._is_sync_point:
            self._is_sync_point = False
            self._rebalance()
        began = time.monotonic()

        def tick(share: float) -> None:
            took = time.monotonic() - began
            left = took * (1.0 - share) / share if share > 0.0 else self._seconds - took
            self._tick(share * epochs, max(0.0, left))

        schedule = RotationSchedule(
            self._assignment.owners,
            self.grid.blocks,
            len(steps),
            order=self._order,
            first=first,
            seed=seed,
            nodes=self._group.nodes if self._order in RANDOM_ORDERS else None,
        )
        self.last = run_rotation(
            schedule,
            self._group,
            blocks,
            steps,
            stop=self._stop,
            tick=tick,
            record=self._record_pass,
            ends=self._ends,
        )
        self._n_passes += self.last.n_passes
        self._seconds = time.monotonic() - began
        return self.last.rotation

    def call_many(self, calls: Sequence[Call[Any, R]]) -> list[R]:
        """Run calls of single workers and return the result of each, in order."""
        return [reply.result for reply in call_many(self._recorded, calls)]

    def create_many(self, calls: Sequence[Call[WeightBlock, Any]]) -> list[PlacedBlock]:
        """Run calls of single workers that create an object each; return where these are."""
        return [
            PlacedBlock(reply.worker, require_ref(reply.ref))
            for reply in call_many(self._recorded, calls)
        ]

    def fetch_many(self, calls: Sequence[Call[T, Any]]) -> Iterator[T]:
        """Run calls of single workers and yield the object of each, in order."""
        for reply in call_many(self._group, calls, self._stop):
            yield fetch(self._group, reply.ref)

    def keep_shards(self) -> None:
        """Take a snapshot of the state of all shards."""
        self._assignment.call_all(ShardWorker.take_snapshots)
        self._is_sync_point = True

    def restore_shards(self) -> None:
        """Restore all shards from their last snapshots."""
        self._assignment.call_all(ShardWorker.roll_back)
        self._is_sync_point = True

    def _record_pass(self, span: Span) -> None:
        """Record a pass of a rotation, numbered from the first pass of the training."""
        # a pass finishes no label
        task = replace(span.task, id=self._n_passes + span.task.id, labels=())
        self._record(span._replace(task=task))
