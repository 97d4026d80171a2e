"""A rotation: the schedule issues block passes, the worker group runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xcray.arrays import Float64
from xcray.errors import Stopped
from xcray.schedule.calls import Call, at_worker
from xcray.schedule.events import Done, Finish, Task
from xcray.schedule.rotation import BlockPass, RotationSchedule
from xcray.solvers.shard_contract import (
    BlockWorker,
    CellReport,
    PlacedBlock,
    Rotation,
    WeightBlock,
)
from xcray.training.program_loop import TIME_LIMIT
from xcray.training.shards.shard_worker import ShardWorker
from xcray.workers.calls import POLL_SECONDS, WorkerLost, results_of, span_of
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import LOST, STOPPED, Span
from xcray.workers.worker_group import CallResult, WorkerGroup


class WorkerPace(NamedTuple):
    """Work of a worker in a rotation: shard -> number of block passes, and shard -> seconds."""

    cells: dict[int, int]
    seconds: dict[int, float]


class MeasuredRotation(NamedTuple):
    """Result of a rotation, with the pace of each worker and the number of passes."""

    rotation: Rotation
    paces: dict[str, WorkerPace]
    n_passes: int


def run_rotation(
    schedule: RotationSchedule,
    group: WorkerGroup,
    blocks: Sequence[PlacedBlock],
    steps: Sequence[Any],
    *,
    stop: StopFlag,
    tick: Callable[[float], None] = lambda share: None,
    record: Callable[[Span], None] = lambda span: None,
    ends: float | None = None,
) -> MeasuredRotation:
    """Run `schedule` on `group` until all blocks are at rest.

    blocks: their objects are not changed. steps: what each sweep does.
    tick: called after every wait with the share of the cells that is done.
    record: called with each pass, as a task with its number in the rotation, whose one label is the
    number of the block. ends: time limit on the clock of `time.monotonic`.
    Raises Stopped if `stop` is set, and at the time limit with code TIME; WorkerLost; and what a
    pass raised. After each of these the shards are in an intermediate state: they must be rolled
    back before the next rotation.
    """
    loop = _RotationLoop(schedule, group, blocks, steps, record)
    loop.execute(schedule.start())
    try:
        while not loop.finished:
            replies = group.wait(POLL_SECONDS)
            if stop.is_set():
                raise Stopped("stopped on request; the next run goes on from the last checkpoint")
            if ends is not None and time.monotonic() > ends:
                raise Stopped("the time limit was reached", code=TIME_LIMIT)
            for reply in results_of(replies, loop.tickets):
                loop.handle(reply)
            tick(schedule.done_cells / max(schedule.total_cells, 1))
    except WorkerLost as lost:
        loop.record_running(lost.workers)
        raise
    # also raised by `tick`
    except Stopped:
        group.interrupt()
        loop.record_running(())
        raise
    return loop.result


class _RotationLoop:
    """State of one rotation: the place of each block, and the pass of each pending ticket."""

    def __init__(
        self,
        schedule: RotationSchedule,
        group: WorkerGroup,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
        record: Callable[[Span], None],
    ) -> None:
        self._schedule = schedule
        self._group = group
        self._steps = steps
        self._record = record
        self._blocks = list(blocks)
        self._reports = list[CellReport]()
        self._paces = {worker: WorkerPace({}, {}) for worker in group.workers}
        self._owned = [False] * len(blocks)  # created in this rotation, so it is not shared
        several_nodes = len(set(group.nodes.values())) > 1
        self._method: Callable[..., tuple[WeightBlock | None, list[tuple[int, Any, float]]]] = (
            ShardWorker.pass_block_copied if several_nodes else BlockWorker.pass_block
        )
        self.tickets: dict[int, BlockPass] = {}
        # worker -> end of its last pass, on the group's clock
        self._ends: dict[str, float] = {}
        # the same moment on the group's clock and on the local one
        self._seen = (0.0, time.monotonic())
        self.finished = False
        self._n_passes = 0

    @property
    def result(self) -> MeasuredRotation:
        """Return what was done so far."""
        rotation = Rotation(self._blocks, self._reports)
        return MeasuredRotation(rotation, self._paces, self._n_passes)

    def execute(self, commands: Sequence[BlockPass | Finish]) -> None:
        """Submit passes. A finish with a reason was raised as WorkerLost before."""
        for command in commands:
            if isinstance(command, Finish):
                self.finished = True
                continue
            self._n_passes += 1
            block = at_worker(self._blocks[command.block].handle)
            step, owned = self._steps[command.sweep], self._owned[command.block]
            call = Call(command.worker, self._method, block, command.shards, step, owned)
            self.tickets[self._group.submit(call)] = command

    def handle(self, reply: CallResult[WeightBlock, list[tuple[int, Any, float]]]) -> None:
        """Store the result of a pass, then execute the next commands of the schedule."""
        block_pass = self.tickets.pop(reply.ticket)
        block = block_pass.block
        if reply.ref is not None:  # otherwise the block is unchanged
            self._owned[block] = True
        handle = reply.ref or self._blocks[block].handle
        self._blocks[block] = PlacedBlock(reply.worker, handle)
        pace = self._paces[reply.worker]
        for shard, report, seconds in reply.result:
            pace.cells[shard] = pace.cells.get(shard, 0) + 1
            pace.seconds[shard] = pace.seconds.get(shard, 0.0) + seconds
            self._reports.append(CellReport(block, shard, report))
        self._ends[reply.worker] = reply.started + reply.seconds
        self._seen = self._ends[reply.worker], time.monotonic()
        self._record(span_of(reply, self._task(block_pass)))
        self.execute(self._schedule.on(Done(reply.worker, block_pass.id, reply.seconds)))

    def record_running(self, lost: Sequence[str]) -> None:
        """Record the first pending pass of each worker at an interruption."""
        then, moment = self._seen
        now, recorded = then + time.monotonic() - moment, set[str]()
        for block_pass in self._schedule.running_passes():
            if block_pass.worker not in recorded:
                recorded.add(block_pass.worker)
                started = self._ends.get(block_pass.worker, now)
                outcome = LOST if block_pass.worker in lost else STOPPED
                self._record(
                    Span(
                        block_pass.worker,
                        self._task(block_pass),
                        started,
                        max(0.0, now - started),
                        outcome,
                    )
                )

    def _task(self, block_pass: BlockPass) -> Task:
        """Return a pass as a task of the timeline."""
        return Task(block_pass.id, (block_pass.block,), 0.0)


def measured_speeds(paces: Mapping[str, WorkerPace], costs: Float64) -> dict[str, float]:
    """Return the speed of each worker that worked: cost (`costs` (S,) per cell) per second."""
    speeds = {}
    for worker, pace in paces.items():
        seconds = sum(pace.seconds.values())
        if seconds > 0.0:
            speeds[worker] = (
                sum(float(costs[shard]) * cells for shard, cells in pace.cells.items()) / seconds
            )
    return speeds
