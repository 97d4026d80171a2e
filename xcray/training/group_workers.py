"""The workers of a group, as the loop around programs sees them (`program_loop`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xcray.arrays import Int64, csr, pattern
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, Stopped, Unavailable, XcrayError
from xcray.solvers.group_contract import GroupSolver, Layout, Program, StateLost, TrainingRows
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.epoch_strategy import training_rows
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.shard_worker import ShardWorker
from xcray.training.shards.source import ShardSource, SplitPlan, split_plan
from xcray.workers.call_queue import WorkerLost
from xcray.workers.calls import GroupCalls
from xcray.workers.parts import Parts, ShareWorker
from xcray.workers.worker_group import WorkerGroup

MAX_LOSSES_PER_WORKER: Final = 5  # losses before giving up, per worker, since a newer checkpoint
# in addition to the time of the last checkpoint
LEAVE_MARGIN_SECONDS: Final = 5.0
NODE_LEAVES: Final = "LEAVE"  # code of the Stopped before a node goes


@dataclass(frozen=True)
class RowWorkerFactory:
    """Creates the workers of a training from rows in this process.

    split: of rows into shards, for layouts with a grid.
    """

    solver: Any
    rows: TrainingRows
    layout: Layout
    split: SplitPlan | None = None

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return a worker without shards, or without shares of the rows."""
        create = self.solver.create_worker
        if self.split is None:
            return ShareWorker(lambda share: create(self.open_rows(), share, self.layout, stopped))
        none = empty_rows(self.rows.X.n_cols, self.rows.Y.n_cols)
        return ShardWorker(create(none, 0, self.layout, stopped), self.open_source)

    def open_rows(self) -> TrainingRows:
        """Return the rows. Raises Unavailable if they are not here."""
        return self.rows

    def open_source(self) -> ShardSource | None:
        """Return what shards are cut from, None if the driver has to send them."""
        assert self.layout.grid is not None
        assert self.split is not None
        try:
            return ShardSource(self.layout.grid, self.split, self.open_rows())
        except Unavailable:
            return None

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


@dataclass(frozen=True)
class GroupWorkerFactory(RowWorkerFactory):
    """Creates the workers of a training from rows on disk, in any process.

    solver: its class must be importable by the workers. rows: none, with the numbers of features
    and labels. path, content_hash: of the data set, which the nodes of shares must see.
    """

    path: str = ""
    content_hash: str = ""

    def open_rows(self) -> TrainingRows:
        """Map the rows."""
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"a worker does not see the data set ({error.message}): "
                "put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        return training_rows(data)


def empty_rows(n_features: int, n_labels: int) -> TrainingRows:
    """Return no rows, with the numbers of features and labels."""
    return TrainingRows(csr([0], [], [], n_features), pattern([0], [], n_labels))


def shard_source(solver: Any, layout: Layout, rows: TrainingRows) -> ShardSource | None:
    """Return what the shards of a layout are cut from; None if it has none."""
    if layout.grid is None:
        return None
    split = split_plan(rows, layout.grid, solver.seed, solver.bias)
    return ShardSource(layout.grid, split, rows)


def make_parts(group: WorkerGroup, layout: Layout, source: ShardSource | None) -> Parts:
    """Return the parts of a layout: its shards, which are cut from `source`, or its shares."""
    if layout.grid is None or source is None:
        return Parts(group, layout.workers)
    return ShardAssignment(group, source, layout.grid)


