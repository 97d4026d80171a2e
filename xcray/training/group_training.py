"""Training of solvers whose workers act together, with the rows that all nodes see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Int32, Int64, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    StateLost,
    TrainingRows,
)
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate
from xcray.training.capacity.preflight import Estimate, memory_limits
from xcray.training.epoch_strategy import (
    OUTCOME_FILE,
    EpochStrategy,
    make_worker_group,
    outcome_report,
    training_rows,
)
from xcray.training.observer import TrainingObserver
from xcray.training.program_loop import ProgramLoop, TrainingWorkers
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import ThreadGroup
from xcray.workers.worker_group import OBJECT_LOST

MAX_RESTARTS: Final = 5  # restarts from one checkpoint after losses
# errors after which the program starts from the newest checkpoint, and what the progress says
LOSSES: Final = {OBJECT_LOST: "a node was lost", StateLost.code: "a worker was lost"}


@dataclass(frozen=True)
class GroupWorkerFactory:
    """Creates the workers of a training.

    solver: its class must be importable by the workers. path, content_hash: of the data set, which
    all nodes must see.
    """

    solver: Any
    path: str
    content_hash: str
    layout: Layout

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's worker, which takes its share of the rows."""
        number = int(worker.rpartition("-")[2])
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"{worker} does not see the data set ({error.message}): "
                "put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        return self.solver.create_worker(training_rows(data), number, self.layout, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


