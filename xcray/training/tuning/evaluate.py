"""Points of a path, solved and measured on one data set that is loaded once; each may start from the duals of another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from xcray.arrays import CSR, Int32, frozen
from xcray.data.dataset import Dataset
from xcray.data.matrices import split_rows
from xcray.data.splits import HashSplit
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, ParameterError
from xcray.kernels.sparse import take_rows
from xcray.metrics import evaluate
from xcray.model.directory import Staging
from xcray.solvers import make_solver
from xcray.solvers.contract import Local, Solver
from xcray.solvers.solved_labels import Block, untrained
from xcray.storage.arrow import read_csr
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.training.block_store import Parts
from xcray.training.capacity.preflight import merge_budget, workers_of
from xcray.training.independent import ray_pool
from xcray.training.report.summary import figures
from xcray.training.solve_labels import Rows, local_pool, solve_labels
from xcray.training.spec import TrainSpec
from xcray.training.tuning.grid import Point, rescale
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.timeline import Timeline, balance, read_streams

CHUNK = 1 << 16  # rows split at once


def hold_out(data: Dataset, share: float, seed: int, path: Path) -> Dataset:
    """The training rows of a data set as one of its own, a share of them held out by a hash of their numbers; kept at `path`.

    Raises ParameterError when one side would be empty, Conflict when `path` has rows held out otherwise.
    """
    account = {"of": data.content_hash, "holdout": share, "seed": seed}
    if path.exists():
        held = Dataset.open(path)
        if held.manifest["source"] != account:
            raise Conflict(
                "the run directory holds another path (other data, holdout or seed); choose a new one"
            )
        return held
    split = HashSplit(share, seed)
    with DatasetWriter(
        path, name="held", n_features=data.n_features, n_labels=data.n_labels
    ) as writer:
        for start in range(0, data.train.n_rows, CHUNK):
            stop = min(start + CHUNK, data.train.n_rows)
            for part, X, Y in split_rows(*data.train.take(start, stop), split.mask(start, stop)):
                writer.add(part, X, Y)
        if not (writer.rows("train") and writer.rows("test")):
            rows = (
                f"{writer.rows('train')} rows to learn from and {writer.rows('test')} to measure on"
            )
            raise ParameterError(f"holdout={share:g} leaves {rows}; choose another share")
        weights = data.train.weights
        kept = (
            None
            if weights is None
            else frozen(weights[~split.mask(0, data.train.n_rows)], np.float32)
        )
        return writer.finish(source=account, label_names=data.label_names, weights=kept)


class Bench:
    """Where points are solved and measured.

    spec: a training whose parameters all points share, and its pool; held: learnt from by its training part and measured on
    by its test part; folder: keeps the points. Starting from another point works on the pools of this process.
    """

    def __init__(
        self, spec: TrainSpec, held: Dataset, folder: Path, stop: StopFlag, job: str = "local"
    ) -> None:
        self.spec = spec
        self.held = held
        self.folder = folder
        self.stop = stop
        self.job = job
        self.rows = Rows(held.train.X, held.train.XT, held.train.YT, held.train.weights)
        self.workers = 1 if make_solver(spec.solver, spec.params).joint else workers_of(spec)
        self.local: Local | None = None

    def result(
        self, point: Point, start: Point | None, tick: Callable[[int], None] = lambda _: None
    ) -> dict[str, Any]:
        """What a point gave: params, measures, nnz, certified and so on. One that was finished before is not solved again.

        start: a finished point to start from. tick: told how many labels are done; what it raises ends the work.
        """
        folder = self.folder / point.key
        if not (folder / "result.json").exists():
            write_json(folder / "result.json", self._solved(folder, point, start, tick))
        for part in folder.glob("part-*.arrow"):
            part.unlink()  # measured: only its duals are still of use
        return {
            **read_json(folder / "result.json"),
            "params": point.params,
        }  # in the order of the grid

    def forget(self, points: Sequence[Point], done: int) -> None:
        """Remove the duals of points up to number `done` that no later point starts from."""
        wanted = {point.start for point in points[done + 1 :]}
        for point in points[: done + 1]:
            if point.number not in wanted:
                discard_directory(self.folder / point.key / "duals")

    def _solved(
        self, folder: Path, point: Point, start: Point | None, tick: Callable[[int], None]
    ) -> dict[str, Any]:
        """Solve and measure one point."""
        spec = replace(self.spec, params={**self.spec.params, **point.params})
        solver, n_labels = make_solver(spec.solver, spec.params), self.held.n_labels
        about = {
            "solver": spec.solver,
            "revision": solver.revision,
            "params": solver.as_dict(),
            "dataset": self.held.content_hash,
        }
        parts = Parts(folder, about, n_labels=n_labels, n_features=self.held.n_features)
        duals = (
            Duals(folder / "duals", about, self.held)
            if spec.pool != "ray" and starts_warm(solver)
            else None
        )
        origin = (
            None
            if start is None or duals is None
            else read_duals(self.folder / start.key / "duals")
        )
        factor = 1.0 if start is None else rescale(start.params, point.params)

        def commit(result: Result) -> None:
            if duals is not None:
                duals.commit(result.block)  # first: a part that is there has its duals
            parts.commit(result.block)

        missing = frozen(parts.missing, np.int32)
        if len(missing):
            with Timeline(folder) as timeline:
                solve_labels(
                    solver,
                    self.rows.terms(solver),
                    missing,
                    self._pool(
                        spec,
                        solver if duals is None else cast("Solver", Warm(solver, origin, factor)),
                    ),
                    workers=self.workers,
                    commit=commit,
                    stop=self.stop,
                    tick=lambda done, share: tick(n_labels - len(missing) + done),
                    record=timeline.add,
                )
        if duals is not None:
            duals.merge(spec)
        told = None if origin is None or start is None else start.params
        return {"params": point.params, **self._measured(folder, parts, solver), "start": told}

    def _pool(self, spec: TrainSpec, solver: Solver) -> Pool:
        """The pool that the spec asks for; the problem is loaded once for all points on pools of this process."""
        if spec.pool == "ray":
            return ray_pool(
                replace(spec, dataset=str(self.held.path)),
                solver,
                self.held,
                self.workers,
                self.job,
            )
        if self.local is None:
            self.local = solver.load(*self.rows)
        return local_pool(spec.pool, solver, self.local, self.workers)

    def _measured(self, folder: Path, parts: Parts, solver: Solver) -> dict[str, Any]:
        """Measures on the held-out rows, and how the classes came out."""
        held, ks = self.held["test"], self.spec.ks
        budget = merge_budget(self.spec, int(parts.lengths.sum()))
        with Staging(folder / "model", budget) as staging:
            block = parts.merge(staging.weights, budget=budget)
            top = staging.index(block.bias).query(held.X, max(ks), threads=self.workers).top
            told = figures(block, solver.eps)
        measures = evaluate(
            top, held.Y, ks=ks, label_counts=self.held.label_counts, n_train=self.held.train.n_rows
        )
        spread = balance(read_streams(folder), self.workers)
        return {
            "measures": measures,
            "nnz": told["weights"],
            "seconds": spread["makespan"],
            "core_seconds": spread["core_seconds"],
            "classes": told["classes"],
            "certified": told["classes_certified"],
            "largest_gap": told["largest_gap"],
        }


class Duals:
    """The dual variables of a point, (K x N) by label, committed batch by batch as `Parts` does with weights."""

    def __init__(self, folder: Path, about: dict[str, Any], held: Dataset) -> None:
        """folder: where they are kept; about: what point they are of; held: its data set."""
        self._parts = Parts(
            folder, {**about, "of": "duals"}, n_labels=held.n_labels, n_features=held.train.n_rows
        )
        self._folder = folder

    def commit(self, block: Block) -> None:
        """Keep the duals of a finished batch. Raises ValueError when the solver gave none."""
        if block.duals is None:
            raise ValueError("the solver was asked for duals and gave none")
        self._parts.commit(
            Block(
                block.labels,
                block.duals,
                frozen(np.zeros(len(block.labels)), np.float64),
                untrained(block.labels),
            )
        )

    def merge(self, spec: TrainSpec) -> None:
        """Make one file of all batches, in as much memory as merging weights may take: the next point reads this."""
        budget = merge_budget(spec, int(self._parts.lengths.sum()))
        self._parts.merge(self._folder / "duals.arrow", budget=budget, allow_missing=True)
        for part in self._folder.glob("part-*.arrow"):
            part.unlink()


def read_duals(folder: Path) -> CSR | None:
    """The duals of a finished point, (K x N), mapped; None when they are gone (they are removed when no point needs them)."""
    return read_csr(folder / "duals.arrow") if (folder / "duals.arrow").exists() else None


def starts_warm(solver: Solver) -> bool:
    """Whether a solver can start from duals: its `solve` takes them."""
    return {"start", "keep_duals"} <= set(inspect.signature(type(solver).solve).parameters)


class Warm:
    """A solver that starts each label from given duals, if there are any, and hands over those it ends with.

    origin: (K x N), by label, or None; factor: what they are multiplied by.
    """

    def __init__(self, solver: Any, origin: CSR | None, factor: float = 1.0) -> None:
        self._solver = solver
        self._origin = origin
        self._factor = np.float32(factor)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the solver's."""
        return getattr(self._solver, name)

    def solve(
        self, local: Local, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> Block:
        """As the solver's, but warm."""
        start = None if self._origin is None else take_rows(self._origin, frozen(labels, np.int64))
        if start is not None:
            start = start._replace(data=frozen(start.data * self._factor, np.float32))
        block: Block = self._solver.solve(local, labels, stopped, start=start, keep_duals=True)
        return block