class GroupWorkers:
    """Workers of an open group that run the calls of a program.

    Shares: a lost worker's calls are run again by the next owner; with each checkpoint new workers
    are taken over and draining nodes left. Shards: workers have the state of a round, and after a
    loss the program starts again; at sync points shards move and draining nodes are left. What a
    program yields depends on the layout, the data and the solver, not on workers, losses or
    resumes. folder: of the checkpoints; without any, workers only change after losses.

    keeps_state: whether the state of a round stays as it is while the program goes on, so that it
    can be saved later. note: what happened since the last report, for people. seconds_left: to the
    end of the training as of the last report, None if unknown. on_progress: called within a round
    with the epochs that are done in it.
    """

    def __init__(
        self,
        solver: GroupSolver,
        rows: TrainingRows,
        parts: Parts,
        calls: GroupCalls,
        folder: CheckpointFolder | None,
        stopped: Callable[[], bool],
    ) -> None:
        self._solver = solver
        self._rows = rows
        self._parts = parts
        self._calls = calls
        self._folder = folder
        self._stopped = stopped
        self._farthest = -1  # rounds in the newest checkpoint
        self._lost = self._restarts = 0  # workers; losses since that checkpoint
        self.keeps_state = parts.keeps_state
        self.note = ""
        self.seconds_left: float | None = None
        self.on_progress: Callable[[float], None] = lambda ahead: None
        calls.on_progress = self._on_progress
        calls.on_sync_point = self._on_sync_point

    @property
    def lost(self) -> int:
        """Number of workers that were lost."""
        return self._lost + self._calls.lost

    @property
    def moved(self) -> int:
        """Number of shards that moved to another worker."""
        return self._parts.moved

    @property
    def wants_checkpoint(self) -> bool:
        """Whether workers come or go after the next checkpoint."""
        return self._parts.has_changes(self.seconds_left)

    def restore(self, folder: CheckpointFolder | None) -> TrainingState | None:
        """Assign all parts, and restore the newest valid checkpoint, or the start."""
        self._parts.place(self._stopped)
        self._calls.sweeps = 0  # since then
        saved = self._parts.load(folder)
        number = 0 if saved is None else len(saved.note["history"])
        if number > self._farthest:
            self._farthest, self._restarts = number, 0
        return saved

    def program(self, state: TrainingState | None) -> Program:
        """Return the solver's program from a state on."""
        return self._solver.program(self._calls, self._rows, state)

    def save(self, folder: CheckpointFolder, number: int, state: TrainingState) -> None:
        """Save a state, then take over new workers and leave draining nodes."""
        self._parts.save(folder, number, state)
        self.note = self._parts.adapt() or self.note

    def export(self, state: TrainingState, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the labels of a finished training."""
        return self._solver.export(self._calls, state, positives)

    def recover(self, error: Unavailable) -> str:
        """Replace what was lost; return what happened.

        Raises errors other than losses, and Unavailable if workers keep being lost or no
        worker is left.
        """
        is_new = error.code == StateLost.code  # a worker that took the place of a lost one
        if not isinstance(error, WorkerLost) and not is_new:
            raise error
        group, workers = self._parts.group, getattr(error, "workers", ())
        self._lost += len(workers)
        self._restarts += max(1, len(workers))
        group.interrupt()  # the running calls are not needed any more
        allowed = MAX_LOSSES_PER_WORKER * len(group.workers)
        if self._restarts - group.status().lost_with_nodes > allowed:
            raise Unavailable(
                f"{self._restarts} workers were lost one after the other; "
                "check their logs and memory, then resume",
                code="WORKERS_LOST",
            ) from error
        if isinstance(error, WorkerLost):
            self._parts.recover(error)
        return "a worker was lost" if is_new else error.message

    def leave(self) -> None:
        """Leave draining nodes; the other workers go on from the checkpoint."""
        self.note = self._parts.leave() or self.note

    def _on_progress(self, ahead: float, left: float) -> None:
        """Report that `ahead` epochs of a rotation are done; left: seconds to its end.

        Raises Stopped (LEAVE) if its end would come too late for a draining node.
        """
        self.on_progress(ahead)
        if self._folder is None:
            return
        soonest = min(self._parts.draining.values(), default=math.inf)
        if soonest < left + self._folder.seconds_to_save + LEAVE_MARGIN_SECONDS:
            raise Stopped("a node is about to go", code=NODE_LEAVES)

    def _on_sync_point(self) -> None:
        """Leave draining nodes, add new workers, or move shards to faster workers."""
        if self._folder is not None and self._parts.draining:
            raise Stopped("a node is about to go", code=NODE_LEAVES)
        if self._calls.sweeps and isinstance(self._parts, ShardAssignment):
            calls = self._calls
            moved = self._parts.rebalance(calls.speeds, calls.sweeps, self.seconds_left)
            self.note = moved or self.note
