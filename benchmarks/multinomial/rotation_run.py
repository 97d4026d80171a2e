"""Trainings by block rotation for `benchmarks.multinomial.rotation`.

They use a reduced set, record the memory, and can have one slow worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster.ray_store import store_use
from benchmarks.common import dataset
from xcray.arrays import Pattern, pattern
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.rotation_contract import Grid, PassMetrics, Step, WeightBlock
from xcray.solvers.solved_labels import SolvedLabels
from xcray.system.memory import process_memory
from xcray.training.rotation.config import RotationConfig, TrainingOutcome
from xcray.training.rotation.shard_worker import ShardWorker, ShardWorkerSpec, make_shard_source
from xcray.training.rotation.trainer import train_rotation
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import StopFlag
from xcray.workers.worker_group import WorkerGroup

LOOK = 0.1  # seconds between two samples of memory


@dataclass(frozen=True)
class SlowWork(ShardWorkerSpec):
    """Worker specification whose visits last `pace` times their processor time.

    The visits of the worker `slow` last `factor` times longer still. Workers sleep for the rest.
    With a pace above workers / cores, workers on one machine rarely wait for a core, as if each had
    its own machine.
    """

    slow: str = "nobody"
    factor: float = 1.0
    pace: float = 1.0

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShardWorker:
        """Create a worker, slow or not."""
        factor = self.pace * (self.factor if worker == self.slow else 1.0)
        return SlowWorker(self, stopped, factor) if factor > 1.0 else ShardWorker(self, stopped)


class SlowWorker(ShardWorker):
    """Shard worker that behaves as if its processor were slower.

    The delay is based on processor time, not on wall-clock time, because on a machine with fewer
    cores than workers the latter depends on the other workers.
    """

    def __init__(self, work: SlowWork, stopped: Callable[[], bool], factor: float) -> None:
        super().__init__(work, stopped)
        self._factor = factor

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, PassMetrics, float]]]:
        """Run a visit, then sleep. The reported seconds include the sleep."""
        began, used = time.monotonic(), time.thread_time()
        result, report = super().pass_block(block, shards, step, owned)
        ends = began + self._factor * (time.thread_time() - used)
        while not self._stopped() and (left := ends - time.monotonic()) > 0.0:
            time.sleep(min(left, 0.05))
        longer = (time.monotonic() - began) / sum(seconds for *_, seconds in report)
        return result, [(shard, news, seconds * longer) for shard, news, seconds in report]


class RotationVariant(NamedTuple):
    """A variant of the rotation and its grid.

    For passes and order see `DSMLRSolver`, for move see `Plan`.
    """

    name: str
    grid: Grid
    order: str
    passes: int
    move: bool


@dataclass
class Peaks:
    """Largest value of each measurement during a training, in bytes, by worker or node.

    It also holds the first value of each worker.
    """

    group: WorkerGroup
    driver: int = 0
    anonymous: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    store: dict[str, int] = field(default_factory=dict)
    looked: float = 0.0

    def look(self, _: Any = None) -> None:
        """Take a sample, unless the last one is recent."""
        if time.monotonic() < self.looked + LOOK:
            return
        self.looked = time.monotonic()
        mine = process_memory()
        self.driver = max(self.driver, mine.anonymous if mine else 0)
        for worker, state in self.group.memory_usage().items():
            self.first.setdefault(worker, state.anonymous)
            self.anonymous[worker] = max(self.anonymous.get(worker, 0), state.anonymous)
            self.own[worker] = max(self.own.get(worker, 0), state.own)
        for node, held_there in store_use().items():
            self.store[node] = max(self.store.get(node, 0), held_there)


def frequent(name: str, data: Path, folder: Path, labels: int) -> Dataset:
    """Return a set of `data` with its `labels` most frequent labels, and the rows with one of them.

    Rows that have length 1 stay unchanged.
    """
    target = folder / f"{name.replace('_', '-')}-{labels}"
    if target.exists():
        return Dataset.open(target)
    whole = dataset(name, data, folder)
    counts = np.bincount(whole.train.Y.indices, minlength=whole.n_labels)
    labels = min(labels, whole.n_labels)
    selection = np.sort(np.argsort(-counts, kind="stable")[:labels])
    number = np.full(whole.n_labels, -1, np.int64)
    number[selection] = np.arange(labels)
    with DatasetWriter(
        target, name=target.name, n_features=whole.n_features, n_labels=labels
    ) as writer:
        writer.add("train", whole.train.X, renumbered(whole.train.Y, number, labels))
        return writer.finish(source={"format": "part", "files": {"whole": name}})


def renumbered(Y: Pattern, number: np.ndarray, labels: int) -> Pattern:
    """Return the labels of `Y` by their new numbers, without those numbered -1."""
    result = number[Y.indices]
    before = np.concatenate([[0], np.cumsum(result >= 0)])
    return pattern(before[Y.indptr], result[result >= 0], labels)


def generated(folder: Path, rows: int, features: int, labels: int) -> Dataset:
    """Generate a set of this size."""
    options = {"synthetic": {"rows": rows, "features": features, "labels": labels, "seed": 1}}
    return build("synthetic", {}, folder / f"made-{rows}-{labels}", BuildOptions.from_dict(options))


def work_of(
    data: Dataset,
    solver: DSMLRSolver,
    grid: Grid,
    slow: str = "nobody",
    factor: float = 1.0,
    pace: float = 1.0,
) -> SlowWork:
    """Return the worker specification, which evaluates only the objective."""
    part = data.train
    how = make_shard_source(
        part.X, part.Y, part.weights, None, grid=grid, seed=solver.seed, bias=solver.bias
    ).split
    return SlowWork(
        solver, how, data.n_features, str(data.path), data.content_hash, slow, factor, pace
    )


class _Observer(RunObserver[SolvedLabels]):
    """Calls `look` often, and drops the blocks."""

    def __init__(self, look: Callable[[Any], None]) -> None:
        self._look = look

    def commit(self, result: SolvedLabels) -> None:
        """Drop a block."""
        self._look(None)

    def report(self, progress: RunProgress) -> None:
        """Look."""
        self._look(progress)


def train(
    data: Dataset,
    solver: DSMLRSolver,
    grid: Grid,
    group: WorkerGroup,
    folder: Path,
    *,
    move: bool = False,
    look: Callable[[Any], None],
) -> TrainingOutcome:
    """Run one training from the start. `look` is called often.

    Finished blocks are dropped, as if each had been written to disk.
    """
    part = data.train
    rows = make_shard_source(
        part.X, part.Y, part.weights, None, grid=grid, seed=solver.seed, bias=solver.bias
    )
    plan = RotationConfig(
        grid,
        data.n_labels,
        data.n_features,
        data.label_counts.astype(np.int64),
        order=solver.order,
        sync_every=solver.sync_every,
        checkpoint_seconds=math.inf,
        move_shards=move,
    )

    return train_rotation(
        solver,
        group,
        rows,
        plan,
        _Observer(look),
        directory=folder,
        fingerprint={"benchmark": folder.name},
        stop=StopFlag(),
    )
