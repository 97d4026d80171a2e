"""Solve and evaluate grid points on one data set, with optional warm starts from other points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from xcray.arrays import CSR, frozen
from xcray.data.dataset import Dataset
from xcray.data.matrices import split_rows
from xcray.data.splits import HashSplit
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, ParameterError
from xcray.measures import evaluate
from xcray.model.directory import Staging
from xcray.solvers import make_solver
from xcray.solvers.contract import SolverState, TaskSolver, WarmStartSolver
from xcray.solvers.solved_labels import SolvedLabels, untrained_records
from xcray.storage.arrow import read_csr
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.training.block_store import BlockStore
from xcray.training.capacity.preflight import merge_budget, worker_count
from xcray.training.independent import make_ray_pool
from xcray.training.report.summary import summarize_block
from xcray.training.solve_labels import (
    LabelsToSolve,
    StoreObserver,
    TrainingData,
    make_local_pool,
    solve_labels,
)
from xcray.training.spec import TrainSpec
from xcray.training.tuning.grid import Point
from xcray.training.warm_start import WarmRunner, dual_scale
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.timeline import Timeline, balance, read_streams

CHUNK_ROWS = 1 << 16  # rows split per step


def hold_out(data: Dataset, share: float, seed: int, path: Path) -> Dataset:
    """Split the training rows of a data set into a new data set with a held-out part.

    share: of the rows to hold out, selected by a hash of their numbers. path: where it is stored.
    Raises ParameterError if one side would be empty, Conflict if `path` holds another split.
    """
    source = {"of": data.content_hash, "holdout": share, "seed": seed}
    if path.exists():
        existing = Dataset.open(path)
        if existing.manifest["source"] != source:
            raise Conflict(
                "the run directory holds another search (other data, holdout or seed); "
                "choose a new one"
            )
        return existing
    split = HashSplit(share, seed)
    with DatasetWriter(
        path, name="held", n_features=data.n_features, n_labels=data.n_labels
    ) as writer:
        for start in range(0, data.train.n_rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, data.train.n_rows)
            for part, X, Y in split_rows(*data.train.take(start, stop), split.mask(start, stop)):
                writer.add(part, X, Y)
        if not (writer.n_rows("train") and writer.n_rows("test")):
            rows = (
                f"{writer.n_rows('train')} rows to learn from "
                f"and {writer.n_rows('test')} to measure on"
            )
            raise ParameterError(f"holdout={share:g} leaves {rows}; choose another share")
        weights = data.train.weights
        kept_weights = (
            None
            if weights is None
            else frozen(weights[~split.mask(0, data.train.n_rows)], np.float32)
        )
        return writer.finish(source=source, label_names=data.label_names, weights=kept_weights)


class PointEvaluator:
    """Solves and evaluates grid points.

    spec: the training shared by all points, with its pool. data: its training part is used to
    learn, its test part to measure. folder: stores the points. Warm starts work on the pools of
    this process.
    """

    def __init__(
        self, spec: TrainSpec, data: Dataset, folder: Path, stop: StopFlag, job: str = "local"
    ) -> None:
        self.spec = spec
        self.data = data
        self.folder = folder
        self.stop = stop
        self.job = job
        self.training_data = TrainingData(
            data.train.X, data.train.XT, data.train.YT, data.train.weights
        )
        joint = make_solver(spec.solver, spec.params).family == "joint"
        self.workers = 1 if joint else worker_count(spec)
        self.state: SolverState | None = None

    def evaluate(
        self, point: Point, start: Point | None, tick: Callable[[int], None] = lambda _: None
    ) -> dict[str, Any]:
        """Return the result of a point: params, measures, nnz, certified and so on.

        A finished point is not solved again. start: a finished point to start from. tick: called
        with the number of finished labels; its exceptions end the work.
        """
        folder = self.folder / point.key
        if not (folder / "result.json").exists():
            write_json(folder / "result.json", self._solve(folder, point, start, tick))
        for part in folder.glob("part-*.arrow"):
            part.unlink()  # only the duals of an evaluated point are still needed
        # params from the point: in the order of the grid
        return {**read_json(folder / "result.json"), "params": point.params}

    def remove_duals(self, points: Sequence[Point], done: int) -> None:
        """Remove the duals of points up to number `done` that no later point starts from."""
        needed = {point.start for point in points[done + 1 :]}
        for point in points[: done + 1]:
            if point.number not in needed:
                discard_directory(self.folder / point.key / "duals")

    def _solve(
        self, folder: Path, point: Point, start: Point | None, tick: Callable[[int], None]
    ) -> dict[str, Any]:
        """Solve and evaluate one point."""
        spec = replace(self.spec, params={**self.spec.params, **point.params})
        solver, n_labels = make_task_solver(spec), self.data.n_labels
        fingerprint = {
            "solver": spec.solver,
            "revision": solver.revision,
            "params": solver.as_dict(),
            "dataset": self.data.content_hash,
        }
        parts = BlockStore(folder, fingerprint, n_labels=n_labels, n_features=self.data.n_features)
        duals = (
            DualStore(folder / "duals", fingerprint, self.data)
            if spec.pool != "ray" and solver.family == "independent" and solver.warm_starts
            else None
        )
        origin = (
            None
            if start is None or duals is None
            else read_duals(self.folder / start.key / "duals")
        )
        missing = frozen(parts.missing, np.int32)
        if len(missing):
            warm = None if duals is None else make_runner(solver, origin, start, point)
            n_kept = n_labels - len(missing)
            with Timeline(folder) as timeline:
                solve_labels(
                    LabelsToSolve(solver, missing, self.training_data.cost_terms(solver)),
                    self._make_pool(spec, solver, warm),
                    _PointObserver(parts, timeline, lambda done: tick(n_kept + done), duals),
                    workers=self.workers,
                    stop=self.stop,
                )
        if duals is not None:
            duals.merge(spec)
        start_params = None if origin is None or start is None else start.params
        return {
            "params": point.params,
            **self._measure(folder, parts, solver),
            "start": start_params,
        }

    def _make_pool(self, spec: TrainSpec, solver: TaskSolver, warm: WarmRunner | None) -> Pool:
        """Return the pool of the spec. Local pools share what does not depend on the point.

        warm: solves the tasks in place of the solver, on local pools.
        """
        if spec.pool == "ray":
            spec = replace(spec, dataset=str(self.data.path))
            return make_ray_pool(spec, solver, self.data, self.workers, self.job)
        before, data = self.state, self.training_data
        self.state = solver.load(*data) if before is None else solver.reload(before, *data)
        return make_local_pool(spec.pool, solver, self.state, self.workers, runner=warm)

    def _measure(self, folder: Path, parts: BlockStore, solver: TaskSolver) -> dict[str, Any]:
        """Return the measures on the held-out rows and the summary of the labels."""
        held_out, ks = self.data["test"], self.spec.ks
        budget = merge_budget(self.spec, int(parts.lengths.sum()))
        with Staging(folder / "model", budget) as staging:
            block = parts.merge(staging.weights, budget=budget)
            index = staging.index(block.bias, solver.row_norm)
            top = index.query(held_out.X, max(ks), threads=self.workers).top
            summary = summarize_block(block, solver)
        measures = evaluate(
            top,
            held_out.Y,
            ks=ks,
            label_counts=self.data.label_counts,
            n_train=self.data.train.n_rows,
        )
        balance_figures = balance(read_streams(folder), self.workers)
        return {
            "measures": measures,
            "nnz": summary["weights"],
            "seconds": balance_figures["makespan"],
            "core_seconds": balance_figures["core_seconds"],
            "labels": summary["labels"],
            "certified": summary.get("labels_certified"),
            "largest_gap": summary.get("largest_gap"),
        }


class DualStore:
    """Stores the dual variables of a point, (K x N) by label, batch by batch like the weights."""

    def __init__(self, folder: Path, fingerprint: dict[str, Any], data: Dataset) -> None:
        """Open the store.

        folder: its directory. fingerprint: identifies the point. data: the point's data set.
        """
        self._parts = BlockStore(
            folder,
            {**fingerprint, "of": "duals"},
            n_labels=data.n_labels,
            n_features=data.train.n_rows,
        )
        self._folder = folder

    def commit(self, block: SolvedLabels) -> None:
        """Commit the duals of a finished batch. Raises ValueError if the solver returned none."""
        if block.duals is None:
            raise ValueError("the solver returned no duals")
        self._parts.commit(
            SolvedLabels(
                block.labels,
                block.duals,
                frozen(np.zeros(len(block.labels)), np.float64),
                untrained_records(block.labels),
            )
        )

    def merge(self, spec: TrainSpec) -> None:
        """Merge all batches into one file, which the next point reads.

        It takes at most as much memory as merging weights.
        """
        budget = merge_budget(spec, int(self._parts.lengths.sum()))
        self._parts.merge(self._folder / "duals.arrow", budget=budget, allow_missing=True)
        for part in self._folder.glob("part-*.arrow"):
            part.unlink()


def read_duals(folder: Path) -> CSR | None:
    """Return the duals of a finished point, (K x N), mapped; None if they were removed.

    They are removed once no later point needs them.
    """
    return read_csr(folder / "duals.arrow") if (folder / "duals.arrow").exists() else None


def make_task_solver(spec: TrainSpec) -> TaskSolver:
    """Return the solver of a spec. Raises ParameterError if its work is not tasks."""
    solver = make_solver(spec.solver, spec.params)
    if solver.family in ("independent", "joint"):
        return solver
    raise ParameterError(f"{spec.solver} trains by epochs or rounds and cannot be tuned")


def make_runner(
    solver: TaskSolver, origin: CSR | None, start: Point | None, point: Point
) -> WarmRunner:
    """Return what solves a point from the duals of another. origin: (K, N) of `start`, or None."""
    warm = cast("WarmStartSolver", solver)
    if start is None:
        return WarmRunner(warm, origin)
    return WarmRunner(warm, origin, dual_scale(start.params, point.params, warm.dual_exponent))


class _PointObserver(StoreObserver):
    """Commits the duals of a batch before its part, so that every part has its duals."""

    def __init__(
        self,
        parts: BlockStore,
        timeline: Timeline,
        on_labels: Callable[[int], None],
        duals: DualStore | None,
    ) -> None:
        super().__init__(parts, timeline, on_labels)
        self._duals = duals

    def commit(self, result: Result) -> None:
        """Make a batch durable."""
        if self._duals is not None:
            self._duals.commit(result.value)
        super().commit(result)