@dataclass(frozen=True)
class RowWorkerFactory:
    """Creates the workers of a training from rows in this process."""

    solver: GroupSolver
    rows: TrainingRows
    layout: Layout

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's worker, which takes its share of the rows."""
        number = int(worker.rpartition("-")[2])
        return self.solver.create_worker(self.rows, number, self.layout, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


class GroupResult(NamedTuple):
    """Result of a training in this process: its last round, why it ended, and all labels."""

    last: Round
    reason: str
    labels: list[SolvedLabels]


def train_in_process(solver: GroupSolver, rows: TrainingRows, workers: int) -> GroupResult:
    """Train on threads of this process, without a data set directory and checkpoints."""
    layout = solver.layout(workers, False, rows)
    group = ThreadGroup(RowWorkerFactory(solver, rows, layout), layout.workers)
    positives = frozen(np.bincount(rows.Y.indices, minlength=rows.Y.n_cols), np.int64)
    try:
        with limit_blas_threads():
            group.open()
            calls = GroupCalls(group)
            program = solver.program(calls, rows)
            while True:
                try:
                    last = next(program)
                except StopIteration as end:
                    labels = list(solver.export(calls, last.state, positives))
                    return GroupResult(last, end.value, labels)
    finally:
        group.close()


class RoundWorkers(TrainingWorkers):
    """Workers whose lost ones are replaced within a round, while the driver has the state."""

    keeps_state = False

    def __init__(self, solver: GroupSolver, rows: TrainingRows, calls: GroupCalls) -> None:
        self._solver = solver
        self._rows = rows
        self._calls = calls
        self._farthest, self._losses = -1, 0  # rounds in a checkpoint; losses since then
        self.note = ""
        self.on_progress: Callable[[float], None] = lambda ahead: None

    @property
    def lost(self) -> int:
        """Number of workers that were lost."""
        return self._calls.lost

    def restore(self, folder: CheckpointFolder | None) -> TrainingState | None:
        """Return the state of the newest checkpoint."""
        saved = None if folder is None else folder.newest()
        number = 0 if saved is None else len(saved.note["history"])
        if number > self._farthest:
            self._farthest, self._losses = number, 0
        return saved

    def program(self, state: TrainingState | None) -> Program:
        """Return the solver's program from a state on."""
        return self._solver.program(self._calls, self._rows, state)

    def save(self, folder: CheckpointFolder, number: int, state: TrainingState) -> None:
        """Save a state."""
        folder.save(number, state)

    def export(self, state: TrainingState, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the labels of a finished training."""
        return self._solver.export(self._calls, state, positives)

    def recover(self, error: Unavailable) -> str:
        """Go back to the newest checkpoint; return what was lost.

        Raises the error after MAX_RESTARTS losses without a newer checkpoint.
        """
        self._losses += 1
        if error.code not in LOSSES or self._losses > MAX_RESTARTS:
            raise error
        return LOSSES[error.code]


class GroupTraining(EpochStrategy):
    """Strategy of solvers whose workers hold shares of the rows, see `TrainingStrategy`."""

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Return the estimate with rows in memory, or without if they do not fit."""
        estimate = self._estimate(self._layout)
        free = min(memory_limits(self._context.spec).values(), default=0)
        if self._solver.maps_rows and estimate.memory > free:
            self._layout = self._layout._replace(in_memory=False)
            return self._estimate(self._layout)
        return estimate

    def solve(self, observer: TrainingObserver) -> None:
        """Run the program from the newest checkpoint, or from the start, then commit all labels."""
        outcome = self.folder / OUTCOME_FILE
        if outcome.is_file() and not len(observer.parts.missing) and self._is_stored():
            return
        outcome.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        context = self._context
        path, content_hash = str(context.dataset.path.resolve()), context.dataset.content_hash
        factory = GroupWorkerFactory(self._solver, path, content_hash, self._layout)
        store_bytes = self._solver.resources(self._shape, self._layout).store
        group = make_worker_group(context.spec, factory, self.workers, context.job, store_bytes)
        try:
            group.open()
            with observer.observe(group), limit_blas_threads():
                calls = GroupCalls(group, observer.stop.is_set, observer.record)
                self._train(RoundWorkers(self._solver, self._rows, calls), observer)
        finally:
            group.stop()
            group.close()
        if self._solver.exports == "weights":  # no part has the stages
            self._checkpoints.clear()

    def _is_stored(self) -> bool:
        """Return whether the run has the trained model: labels in parts, stages in a checkpoint."""
        if self._solver.exports == "weights":
            return True
        saved = self._checkpoints.newest()
        if saved is not None:
            state = saved._replace(note=saved.note["state"])
            self.staged = self._solver.staged(state, self._rows)
        return saved is not None

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, and the numbers of stages, lost workers and damages."""
        newest = read_json(self.folder / OUTCOME_FILE)
        last, report = newest["history"][-1], outcome_report(self._solver, newest, block, measures)
        if report["objective"] is None:  # each stage has its own
            del report["objective"]
        return {
            **report,
            **{name: last[name] for name in ("gradient",) if name in last},
            **({"stages": len(self.staged.stages)} if self.staged else {}),
            **self._solver.report(newest["history"]),
            "workers_lost": newest["lost"],
            "damaged_checkpoints": newest["damaged"],
        }

    def _estimate(self, layout: Layout) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        spec, dataset = self._context.spec, self._context.dataset
        needs = self._solver.resources(self._shape, layout)
        if self._solver.exports == "weights":
            return complete_estimate(spec, self.workers, dataset, self._shape, needs)
        sparse = needs._replace(weights=0)
        estimate = complete_estimate(spec, self.workers, dataset, self._shape, sparse)
        return estimate._replace(model=estimate.model + 4 * needs.weights, weights=needs.weights)

    def _train(self, workers: RoundWorkers, observer: TrainingObserver) -> None:
        """Run the program to its end and commit all labels."""
        test = self._context.dataset.test
        loop = ProgramLoop(
            workers,
            observer,
            self._solver.stopping,
            folder=self._checkpoints,
            positives=self._context.dataset.label_counts,
            truth=None if test is None else test.Y,
            max_seconds=self._context.spec.max_seconds,
            seconds_left=observer.seconds_left,
            saves_end=self._solver.exports == "stages",
            on_end=lambda outcome: write_json(self.folder / OUTCOME_FILE, outcome._asdict()),
        )
        state, last = loop.run()
        self.staged = last.staged if last else self._solver.staged(state, self._rows)
