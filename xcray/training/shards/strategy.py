"""Training of solvers whose label blocks rotate over row shards: no process holds all of W."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from xcray.arrays import Int32
from xcray.solvers.shard_contract import ShardSolver, grid_of
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate
from xcray.training.capacity.preflight import Estimate
from xcray.training.epoch_strategy import (
    OUTCOME_FILE,
    EpochStrategy,
    make_worker_group,
    outcome_report,
    uses_whole_cluster,
)
from xcray.training.observer import TrainingObserver
from xcray.training.shards.probe import time_sweep
from xcray.training.shards.shard_worker import ShardWorkerSpec
from xcray.training.shards.source import ShardSource, make_shard_source
from xcray.training.shards.task import ShardTask
from xcray.training.shards.training import train_shards
from xcray.training.strategy import TrainingContext

# Copies of all weights in Ray's object store: this sync point, the one before, in transit.
STORE_COPIES: Final = 3


class BlockRotation(EpochStrategy):
    """Strategy of solvers whose workers hold shards, see `TrainingStrategy`."""

    _solver: ShardSolver

    def __init__(self, context: TrainingContext, solver: ShardSolver) -> None:
        super().__init__(context, solver)
        self._grid = grid_of(self._layout)

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        spec, dataset = self._context.spec, self._context.dataset
        shape, guess = self._shape, self._solver.resources(self._shape, self._layout)
        timed = time_sweep(self._solver, self._shard_source(), shape, guess, probe_seconds)
        return complete_estimate(
            spec, self.workers, dataset, shape, timed or guess, probed=int(timed is not None)
        )

    def solve(self, observer: TrainingObserver) -> None:
        """Train from the last checkpoint, or from the start, until all blocks are committed."""
        if (self.folder / OUTCOME_FILE).is_file():
            if not len(observer.parts.missing):
                return
            # parts were lost since then, and there is nothing to rebuild them from
            (self.folder / OUTCOME_FILE).unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        context, rows, dataset = self._context, self._shard_source(), self._context.dataset
        spec = ShardWorkerSpec(
            self._solver,
            self._layout,
            rows.split,
            dataset.n_features,
            dataset.n_labels,
            str(dataset.path.resolve()),
            dataset.content_hash,
        )
        group = make_worker_group(
            context.spec,
            spec,
            self.workers,
            context.job,
            STORE_COPIES * 4 * self._shape.features * dataset.n_labels,
            max_workers=self._grid.shards if uses_whole_cluster(context) else None,
        )
        with observer.observe(group), limit_blas_threads():
            train_shards(
                self._solver,
                group,
                rows,
                self._task(observer.seconds_left()),
                observer,
                folder=self._checkpoints,
                stop=observer.stop,
                on_end=lambda outcome: write_json(self.folder / OUTCOME_FILE, outcome._asdict()),
            )
        self._checkpoints.clear()

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, the grid, and the numbers of losses, moves and damages."""
        outcome = read_json(self.folder / OUTCOME_FILE)
        losses = {
            "workers_lost": outcome["lost"],
            "shards_moved": outcome["moved"],
            "damaged_checkpoints": outcome["damaged"],
        }
        report = outcome_report(self._solver, outcome, block, measures)
        return {**report, "grid": self._grid._asdict(), **losses}

    def _task(self, seconds: float | None) -> ShardTask:
        """Return what is trained; seconds: remaining time."""
        data = self._context.dataset
        return ShardTask(
            grid=self._grid,
            rows=self._rows,
            positives=data.label_counts.astype(np.int64),
            truth=data.test.Y if data.test is not None else None,
            max_seconds=seconds,
        )

    def _shard_source(self) -> ShardSource:
        """Return the rows of the shards, with the held-out ones."""
        train, test, solver = self._context.dataset.train, self._context.dataset.test, self._solver
        held_out = None if test is None or not test.Y.nnz else (test.X, test.Y)
        return make_shard_source(
            train.X,
            train.Y,
            train.weights,
            held_out,
            grid=self._grid,
            seed=solver.seed,
            bias=solver.bias,
        )
