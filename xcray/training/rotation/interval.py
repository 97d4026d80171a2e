"""One interval: the schedule issues block passes, the worker group runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from xcray.errors import Stopped
from xcray.schedule.calls import Call, ObjectHandle, at_worker
from xcray.schedule.events import Done, Finish, Task
from xcray.schedule.rotation import BlockPass, RotationSchedule
from xcray.solvers.rotation_contract import PassMetrics, Step, SweepMetrics, WeightBlock
from xcray.training.rotation.shard_worker import ShardWorker
from xcray.workers.pool import StopFlag
from xcray.workers.rpc import POLL_SECONDS, WorkerLost, results_of, span_of
from xcray.workers.timeline import LOST, STOPPED, Span
from xcray.workers.worker_group import CallResult, WorkerGroup

TIME_LIMIT: Final = "TIME"  # code of the Stopped at the time limit

# metrics and seconds of a block pass, by shard
PassResults: TypeAlias = list[tuple[int, PassMetrics, float]]
PassMethod: TypeAlias = Callable[
    [ShardWorker, WeightBlock, Sequence[int], Step, bool], tuple[WeightBlock | None, PassResults]
]


class WorkerPace(NamedTuple):
    """Work of a worker in an interval: shard -> number of block passes, and shard -> seconds."""

    cells: dict[int, int]
    seconds: dict[int, float]


class IntervalResult(NamedTuple):
    """Result of an interval.

    blocks: a handle of each block. locations: the worker that changed each block last.
    squared: |W|^2 of each block, if reported. metrics: of each shard's last sweep that had some.
    paces: by worker. n_passes: number of passes.
    """

    blocks: list[ObjectHandle[WeightBlock]]
    locations: list[str]
    squared: list[float | None]
    metrics: dict[int, SweepMetrics]
    paces: dict[str, WorkerPace]
    n_passes: int


def run_interval(
    schedule: RotationSchedule,
    group: WorkerGroup,
    blocks: Sequence[ObjectHandle[WeightBlock]],
    steps: Sequence[Step],
    *,
    stop: StopFlag,
    tick: Callable[[float], None] = lambda share: None,
    record: Callable[[Span], None] = lambda span: None,
    ends: float | None = None,
) -> IntervalResult:
    """Run `schedule` on `group` until all blocks are at rest.

    blocks: one handle each; their objects are not changed. steps: what each sweep does.
    tick: called after every wait with the share of the cells that is done.
    record: called with each pass, as a task with its number in the interval, whose one label is the
    number of the block. ends: time limit on the clock of `time.monotonic`.
    Raises Stopped if `stop` is set, and at the time limit with code TIME; WorkerLost; and what a
    pass raised. After each of these the shards are in an intermediate state: they must be rolled
    back before the next interval.
    """
    loop = _IntervalLoop(schedule, group, blocks, steps, record)
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
    return loop.result._replace(n_passes=loop.n_passes)


class _IntervalLoop:
    """State of one interval: the handle of each block, and the pass of each pending ticket."""

    def __init__(
        self,
        schedule: RotationSchedule,
        group: WorkerGroup,
        blocks: Sequence[ObjectHandle[WeightBlock]],
        steps: Sequence[Step],
        record: Callable[[Span], None],
    ) -> None:
        self._schedule = schedule
        self._group = group
        self._steps = steps
        self._record = record
        n = len(blocks)
        paces = {worker: WorkerPace({}, {}) for worker in group.workers}
        self.result = IntervalResult(list(blocks), [""] * n, [None] * n, {}, paces, 0)
        self._owned = [False] * n  # created in this interval, so it is not shared
        several_nodes = len(set(group.nodes.values())) > 1
        self._method: PassMethod = (
            ShardWorker.pass_block_copied if several_nodes else ShardWorker.pass_block
        )
        self.tickets: dict[int, BlockPass] = {}
        # worker -> end of its last pass, on the group's clock
        self._ends: dict[str, float] = {}
        # the same moment on the group's clock and on the local one
        self._seen = (0.0, time.monotonic())
        self.finished = False
        self.n_passes = 0

    def execute(self, commands: Sequence[BlockPass | Finish]) -> None:
        """Submit passes. A finish with a reason was raised as WorkerLost before."""
        for command in commands:
            if isinstance(command, Finish):
                self.finished = True
                continue
            self.n_passes += 1
            handle, owned = self.result.blocks[command.block], self._owned[command.block]
            step = self._steps[command.sweep]
            call = Call(
                command.worker, self._method, at_worker(handle), command.shards, step, owned
            )
            self.tickets[self._group.submit(call)] = command

    def handle(self, reply: CallResult[WeightBlock, PassResults]) -> None:
        """Store the result of a pass, then execute the next commands of the schedule."""
        block_pass = self.tickets.pop(reply.ticket)
        if reply.ref is not None:  # otherwise the block is unchanged
            self.result.blocks[block_pass.block] = reply.ref
            self._owned[block_pass.block] = True
        self.result.locations[block_pass.block] = reply.worker
        pace = self.result.paces[reply.worker]
        for shard, metrics, seconds in reply.result:
            pace.cells[shard] = pace.cells.get(shard, 0) + 1
            pace.seconds[shard] = pace.seconds.get(shard, 0.0) + seconds
            if metrics.squared is not None:
                self.result.squared[block_pass.block] = metrics.squared
            if metrics.sweep is not None:
                self.result.metrics[shard] = metrics.sweep
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


def measured_speeds(paces: dict[str, WorkerPace], costs: Any) -> dict[str, float]:
    """Return the speed of each worker that worked: cost (`costs` (S,) per cell) per second."""
    speeds = {}
    for worker, pace in paces.items():
        seconds = sum(pace.seconds.values())
        if seconds > 0.0:
            speeds[worker] = (
                sum(float(costs[shard]) * cells for shard, cells in pace.cells.items()) / seconds
            )
    return speeds
