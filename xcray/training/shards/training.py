"""Training by shards with a worker group, in any process."""

from __future__ import annotations

import time
from collections.abc import Callable

from xcray.solvers.shard_contract import ShardSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder
from xcray.training.program_loop import ProgramLoop, ProgramOutcome
from xcray.training.shards.source import ShardSource
from xcray.training.shards.task import ShardTask
from xcray.training.shards.workers import ShardWorkers
from xcray.workers.observer import RunObserver
from xcray.workers.pool import StopFlag
from xcray.workers.worker_group import WorkerGroup


def train_shards(
    solver: ShardSolver,
    group: WorkerGroup,
    source: ShardSource,
    task: ShardTask,
    observer: RunObserver[SolvedLabels],
    *,
    folder: CheckpointFolder | None,
    stop: StopFlag,
    on_end: Callable[[ProgramOutcome], None] = lambda outcome: None,
) -> ProgramOutcome:
    """Train until the solver stops, and deliver the finished blocks in label order.

    group: not open yet, with the workers of a `ShardWorkerSpec`; it is closed in every case.
    source: rows of the shards, for workers that do not see the data set's directory.
    folder: of the checkpoints of this run, None for none; a call with the same folder resumes from
    the last valid one. observer: receives the blocks, the progress in epochs, and the passes,
    numbered consecutively, as tasks without labels. on_end: see `ProgramLoop`.

    Raises Stopped if `stop` is set, with the
    last sync point in a checkpoint; Unavailable if workers keep being lost; Refused if max_seconds
    passed before the first sync point; and what the solver raises.
    """
    ends = None if task.max_seconds is None else time.monotonic() + task.max_seconds
    try:
        group.open()
        workers = ShardWorkers(
            solver, group, source, task, folder, stop=stop, record=observer.record
        )
        loop = ProgramLoop(
            workers,
            observer,
            solver.stopping,
            folder=folder,
            positives=task.positives,
            truth=task.truth,
            max_seconds=task.max_seconds,
            seconds_left=lambda: None if ends is None else ends - time.monotonic(),
            saves_end=True,
            on_end=on_end,
        )
        loop.run()
        return loop.outcome()
    finally:
        group.stop()
        group.close()
