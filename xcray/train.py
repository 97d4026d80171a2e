"""train(spec) -> a published model and its measures: the one use case that the command line and jobs share."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ParameterError, Stopped, Unavailable
from xcray.execution.drive import drive
from xcray.execution.local import SerialPool, ThreadPool
from xcray.execution.parts import Parts
from xcray.execution.pool import Pool, Result, StopFlag
from xcray.files import check_name, write_table
from xcray.index.inverted import InvertedIndex
from xcray.metrics import evaluate
from xcray.model.model import write_model
from xcray.schedule.scatter import Scatter
from xcray.solvers import make_solver
from xcray.solvers.block import Block
from xcray.solvers.ppdsparse import ENTRIES_A_SECOND, REVISION, PPDSparseSolver

POOLS = ("serial", "threads", "ray")


@dataclass(frozen=True)
class TrainSpec:
    """What to train. Checked when made; raises ParameterError with the mend.

    dataset: path of a data set directory; solver and params: see `xcray.solvers`; pool: serial, threads or ray;
    workers: 0 for one per core; ray_address: a cluster to join, else a local Ray is started for the training;
    name: the model's name; ks: the k of P@k and so on.
    """

    dataset: str
    solver: str = "ppdsparse"
    params: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "threads"
    workers: int = 0
    ray_address: str | None = None
    name: str = "model"
    ks: tuple[int, ...] = (1, 3, 5)

    def __post_init__(self) -> None:
        """Check everything that can be checked without the data."""
        check_name(self.name, "model name")
        make_solver(self.solver, self.params)
        if self.pool not in POOLS:
            raise ParameterError(f"pool must be one of {', '.join(POOLS)}, not {str(self.pool)[:80]!r}")
        if type(self.workers) is not int or not 0 <= self.workers <= 4096:
            raise ParameterError(f"workers must be a whole number from 0 (one per core) to 4096, not {str(self.workers)[:80]!r}")
        object.__setattr__(self, "ks", tuple(sorted(set(self.ks))))
        if not self.ks or not all(type(k) is int and 1 <= k <= 100 for k in self.ks):
            raise ParameterError(f"ks must be whole numbers from 1 to 100, not {str(self.ks)[:80]}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSpec:
        """A spec from plain JSON. Raises ParameterError for unknown keys, missing `dataset` and bad values."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ParameterError(f"unknown key {unknown[0][:80]!r} in the training spec; there are: {', '.join(sorted(known))}")
        if not isinstance(values.get("dataset"), str):
            raise ParameterError("the training spec needs `dataset`, the path of a data set directory")
        ks, params = values.get("ks", (1, 3, 5)), values.get("params", {})
        if not isinstance(ks, (list, tuple)) or not isinstance(params, Mapping):
            raise ParameterError("the training spec has a value of the wrong type: ks is a list, params an object")
        return cls(**{**values, "ks": tuple(ks), "params": dict(params)})

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**dataclasses.asdict(self), "params": dict(self.params), "ks": list(self.ks)}


class Progress(NamedTuple):
    """How far a training is: phase LOADING, TRAINING, MERGING, EVALUATING or PUBLISHING; done and total in classes;
    seconds since the start; rate in classes a second; eta in seconds, None when not known; note: a line for people."""

    phase: str
    done: int
    total: int
    seconds: float
    rate: float
    eta: float | None
    note: str


class TrainResult(NamedTuple):
    """Where the model is, its content hash, measures as fractions ("P@1": 0.63), and the training's report."""

    model_path: Path
    sha256: str
    measures: dict[str, float]
    report: dict[str, Any]


def train(
    spec: TrainSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: StopFlag | None = None,
    job: str = "local",
) -> TrainResult:
    """Train `spec` and publish the model directory `out`.

    run_dir: keeps finished batches; call again with the same one to do only what is missing. progress: called with a
    Progress now and then. stop: set it, and Stopped is raised within a kernel slice. job: names Ray actors.
    Raises NotFound, Corrupt, ParameterError, InputError, Conflict (`out` exists, or `run_dir` is another run's),
    Unavailable (no Ray, workers lost), Stopped.
    """
    if Path(out).exists():  # before the work, not after it
        raise Conflict(f"{Path(out).name} exists already; choose another path for the model, or remove it first")
    run = _Run(spec, Path(run_dir), progress or (lambda _: None), stop or StopFlag(), job)
    block = run.solve()
    return run.publish(block, Path(out))


