"""Training of solvers whose blocks of labels go round shards of rows (family "circulate"): no process holds all weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from xcray.arrays import Int32
from xcray.errors import NotFound
from xcray.solvers.rotation_contract import Grid
from xcray.solvers.solved_labels import Block
from xcray.storage.atomic import read_json
from xcray.system.blas_threads import one_core_each
from xcray.training.capacity.joint_resources import circulating, sizes_of, timed_lap
from xcray.training.capacity.preflight import Estimate
from xcray.training.joint import Together, open_ended, outcome, team_of, tell
from xcray.training.rotation.config import Plan, Standing
from xcray.training.rotation.shard_worker import Rows, ShardWork, rows_of
from xcray.training.rotation.trainer import ENDED, descend
from xcray.training.strategy import Desk, Setting
from xcray.workers.timeline import Span, Timeline

CHECKPOINT_SECONDS: Final = 60.0  # between two checkpoints, at least
STORED: Final = (
    3  # times all weights in Ray's object store: of this rest, of the one before, and on their way
)
DRAWN: Final = (
    "uniform",
    "shortest",
)  # orders that can pass all workers of a node before the next node


class Circulating(Together):
    """See `Way`. The grid is resolved once: a run that goes on with other workers keeps the grid it began with."""

    def __init__(self, at: Setting) -> None:
        super().__init__(at)
        dataset = at.dataset
        self._n_features = dataset.n_features + bool(at.solver.bias)
        found = self._begun() or at.solver.grid(
            dataset.train.n_rows, dataset.n_labels, self._n_features, self.workers
        )
        self._grid = Grid(*found)
        self.workers = min(self.workers, self._grid.shards)

    def settled(self) -> dict[str, Any]:
        """The grid: with "sync" and "ring" the model's bits depend on it, data, parameters and seed alone."""
        return {"grid": list(self._grid)}

    def foreseen(self, missing: Int32, probe: float | None = None) -> Estimate:
        """See `xcray.training.capacity.joint_resources`."""
        sizes = sizes_of(self._at.dataset, self._solver)
        pace = partial(timed_lap, self._solver, self._rows(), sizes, probe)
        return circulating(
            self._at.spec, sizes, self._solver, self._grid.blocks, self.workers, pace
        )

    def solve(self, desk: Desk) -> None:
        """From the last checkpoint, or from the start, to all blocks in parts."""
        if (self.folder / ENDED).is_file():
            if not len(desk.parts.missing):
                return
            (self.folder / ENDED).unlink()  # parts were lost since: nothing is left to make them of
        desk.parts.clear()
        at, rows = self._at, self._rows()
        where = str(at.dataset.path.resolve())
        work = ShardWork(self._solver, rows.how, self._n_features, where, at.dataset.content_hash)
        most = self._grid.shards if open_ended(at) else None
        team = team_of(
            at.spec,
            work,
            self.workers,
            at.job,
            STORED * 4 * self._n_features * at.dataset.n_labels,
            most,
        )
        desk.watch(team.footprints)
        desk.vitals.follow(team.muster)

        def record(span: Span) -> None:
            timeline.add(
                span._replace(task=replace(span.task, labels=()))
            )  # a visit finishes no label
            desk.vitals.span(span)

        with Timeline(at.run_dir, lambda: team.nodes) as timeline, one_core_each():
            descend(
                self._solver,
                team,
                rows,
                self._plan(desk.seconds_left()),
                directory=self.folder,
                fingerprint=self._fingerprint(),
                deliver=desk.parts.commit,
                stop=desk.stop,
                tell=lambda standing: self._tell(desk, standing),
                record=record,
            )

    def figures(self, block: Block, measures: Mapping[str, float]) -> dict[str, Any]:
        """See `outcome`; the grid, and what was lost, moved and damaged on the way."""
        found = read_json(self.folder / ENDED)
        told = {
            "workers_lost": found["lost"],
            "shards_moved": found["moved"],
            "damaged_checkpoints": found["damaged"],
        }
        return {**outcome(found, block, measures), "grid": self._grid._asdict(), **told}

    def _plan(self, seconds: float | None) -> Plan:
        """What is descended, and how; seconds: that are left."""
        data, solver = self._at.dataset, self._solver
        return Plan(
            grid=self._grid,
            n_labels=data.n_labels,
            n_features=self._n_features,
            positives=data.label_counts.astype(np.int64),
            truth=data.test.Y if data.test is not None else None,
            order=solver.order,
            hybrid=solver.order in DRAWN,
            rest_every=solver.rest_every,
            seed=solver.seed,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            max_seconds=seconds,
        )

    def _rows(self) -> Rows:
        """What shards are cut from; held-out rows are watched."""
        train, test, solver = self._at.dataset.train, self._at.dataset.test, self._solver
        other = None if test is None or not test.Y.nnz else (test.X, test.Y)
        return rows_of(
            train.X,
            train.Y,
            train.weights,
            other,
            grid=self._grid,
            seed=solver.seed,
            bias=solver.bias,
        )

    def _fingerprint(self) -> dict[str, Any]:
        """Whose checkpoints these are."""
        about = {
            "solver": self._at.spec.solver,
            "revision": self._solver.revision,
            "params": self._solver.as_dict(),
        }
        return {**about, "dataset": self._at.dataset.content_hash, **self.settled()}

    def _begun(self) -> tuple[int, int] | None:
        """The grid that the run in this directory began with; None for a new one."""
        try:
            shards, blocks = read_json(self._at.run_dir / "run.json").get("grid") or (0, 0)
        except NotFound:
            return None
        return (shards, blocks) if shards else None

    def _tell(self, desk: Desk, at: Standing) -> None:
        """Report how far it is."""
        tell(desk, at.epoch, at.epochs, at.rate, at.eta, at.newest, at.note)
