"""Training of solvers whose workers act together: a program on the driver calls their methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64, Int32, Int64, Pattern, frozen
from xcray.solvers.group_contract import GroupSolver, Layout, Round, StagedModel, TrainingRows
from xcray.solvers.shard_contract import ShardSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate, problem_shape
from xcray.training.capacity.preflight import Estimate, memory_limits
from xcray.training.epoch_strategy import (
    CHECKPOINT_FOLDER,
    OUTCOME_FILE,
    existing_grid,
    initial_workers,
    make_worker_group,
    outcome_report,
    training_rows,
    uses_whole_cluster,
)
from xcray.training.group_workers import (
    GroupWorkerFactory,
    RowWorkerFactory,
    empty_rows,
    make_parts,
    shard_source,
)
from xcray.training.observer import TrainingObserver
from xcray.training.program_loop import ProgramLoop, ProgramOutcome
from xcray.training.report.summary import label_table
from xcray.training.shards.probe import time_sweep
from xcray.training.strategy import TrainingContext, TrainingStrategy
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import ThreadGroup
from xcray.workers.observer import CollectResults, RunObserver
from xcray.workers.parts import Parts
from xcray.workers.pool import StopFlag

# Copies of all weights in Ray's object store: this sync point, the one before, in transit.
STORE_COPIES: Final = 3


class GroupResult(NamedTuple):
    """How a training ended: its last state, its outcome, and its last round if one was done now.

    labels: all labels, of a training in this process.
    """

    state: TrainingState
    outcome: ProgramOutcome
    last: Round | None
    labels: Sequence[SolvedLabels] = ()


def train_group(
    solver: GroupSolver,
    rows: TrainingRows,
    layout: Layout,
    parts: Parts,
    observer: RunObserver[SolvedLabels],
    *,
    positives: Int64,
    truth: Pattern | None = None,
    folder: CheckpointFolder | None = None,
    stop: StopFlag | None = None,
    max_seconds: float | None = None,
    seconds_left: float | None = None,
    on_end: Callable[[ProgramOutcome], None] = lambda outcome: None,
) -> GroupResult:
    """Train until the solver stops, and deliver all labels.

    parts: of a group that is not open yet; it is closed in every case. positives: (K,) training
    rows of each label. truth: labels of the held-out rows. folder: of the checkpoints of this run,
    None for none; a call with the same folder resumes from the last valid one. observer: receives
    the labels, the progress and the calls. max_seconds: time limit; seconds_left: of it, by default
    all. on_end: see `ProgramLoop`.

    Raises Stopped if `stop` is set; Unavailable if workers keep being lost; Refused if max_seconds
    passed before the first round; and what the solver raises.
    """
    stopped = (stop or StopFlag()).is_set
    left = max_seconds if seconds_left is None else seconds_left
    ends = None if left is None else time.monotonic() + left
    try:
        parts.group.open()
        calls = GroupCalls(
            parts.group, stopped, observer.record, parts=parts, layout=layout, ends=ends
        )
        loop = ProgramLoop(
            solver,
            rows,
            parts,
            calls,
            observer,
            folder=folder,
            positives=positives,
            truth=truth,
            max_seconds=max_seconds,
            ends=ends,
            stopped=stopped,
            on_end=on_end,
        )
        with limit_blas_threads():  # also of libraries that the workers have loaded
            state, last = loop.run()
        return GroupResult(state, loop.outcome(), last)
    finally:
        parts.group.stop()
        parts.group.close()


def train_in_process(
    solver: GroupSolver,
    rows: TrainingRows,
    workers: int,
    layout: Layout | None = None,
    max_seconds: float | None = None,
) -> GroupResult:
    """Train on threads of this process, without a data set directory and checkpoints.

    layout: of its workers, by default the solver's. max_seconds: time limit.
    """
    layout = layout or solver.layout(workers, False, rows)
    source = shard_source(solver, layout, rows)
    factory = RowWorkerFactory(solver, rows, layout, source and source.split)
    parts = make_parts(ThreadGroup(factory, layout.workers), layout, source)
    positives = frozen(np.bincount(rows.Y.indices, minlength=rows.Y.n_cols), np.int64)
    labels = CollectResults[SolvedLabels]()
    truth = None if rows.held_out is None else rows.held_out[1]
    result = train_group(
        solver,
        rows,
        layout,
        parts,
        labels,
        positives=positives,
        truth=truth,
        max_seconds=max_seconds,
    )
    return result._replace(labels=labels.results)


class GroupTraining(TrainingStrategy):
    """Strategy of solvers whose workers act together, see `TrainingStrategy`.

    A run that is resumed with another number of workers keeps its grid, if it has one.
    """

    staged: StagedModel | None = None

    def __init__(self, context: TrainingContext, solver: GroupSolver) -> None:
        self._context = context
        self._solver = solver
        dataset, workers = context.dataset, initial_workers(context)
        self._rows = training_rows(dataset)
        layout = solver.layout(workers, context.spec.pool == "ray", self._rows)
        if layout.grid is not None and (grid := existing_grid(context.run_dir)) is not None:
            layout = layout._replace(workers=min(workers, grid.shards), grid=grid)
        self._layout = layout
        self.workers = layout.workers
        self._shape = problem_shape(dataset, solver.n_weights(dataset.n_features))
        self._checkpoints = CheckpointFolder(self.folder)

    def run_settings(self) -> dict[str, Any]:
        """Return the grid, which the bits of the model can depend on; else no settings."""
        return {} if self._layout.grid is None else {"grid": list(self._layout.grid)}

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints and of the training's outcome."""
        return self._context.run_dir / CHECKPOINT_FOLDER

    def weight_shares(self) -> Float64:
        """All labels alike: every weight is there until small ones are dropped."""
        return np.ones(self._context.dataset.n_labels)

    def label_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Without seconds and workers: all labels are trained together."""
        return label_table(block, self._solver).drop_columns(["seconds", "worker"])

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Return the estimate with rows in memory, or without if they do not fit."""
        estimate = self._estimate(self._layout, probe_seconds)
        free = min(memory_limits(self._context.spec).values(), default=0)
        if self._solver.maps_rows and estimate.memory > free:
            self._layout = self._layout._replace(in_memory=False)
            return self._estimate(self._layout, probe_seconds)
        return estimate

    def solve(self, observer: TrainingObserver) -> None:
        """Run the program from the newest checkpoint, or from the start, then commit all labels."""
        outcome = self.folder / OUTCOME_FILE
        if outcome.is_file() and not len(observer.parts.missing) and self._is_stored():
            return
        outcome.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        context, dataset, layout = self._context, self._context.dataset, self._layout
        source = shard_source(self._solver, layout, self._rows)
        factory = GroupWorkerFactory(
            self._solver,
            empty_rows(dataset.n_features, dataset.n_labels),
            layout,
            source and source.split,
            str(dataset.path.resolve()),
            dataset.content_hash,
        )
        parts = layout.workers if layout.grid is None else layout.grid.shards
        group = make_worker_group(
            context.spec,
            factory,
            self.workers,
            context.job,
            self._store_bytes(),
            parts if uses_whole_cluster(context) else None,
        )
        with observer.observe(group):
            result = train_group(
                self._solver,
                self._rows,
                layout,
                make_parts(group, layout, source),
                observer,
                positives=dataset.label_counts.astype(np.int64),
                truth=None if dataset.test is None else dataset.test.Y,
                folder=self._checkpoints,
                stop=observer.stop,
                max_seconds=context.spec.max_seconds,
                seconds_left=observer.seconds_left(),
                on_end=lambda outcome: write_json(self.folder / OUTCOME_FILE, outcome._asdict()),
            )
        last = result.last
        self.staged = last.staged if last else self._solver.staged(result.state, self._rows)
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
        """Return `outcome_report`, the layout's grid, and the numbers of losses and damages."""
        outcome, grid = read_json(self.folder / OUTCOME_FILE), self._layout.grid
        last, report = (
            outcome["history"][-1],
            outcome_report(self._solver, outcome, block, measures),
        )
        if report["objective"] is None and grid is None:  # each stage has its own
            del report["objective"]
        return {
            **report,
            **{name: last[name] for name in ("gradient",) if name in last},
            **({"stages": len(self.staged.stages)} if self.staged else {}),
            **({"grid": grid._asdict(), "shards_moved": outcome["moved"]} if grid else {}),
            **self._solver.report(outcome["history"]),
            "workers_lost": outcome["lost"],
            "damaged_checkpoints": outcome["damaged"],
        }

    def _estimate(self, layout: Layout, probe_seconds: float | None) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        spec, dataset = self._context.spec, self._context.dataset
        needs, timed = self._solver.resources(self._shape, layout), None
        source = shard_source(self._solver, layout, self._rows)
        if source is not None:
            solver = cast("ShardSolver", self._solver)
            timed = time_sweep(solver, source, self._shape, needs, probe_seconds)
        needs, weights, probed = timed or needs, needs.weights, int(timed is not None)
        if self._solver.exports == "weights":
            return complete_estimate(spec, self.workers, dataset, self._shape, needs, probed=probed)
        sparse = needs._replace(weights=0)
        estimate = complete_estimate(spec, self.workers, dataset, self._shape, sparse)
        return estimate._replace(model=estimate.model + 4 * weights, weights=weights)

    def _store_bytes(self) -> int:
        """Return the bytes that workers hold together in Ray's object store."""
        if self._layout.grid is None:
            return self._solver.resources(self._shape, self._layout).store
        return STORE_COPIES * 4 * self._shape.features * self._shape.labels