class _Run:
    """One training under way: what its steps share."""

    def __init__(self, spec: TrainSpec, run_dir: Path, progress: Callable[[Progress], None], stop: StopFlag, job: str) -> None:
        self.spec, self.run_dir, self.progress, self.stop, self.job = spec, run_dir, progress, stop, job
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.tell("LOADING", 0, 0)
        self.dataset = Dataset.open(spec.dataset)
        self.solver = make_solver(spec.solver, spec.params)
        train = self.dataset.train
        if train.n_rows == 0 or train.Y.nnz == 0:
            raise InputError("the training part has no row with a label; check the label column of the source", code="NO_POSITIVES")
        self.workers = 1 if spec.pool == "serial" else spec.workers or os.cpu_count() or 1
        self.parts = Parts(run_dir, self._fingerprint(), n_labels=self.dataset.n_labels, n_features=self.dataset.n_features)
        self.results: list[dict[str, Any]] = []

    def solve(self) -> Block:
        """Solve the labels that no part holds, then read all parts as one block."""
        train = self.dataset.train
        missing = self.parts.missing
        costs = self.solver.costs(train.X, train.XT, train.YT)[missing]
        schedule = Scatter(missing.tolist(), costs.tolist(), workers=self.workers, rate=ENTRIES_A_SECOND)
        self.seconds["LOADING"] = time.monotonic() - self.started
        began, kept = time.monotonic(), self.dataset.n_labels - len(missing)
        if len(missing):
            drive(schedule, self._pool(), commit=self._commit, stop=self.stop, tick=lambda: self._tick(schedule, began, kept))
        self.seconds["TRAINING"] = time.monotonic() - began
        self._write_timeline()
        self.tell("MERGING", self.dataset.n_labels, self.dataset.n_labels)
        began = time.monotonic()
        block = self.parts.merged()
        self.seconds["MERGING"] = time.monotonic() - began
        return block

    def publish(self, block: Block, out: Path) -> TrainResult:
        """Measure the model on the held-out part, if there is one, and write its directory."""
        bias = block.bias.astype(np.float32)
        measures = self._measure(block, bias)
        self.tell("PUBLISHING", self.dataset.n_labels, self.dataset.n_labels)
        report = self._report(block)
        model = write_model(
            out,
            W=block.W,
            b=bias,
            label_names=self.dataset.label_names,
            feature_names=self.dataset.feature_names,
            text=self.dataset.text,
            solver=self.spec.solver,
            params=self.solver.as_dict(),
            dataset_hash=self.dataset.content_hash,
            seed=self.solver.seed,
            measures=measures,
            report=report,
            classes=_class_table(block),
        )
        return TrainResult(model.path, model.sha256, measures, report)

    def tell(self, phase: str, done: int, total: int, rate: float = 0.0, eta: float | None = None, note: str = "") -> None:
        """Report progress. Raises Stopped when a stop was asked for: between phases, finished batches are all on disk."""
        if self.stop.is_set():
            raise Stopped("stopped on request; finished batches are kept, the next run does the rest")
        self.progress(Progress(phase, done, total, time.monotonic() - self.started, rate, eta, note))

    def _fingerprint(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        solver = {"solver": self.spec.solver, "revision": REVISION, "params": self.solver.as_dict()}
        return {**solver, "dataset": self.dataset.content_hash, "format": 1}

    def _pool(self) -> Pool:
        """The pool the spec asks for."""
        if self.spec.pool == "ray":
            return _ray_pool(self.spec, self.solver, self.dataset, self.workers, self.job)
        train = self.dataset.train
        local = self.solver.load(train.X, train.XT, train.YT)
        return SerialPool(self.solver, local) if self.spec.pool == "serial" else ThreadPool(self.solver, local, self.workers)

    def _commit(self, result: Result) -> None:
        """Make a block durable and note who solved it when."""
        self.parts.commit(result.block)
        self.results.append(
            {
                "worker": result.worker,
                "task": result.task.id,
                "attempt": result.task.attempt,
                "classes": len(result.task.labels),
                "cost": result.task.cost,
                "started": result.started,
                "seconds": result.seconds,
            }
        )

    def _tick(self, schedule: Scatter, began: float, kept: int) -> None:
        """Progress of the solving: rate in classes, time left by the cost that is left."""
        elapsed = time.monotonic() - began
        share = schedule.done_cost / schedule.total_cost if schedule.total_cost else 1.0
        eta = elapsed * (1.0 - share) / share if share > 0.0 else None
        rate = schedule.done_labels / elapsed if elapsed > 0.0 else 0.0
        self.tell("TRAINING", kept + schedule.done_labels, self.dataset.n_labels, rate, eta, f"{kept} kept" if kept else "")

    def _measure(self, block: Block, bias: np.ndarray) -> dict[str, float]:
        """Measures on the held-out part; empty without one."""
        test = self.dataset.test
        if test is None or test.n_rows == 0:
            return {}
        self.tell("EVALUATING", self.dataset.n_labels, self.dataset.n_labels)
        began = time.monotonic()
        top = InvertedIndex.build(block.W, bias).query(test.X, max(self.spec.ks), threads=os.cpu_count() or 1)
        n_train = self.dataset.train.n_rows
        measures: dict[str, float] = evaluate(top, test.Y, ks=self.spec.ks, label_counts=self.dataset.label_counts, n_train=n_train)
        self.seconds["EVALUATING"] = time.monotonic() - began
        return measures

    def _write_timeline(self) -> None:
        """Every batch of this attempt: who, when, how long; for `xcray jobs timeline` and for judging the schedule."""
        if self.results:
            write_table(self.run_dir / "timeline.arrow", pa.Table.from_pylist(self.results))

    def _report(self, block: Block) -> dict[str, Any]:
        """Figures people ask for after a training; JSON."""
        records = block.records
        gaps = records["gap"] / np.maximum(records["null"], 1e-300)
        certified = records["gap"] <= self.solver.eps * records["null"]
        empty = records["positives"] == 0
        return {
            "pool": self.spec.pool,
            "workers": self.workers,
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
            "classes": self.dataset.n_labels,
            "classes_without_positives": int(empty.sum()),
            "classes_certified": int((certified | empty).sum()),
            "largest_gap": float(gaps[~empty].max()) if (~empty).any() else 0.0,
            "weights": block.W.nnz,
            "weights_pruned": int(records["pruned"].sum()),
            "support_vectors": int(records["support"].sum()),
            "damaged_parts": self.parts.damaged,
            **_balance(self.results, self.workers),
        }


def _ray_pool(spec: TrainSpec, solver: PPDSparseSolver, dataset: Dataset, workers: int, job: str) -> Pool:
    """A pool of Ray actors, on the cluster the spec names or on a local Ray of its own."""
    try:
        from xcray.execution.ray_pool import RayPool, session
    except ModuleNotFoundError as error:
        raise Unavailable(f"pool=ray needs Ray ({error.name} is missing): pip install 'xcray[ray]', or use pool=threads") from None
    return RayPool(spec.solver, solver.as_dict(), dataset, workers, session(spec.ray_address, workers), job)


def _balance(results: list[dict[str, Any]], workers: int) -> dict[str, Any]:
    """How well the work was spread: busy share of each worker, and makespan over the ideal (busy time / workers)."""
    if not results:
        return {"batches": 0, "busy_share": {}, "makespan": 0.0, "makespan_over_ideal": 1.0, "core_seconds": 0.0}
    begin = min(r["started"] for r in results)
    makespan = max(r["started"] + r["seconds"] for r in results) - begin
    busy: dict[str, float] = {}
    for r in results:
        busy[r["worker"]] = busy.get(r["worker"], 0.0) + r["seconds"]
    total = sum(busy.values())
    return {
        "batches": len(results),
        "busy_share": {worker: round(seconds / max(makespan, 1e-9), 4) for worker, seconds in sorted(busy.items())},
        "makespan": round(makespan, 3),
        "makespan_over_ideal": round(makespan / max(total / workers, 1e-9), 4),
        "core_seconds": round(total, 3),
    }


def _class_table(block: Block) -> pa.Table:
    """The per-class report: one row a label, in order of labels."""
    records = block.records
    names = ("positives", "rounds", "sweeps", "support", "violating", "nnz", "pruned", "work", "primal", "dual", "gap", "null")
    columns = {name: pa.array(np.ascontiguousarray(records[name])) for name in names}
    return pa.table({"label": pa.array(block.labels), "bias": pa.array(block.bias), **columns})
