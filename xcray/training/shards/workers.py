"""The workers of a training by shards: their shards and their state, see `TrainingWorkers`.

At sync points shards move to faster workers, and draining nodes are left. With the orders "sync"
and "ring" the blocks at each sync point depend only on the grid, the data and the solver. They do
not depend on the workers, the shard assignment, losses or resumes. So a training that was
interrupted and resumed ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from xcray.arrays import Int64
from xcray.errors import Corrupt, Stopped, Unavailable
from xcray.solvers.group_contract import Program
from xcray.solvers.shard_contract import ShardSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.program_loop import NODE_LEAVES, TrainingWorkers
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.calls import ShardCalls
from xcray.training.shards.checkpoints import load_checkpoint, save_checkpoint
from xcray.training.shards.rotate import measured_speeds
from xcray.training.shards.source import ShardSource
from xcray.training.shards.task import ShardTask
from xcray.workers.calls import WorkerLost
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import Span
from xcray.workers.worker_group import WorkerGroup

MAX_LOSSES_PER_WORKER: Final = 5  # losses before giving up, per worker
# in addition to the time of the last checkpoint
LEAVE_MARGIN_SECONDS: Final = 5.0


class ShardWorkers(TrainingWorkers):
    """Workers of an open group that hold shards, with blocks that rotate over them.

    source: rows of the shards, for workers that do not see the data set's directory. folder: of the
    checkpoints, None for none: then draining nodes are not left. Rotations end at the time limit of
    the task, and soon after `stop` is set. record: receives what workers did.
    """

    keeps_state = True

    def __init__(
        self,
        solver: ShardSolver,
        group: WorkerGroup,
        source: ShardSource,
        task: ShardTask,
        folder: CheckpointFolder | None,
        *,
        stop: StopFlag,
        record: Callable[[Span], None],
    ) -> None:
        self._solver = solver
        self._group = group
        self._rows = task.rows
        self._folder = folder
        self._stop = stop
        self._assignment = ShardAssignment(group, source, task.grid.shards)
        self._calls = ShardCalls(
            group,
            self._assignment,
            task.grid,
            task.rows.Y.n_cols,
            order=solver.order,
            ends=None if task.max_seconds is None else time.monotonic() + task.max_seconds,
            stop=stop,
            record=record,
            tick=self._tick,
            rebalance=self._rebalance,
        )
        # shards can be in an intermediate state
        self._has_begun = False
        self._lost = 0
        self.note = ""
        self.on_progress: Callable[[float], None] = lambda ahead: None

    @property
    def lost(self) -> int:
        """Number of workers that were lost."""
        return self._lost

    @property
    def moved(self) -> int:
        """Number of shards that moved to another worker."""
        return self._assignment.moved_shards

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a node is about to go; if all are, work goes on to the last moment."""
        return bool(self._group.draining_workers())

    def restore(self, folder: CheckpointFolder | None) -> TrainingState | None:
        """Assign all shards and restore the newest valid checkpoint, or the start."""
        self._assignment.initialise(self._stop)
        self._calls.last = None
        began, self._has_begun = self._has_begun, True
        while folder is not None and (saved := folder.newest_files()) is not None:
            owners, n_blocks = self._assignment.owners, self._calls.grid.blocks
            try:
                blocks = load_checkpoint(self._group, saved, owners, n_blocks)
            except Corrupt:
                folder.set_aside(saved.path)
                continue
            return TrainingState(saved.note, {}, blocks)
        if began:  # there is no snapshot to go back to
            self._assignment.reset()
        return None

    def program(self, state: TrainingState | None) -> Program:
        """Return the solver's program from a state on."""
        return self._solver.program(self._calls, self._rows, state)

    def save(self, folder: CheckpointFolder, number: int, state: TrainingState) -> None:
        """Save a state with the snapshots of all shards."""
        owners = self._assignment.owners
        save_checkpoint(folder, self._group, number, state.note, state.placed, owners)

    def export(self, state: TrainingState, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the labels of each block."""
        return self._solver.export(self._calls, state, positives)

    def recover(self, error: Unavailable) -> str:
        """Go on with replacements or with the remaining workers; return what happened.

        Raises Unavailable after MAX_LOSSES_PER_WORKER losses per worker, or if no worker is left.
        """
        if not isinstance(error, WorkerLost):
            raise error
        self._lost += max(1, len(error.workers))
        self._group.interrupt()  # the running calls are not needed any more
        allowed = MAX_LOSSES_PER_WORKER * len(self._group.workers)
        if self._lost - self._group.status().lost_with_nodes > allowed:
            raise Unavailable(
                f"{self._lost} workers were lost one after the other; "
                "check their logs and memory, then resume",
                code="WORKERS_LOST",
            ) from error
        self._assignment.recover(error)
        return error.message

    def leave(self) -> None:
        """Leave draining nodes; the other workers go on from the checkpoint."""
        leaving = list(self._assignment.draining)
        if leaving:  # otherwise they are no longer draining, or gone
            self._assignment.release(leaving)
            self.note = f"left before their node goes: {', '.join(leaving)}"

    def _tick(self, ahead: float, left: float) -> None:
        """Report that `ahead` epochs of a rotation are done; left: seconds to its end.

        Raises Stopped (LEAVE) if its end would come too late for a draining node.
        """
        self.on_progress(ahead)
        if self._folder is None:
            return
        soonest = min(self._assignment.draining.values(), default=math.inf)
        if soonest < left + self._folder.seconds_to_save + LEAVE_MARGIN_SECONDS:
            raise Stopped("a node is about to go", code=NODE_LEAVES)

    def _rebalance(self) -> None:
        """Leave draining nodes, add new workers, or move shards to faster workers."""
        if self._folder is not None and self._assignment.draining:
            raise Stopped("a node is about to go", code=NODE_LEAVES)
        last = self._calls.last
        if last is None:
            return
        speeds = measured_speeds(last.paces, self._assignment.costs)
        if joined := self._group.poll_new_workers():
            self._assignment.add_workers(joined, speeds)
            self.note = f"{', '.join(joined)} joined"
        else:
            passes = len(last.rotation.reports) // self._calls.grid.shards
            self._assignment.rebalance(speeds, passes)
