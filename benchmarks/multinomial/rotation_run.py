"""Trainings whose blocks go round, for `benchmarks.multinomial.rotation`: on a set cut to size,
watched, and with a worker that is slow.
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
from xcray.system.memory import process_memory
from xcray.training.rotation.config import RotationConfig, TrainingOutcome, TrainingProgress
from xcray.training.rotation.shard_worker import ShardWorker, ShardWorkerSpec, make_shard_source
from xcray.training.rotation.trainer import train_rotation
from xcray.workers.pool import StopFlag
from xcray.workers.worker_group import WorkerGroup

LOOK = 0.1  # seconds between two looks at memory


@dataclass(frozen=True)
class SlowWork(ShardWorkerSpec):
    """A `ShardWork` whose visits last `pace` times the processor's time that they need, those of
    the worker `slow` `factor` times longer still: workers sleep for the rest.

    With a pace above workers / cores, workers on one machine hardly wait for each other's core, as
    if each had a machine.
    """

    slow: str = "nobody"
    factor: float = 1.0
    pace: float = 1.0

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShardWorker:
        """A hand, slow or not."""
        factor = self.pace * (self.factor if worker == self.slow else 1.0)
        return SlowHand(self, stopped, factor) if factor > 1.0 else ShardWorker(self, stopped)


class SlowHand(ShardWorker):
    """Does visits as if its processor were slower: by the processor's time that it needs, not by
    the wall clock, for on a machine with fewer cores than workers that one also tells how many
    others are at work.
    """

    def __init__(self, work: SlowWork, stopped: Callable[[], bool], factor: float) -> None:
        super().__init__(work, stopped)
        self._factor = factor

    def visit(
        self, block: WeightBlock, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, PassMetrics, float]]]:
        """A visit, and sleep; the seconds told are those of both."""
        began, used = time.monotonic(), time.thread_time()
        made, told = super().pass_block(block, shards, step, owned)
        ends = began + self._factor * (time.thread_time() - used)
        while not self._stopped() and (left := ends - time.monotonic()) > 0.0:
            time.sleep(min(left, 0.05))
        longer = (time.monotonic() - began) / sum(seconds for *_, seconds in told)
        return made, [(shard, news, seconds * longer) for shard, news, seconds in told]


class Way(NamedTuple):
    """How blocks go round: on which grid; see `DSMLRSolver` for passes and order, `Plan` for
    move.
    """

    name: str
    grid: Grid
    order: str
    passes: int
    move: bool


@dataclass
class Peaks:
    """The most that was seen of anything while a training went on, in bytes, by worker or node; and
    what workers held first.
    """

    team: WorkerGroup
    driver: int = 0
    anonymous: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    store: dict[str, int] = field(default_factory=dict)
    looked: float = 0.0

    def look(self, _: Any = None) -> None:
        """Look, if the last time is a while ago."""
        if time.monotonic() < self.looked + LOOK:
            return
        self.looked = time.monotonic()
        mine = process_memory()
        self.driver = max(self.driver, mine.anonymous if mine else 0)
        for worker, held in self.team.memory_usage().items():
            self.first.setdefault(worker, held.anonymous)
            self.anonymous[worker] = max(self.anonymous.get(worker, 0), held.anonymous)
            self.own[worker] = max(self.own.get(worker, 0), held.own)
        for node, held_there in store_use().items():
            self.store[node] = max(self.store.get(node, 0), held_there)


def frequent(name: str, data: Path, folder: Path, labels: int) -> Dataset:
    """A set of `data` with its `labels` most frequent labels, and the rows that have one of them;
    rows of length 1 as they are.
    """
    target = folder / f"{name.replace('_', '-')}-{labels}"
    if target.exists():
        return Dataset.open(target)
    whole = dataset(name, data, folder)
    counts = np.bincount(whole.train.Y.indices, minlength=whole.n_labels)
    labels = min(labels, whole.n_labels)
    kept = np.sort(np.argsort(-counts, kind="stable")[:labels])
    number = np.full(whole.n_labels, -1, np.int64)
    number[kept] = np.arange(labels)
    with DatasetWriter(
        target, name=target.name, n_features=whole.n_features, n_labels=labels
    ) as writer:
        writer.add("train", whole.train.X, renumbered(whole.train.Y, number, labels))
        return writer.finish(source={"format": "part", "files": {"whole": name}})


def renumbered(Y: Pattern, number: np.ndarray, labels: int) -> Pattern:
    """The labels of `Y` by their new numbers; those with -1 are left out."""
    found = number[Y.indices]
    before = np.concatenate([[0], np.cumsum(found >= 0)])
    return pattern(before[Y.indptr], found[found >= 0], labels)


def generated(folder: Path, rows: int, features: int, labels: int) -> Dataset:
    """A made-up set of this size."""
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
    """Work for a team; nothing is watched but the objective."""
    part = data.train
    how = make_shard_source(
        part.X, part.Y, part.weights, None, grid=grid, seed=solver.seed, bias=solver.bias
    ).split
    return SlowWork(
        solver, how, data.n_features, str(data.path), data.content_hash, slow, factor, pace
    )


def train(
    data: Dataset,
    solver: DSMLRSolver,
    grid: Grid,
    team: WorkerGroup,
    folder: Path,
    *,
    move: bool = False,
    look: Callable[[Any], None],
) -> TrainingOutcome:
    """One training from the start; `look` is called often. The finished blocks are dropped, as if
    each had gone to disk.
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

    def tell(standing: TrainingProgress) -> None:
        look(standing)

    return train_rotation(
        solver,
        team,
        rows,
        plan,
        directory=folder,
        fingerprint={"benchmark": folder.name},
        deliver=lambda block: look(None),
        stop=StopFlag(),
        on_progress=tell,
    )
