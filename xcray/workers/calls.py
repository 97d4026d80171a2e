"""The calls of a program on the workers of a training, see `solvers.group_contract.WorkerCalls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from xcray.errors import Stopped, Unavailable
from xcray.schedule.calls import Call, ObjectHandle, at_worker
from xcray.schedule.rotation import BlockPass, RotationSchedule
from xcray.solvers.group_contract import (
    CellReport,
    Layout,
    PlacedBlock,
    Rotation,
    WeightBlock,
    WorkerCalls,
)
from xcray.solvers.shard_contract import grid_of
from xcray.workers.call_queue import (
    POLL_SECONDS,
    CallQueue,
    WorkerLost,
    call_many,
    fetch,
    require_ref,
)
from xcray.workers.parts import Parts
from xcray.workers.timeline import Span
from xcray.workers.worker_group import CallResult, WorkerGroup

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
MAX_LOSSES_PER_WORKER: Final = 5  # in one call
TIME_LIMIT: Final = "TIME"  # code of the Stopped at the time limit, within a round
# orders that can pass all workers of a node before the next node
RANDOM_ORDERS: Final = ("uniform", "shortest")


class PassingWorker(Protocol):
    """Worker that holds shards."""

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Any, owned: bool, copied: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, Any, float]]]:
        """See `shard_contract.BlockWorker`; copied: create also a block that is unchanged."""


class GroupCalls(WorkerCalls):
    """Calls of the workers of an open group, by the parts of the training that they hold.

    Results of `call` are in the order of parts, so sums of them do not depend on the order of
    arrival. The methods of these workers are pure functions of their arguments and of the rows. So
    when a worker is lost, another one gets the same call. Blocks that were at a lost worker are
    gone: then WorkerLost is raised.

    parts: by default the shares of a worker each. ends: time limit of rotations on the clock of
    `time.monotonic`. record: receives the span of each call. on_progress: called in a rotation with
    the epochs done in it and its seconds left; on_sync_point: before a rotation that begins at one.
    lost: number of workers lost in calls. sweeps: of the last rotation; speeds: cost per second of
    each worker that worked in it.
    """

    def __init__(
        self,
        group: WorkerGroup,
        stopped: Callable[[], bool] = lambda: False,
        record: Callable[[Span], None] = lambda span: None,
        *,
        parts: Parts | None = None,
        layout: Layout | None = None,
        ends: float | None = None,
    ) -> None:
        self._group = group
        self._stopped = stopped
        self._record = record
        self._parts = parts or Parts(group, len(group.workers))
        self._layout = layout or Layout(self._parts.n)
        self._ends = ends
        self.on_progress: Callable[[float, float], None] = lambda epochs, left: None
        self.on_sync_point: Callable[[], None] = lambda: None
        self._is_sync_point = False  # since the last rotation
        self._seconds = 0.0  # of the last rotation
        self.speeds: dict[str, float] = {}
        self.sweeps = self.lost = 0

    @property
    def layout(self) -> Layout:
        """Return the layout of the training."""
        return self._layout

    @property
    def size(self) -> int:
        """Return the number of shares."""
        return self._parts.n

    def call(
        self, method: Callable[Concatenate[Any, P], tuple[T, R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Run a method on every share and return (handle, result) of each, in order.

        Raises Stopped, what a method raised, and Unavailable if workers keep being lost.
        """
        return self._run(method, [()] * self.size, args, kwargs)

    def call_each(
        self,
        method: Callable[Concatenate[Any, A, P], tuple[T, R]],
        each: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Do the same with a first argument for each share."""
        if len(each) != self.size:
            raise ValueError(f"{len(each)} arguments for {self.size} workers")
        return self._run(method, [(own,) for own in each], args, kwargs)

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of `value`."""
        return self._group.put(value)

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object of a handle, read-only."""
        if self._stopped():
            raise Stopped("stopped on request; the next run goes on from the last checkpoint")
        return fetch(self._group, handle)

    def create_blocks(
        self, method: Callable[[Any, int, int], tuple[WeightBlock, None]], n_labels: int
    ) -> list[PlacedBlock]:
        """Call `method(lo, hi)` for each block, on workers in turn."""
        owners, n = self._parts.owners, grid_of(self._layout).blocks
        ends = [n_labels * block // n for block in range(n + 1)]
        calls = [
            Call(owners[block * len(owners) // n], method, ends[block], ends[block + 1])
            for block in range(n)
        ]
        replies = call_many(self._group, calls)
        return [PlacedBlock(reply.worker, require_ref(reply.ref)) for reply in replies]

    def call_many(self, calls: Sequence[Call[Any, R]]) -> Iterator[tuple[PlacedBlock, R]]:
        """Run calls of single workers; yield the object and the result of each, in order."""
        for reply in call_many(self._group, calls, record=self._record):
            yield PlacedBlock(reply.worker, cast("ObjectHandle[Any]", reply.ref)), reply.result

    def rotate(
        self,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
        *,
        order: str,
        seed: int,
        epochs: int,
        first: int = 0,
    ) -> Rotation:
        """Let every block pass every shard, once per step.

        Raises Stopped, at the time limit with code TIME; WorkerLost; and what a pass raised. After
        each of these the shards are in an intermediate state: they must be restored before the next
        rotation.
        """
        if self._is_sync_point:
            self._is_sync_point = False
            self.on_sync_point()
        schedule = RotationSchedule(
            self._parts.owners,
            len(blocks),
            len(steps),
            order=order,
            first=first,
            seed=seed,
            nodes=self._group.nodes if order in RANDOM_ORDERS else None,
        )
        queue = CallQueue(self._group, self._stopped, self._record)
        rotation = _RunningRotation(schedule, self._group, queue, blocks, steps)
        began = time.monotonic()
        rotation.submit(schedule.start())
        while schedule.done_cells < schedule.total_cells:
            for block_pass, reply in queue.results():
                rotation.on_pass(block_pass, reply)
            try:
                self._report(schedule, epochs, time.monotonic() - began)
            except Stopped:
                queue.interrupt()
                raise
        self._seconds = time.monotonic() - began
        self.speeds, self.sweeps = rotation.speeds(self._parts.costs), len(steps)
        return Rotation(rotation.blocks, rotation.reports)

    def keep_state(self) -> None:
        """Take a snapshot of the state of all shards."""
        self._parts.keep_state()
        self._is_sync_point = True

    def restore_state(self) -> None:
        """Restore all shards from their last snapshots."""
        self._parts.restore_state()
        self._is_sync_point = True

    def _report(self, schedule: RotationSchedule, epochs: int, took: float) -> None:
        """Report the progress of a rotation. Raises Stopped, at the time limit with code TIME."""
        if self._ends is not None and time.monotonic() > self._ends:
            raise Stopped("the time limit was reached", code=TIME_LIMIT)
        done = schedule.done_cells / schedule.total_cells
        left = took * (1.0 - done) / done if done > 0.0 else self._seconds - took
        self.on_progress(done * epochs, max(0.0, left))

    def _run(
        self,
        method: Callable[..., tuple[T, R]],
        firsts: Sequence[tuple[Any, ...]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Run one call per share; a lost worker's calls are run again by the next owner.

        firsts: the first arguments of each.
        """
        queue = CallQueue(self._group, self._stopped, self._record)
        own = dict(zip(range(self.size), firsts, strict=True))
        results: dict[int, CallResult[T, R]] = {}
        lost_before, seconds = self.lost, 0.0  # first those that were lost since the last call
        while len(results) < self.size:
            try:
                if not self._parts.owners:
                    self._parts.place(self._stopped)
                results.update(queue.results(seconds))
            except WorkerLost as lost:
                if not lost.workers:  # a node with an argument
                    raise
                self.lost += len(lost.workers)
                if self.lost - lost_before > MAX_LOSSES_PER_WORKER * self.size:
                    raise Unavailable(
                        f"{self.lost - lost_before} workers were lost in one round; "
                        "see the logs of the workers"
                    ) from lost
                self._parts.recover(lost)
                results = {
                    share: reply
                    for share, reply in results.items()
                    if reply.worker not in lost.workers
                }
            for share in sorted(own.keys() - results.keys() - queue.keys):
                owner = self._parts.owners[share]
                call = Call(owner, method, share, *own[share], *args, **kwargs)
                queue.submit(share, call.of(f"share {share}"))
            seconds = POLL_SECONDS
        # A method without an object has no handle; T is None then.
        replies = (results[share] for share in range(self.size))
        return [(cast("ObjectHandle[T]", reply.ref), reply.result) for reply in replies]


class _RunningRotation:
    """One rotation: the place of each block, the reports, and the work of each worker."""

    def __init__(
        self,
        schedule: RotationSchedule,
        group: WorkerGroup,
        queue: CallQueue,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
    ) -> None:
        self._schedule = schedule
        self._queue = queue
        self._steps = steps
        # otherwise each node that a block passed would keep a copy, in the end all of W
        self._copied = len(set(group.nodes.values())) > 1
        self._owned = [False] * len(blocks)  # created in this rotation, so it is not shared
        self._cells: dict[str, list[tuple[int, float]]] = {}  # worker -> shards and seconds
        self.blocks = list(blocks)
        self.reports = list[CellReport]()

    def submit(self, passes: Sequence[BlockPass]) -> None:
        """Submit passes."""
        for each in passes:
            block = at_worker(self.blocks[each.block].handle)
            args = (block, each.shards, self._steps[each.sweep], self._owned[each.block])
            call = Call(each.worker, PassingWorker.pass_block, *args, self._copied)
            self._queue.submit(each, call.of(f"block {each.block}"))

    def on_pass(self, done: BlockPass, reply: CallResult[Any, Any]) -> None:
        """Store the result of a pass, then submit the next ones."""
        if reply.ref is not None:  # otherwise the block is unchanged
            self._owned[done.block] = True
        handle = reply.ref or self.blocks[done.block].handle
        self.blocks[done.block] = PlacedBlock(reply.worker, handle)
        for shard, report, seconds in reply.result:
            self._cells.setdefault(reply.worker, []).append((shard, seconds))
            self.reports.append(CellReport(done.block, shard, report))
        self.submit(self._schedule.complete(reply.worker, done.id))

    def speeds(self, costs: Any) -> dict[str, float]:
        """Return the speed of each worker that worked: cost (`costs` (S,) per cell) per second."""
        speeds = {}
        for worker, cells in self._cells.items():
            seconds = sum(seconds for _, seconds in cells)
            if seconds > 0.0:
                speeds[worker] = sum(float(costs[shard]) for shard, _ in cells) / seconds
        return speeds
