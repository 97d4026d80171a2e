"""Toy solver for tests of trainings by shards, whose numbers show every change of order.

It minimises nothing. A block changes with the state of each shard that it visits, and the state
of a shard changes with each block. So a visit that is missing, repeated or out of order changes
all bits that follow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from tests.support.group_programs import empty_rows
from tests.support.observers import FunctionObserver
from xcray.arrays import CSR, frozen, pattern
from xcray.errors import Stopped
from xcray.schedule.calls import Call, at_worker
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.group_contract import (
    Grid,
    Layout,
    Program,
    Round,
    TrainingRows,
    WeightBlock,
    WorkerCalls,
)
from xcray.solvers.held_out import HeldOut
from xcray.solvers.solved_labels import merge
from xcray.storage import checkpoints
from xcray.storage.atomic import sha256_arrays
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.group_training import train_group
from xcray.training.group_workers import GroupWorkerFactory, make_parts
from xcray.training.program_loop import ProgramOutcome
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.shard_worker import ShardWorker
from xcray.training.shards.source import ShardSource, split_plan
from xcray.workers.local_group import SerialGroup, ThreadGroup

FEATURES, LABELS, WATCHED = 5, 23, 3
GRID = Grid(4, 5)
TRUTH = pattern(
    np.arange(GRID.shards * WATCHED + 1), np.arange(GRID.shards * WATCHED) % LABELS, LABELS
)


class ToyStep(NamedTuple):
    """What a sweep does: "update" changes the blocks, "sum" and "observe" change the shards."""

    kind: str
    epoch: int
    rate: float


class ToyWorker:
    """The shards of a worker: of each a number that depends on the order of its blocks."""

    def __init__(self, toy: Toy, n_features: int, stopped: Callable[[], bool]) -> None:
        self._toy = toy
        self._n_features = n_features
        self._stopped = stopped
        self.b: dict[int, np.ndarray] = {}
        self._passed: dict[int, list[int]] = {}

    def add_shard(self, number: int, rows: Any, held_out: Any) -> None:
        """Hold a shard in its initial state."""
        self.b[number], self._passed[number] = np.array([1.0 + number, 0.0]), []

    def drop_shard(self, number: int) -> None:
        """Free a shard."""
        del self.b[number], self._passed[number]

    def state(self, number: int) -> dict[str, np.ndarray]:
        """Return the state of a shard at a sync point."""
        assert not self._passed[number], "a state is read at sync points only"
        return {"b": self.b[number]}

    def restore(self, number: int, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point."""
        self.b[number], self._passed[number] = state["b"], []

    def create_block(self, lo: int, hi: int) -> tuple[WeightBlock, None]:
        """Create a block before training."""
        shape = (self._n_features, hi - lo)
        state = (np.ones(shape, np.float32),)
        return WeightBlock(lo, hi, np.zeros(shape, np.float32), state), None

    def pass_block(
        self, block: WeightBlock, shards: Sequence[int], step: ToyStep, owned: bool
    ) -> tuple[WeightBlock | None, list[tuple[int, Any, float]]]:
        """Change a block in an "update" sweep, and the shards in others; report their losses."""
        results = []
        for shard in shards:
            began = time.monotonic()
            self._rest()
            assert block.lo not in self._passed[shard], "a block visited a shard twice in a sweep"
            self._passed[shard].append(block.lo)
            b = self.b[shard]
            if step.kind == "update":
                W = block.W if owned and block.W.flags.writeable else block.W.copy()
                W *= np.float32(0.75)
                W += np.float32(step.rate * b[0] / (1 + block.lo))
                state = (block.state[0] * np.float32(1.01),)
                block, owned = WeightBlock(block.lo, block.hi, W, state), True
            else:
                changed = [b[0] * 0.9 + float(block.W[0, 0]), b[1] + step.epoch]
                self.b[shard] = np.array(changed)
            if len(self._passed[shard]) == GRID.blocks:
                self._passed[shard] = []
            squared = float((block.W.astype(np.float64) ** 2).sum())
            report = squared, self._toy.loss(self.b[shard])
            results.append((shard, report, time.monotonic() - began))
        return block if step.kind == "update" else None, results

    def export_labels(self, block: WeightBlock, positives: Any) -> tuple[Finished, None]:
        """Create a finished block."""
        return Finished(block.lo, block.hi, block.W.copy(), block.state[0].copy(), positives), None

    def _rest(self) -> None:
        """Wait for `pause` seconds, in slices."""
        ends = time.monotonic() + self._toy.pause
        while self._toy.pause and time.monotonic() < ends:
            if self._stopped():
                raise Stopped("as asked")
            time.sleep(0.002)


@dataclass(frozen=True)
class Toy:
    """The solver. back: numbers of the sync points (from 1) at which it goes back.

    sync_every: epochs between two sync points. pause: seconds per visit.
    """

    lam: float = 0.5
    epochs: int = 6
    back: tuple[int, ...] = ()
    sync_every: int = 1
    order: str = "ring"
    seed: int = 0
    pause: float = 0.0
    exports: ClassVar[str] = "weights"

    @property
    def stopping(self) -> StoppingRule:
        """Return that it stops after all epochs."""
        return StoppingRule("tolerance", 0.0, self.epochs, "all epochs are done")

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Any
    ) -> ToyWorker:
        """Return a worker without shards."""
        return ToyWorker(self, rows.X.n_cols, stopped)

    def loss(self, b: np.ndarray) -> float:
        """Return the loss of a shard in a state."""
        return float(b[0])

    def judge(self, number: int, epoch: int) -> tuple[bool, str]:
        """Return whether to go back at a sync point, and why to end."""
        back = number in self.back
        return back, "all epochs are done" if epoch >= self.epochs and not back else ""

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Go back as configured, with half the rate; end after the last epoch."""
        if state is None:
            number, epoch, rate, reason = 0, 0, 1.0, ""
            blocks = calls.create_blocks(ToyWorker.create_block, LABELS)
            calls.keep_state()
        else:
            number, epoch, rate, reason = state.note["position"]
            blocks = list(state.placed)
        while not reason:
            epochs = min(self.sync_every, self.epochs - epoch)
            kinds = [*("update", "sum") * epochs, "observe"]
            steps = [ToyStep(kind, epoch + 1 + n // 2, rate) for n, kind in enumerate(kinds)]
            after = calls.rotate(
                blocks, steps, order=self.order, seed=self.seed + number, epochs=epochs
            )
            number += 1
            squared = {block: values[0] for block, _, values in after.reports}
            losses = {shard: values[1] for _, shard, values in after.reports}
            objective = 0.5 * self.lam * math.fsum(squared.values()) + math.fsum(losses.values())
            back, reason = self.judge(number, epoch + epochs)
            entry = {"epoch": epoch + epochs, "rate": rate, "objective": objective, "back": back}
            if back:
                calls.restore_state()
                rate *= 0.5
            else:
                calls.keep_state()
                blocks, epoch = after.blocks, epoch + epochs
            note = {"position": [number, epoch, rate, reason]}
            yield Round(epoch, TrainingState(note, {}, blocks), entry, self._held_out())
        return reason

    def export(self, calls: WorkerCalls, state: TrainingState, positives: Any) -> Iterator[Any]:
        """Yield the finished blocks."""
        ends = [LABELS * block // GRID.blocks for block in range(GRID.blocks + 1)]
        exports = [
            Call(worker, ToyWorker.export_labels, at_worker(block), positives[lo:hi])
            for (worker, block), (lo, hi) in zip(state.placed, pairwise(ends), strict=True)
        ]
        for finished, _ in calls.call_many(exports):
            yield calls.fetch(finished.handle)

    def _held_out(self) -> HeldOut:
        """Return predicted labels that contain those of all rows but every third."""
        rows = np.arange(WATCHED * GRID.shards)
        labels = np.stack([(rows + (rows % WATCHED == 0)) % LABELS, (rows + 1) % LABELS], axis=1)
        scores = np.array([[2.0, 1.0]] * len(rows))
        return HeldOut(0.125 * GRID.shards, labels.astype(np.int32), scores, rows)


class Finished(NamedTuple):
    """A block as delivered."""

    lo: int
    hi: int
    W: np.ndarray
    state: np.ndarray
    positives: Any


class _Cut(NamedTuple):
    """The part of a shard's rows that workers use."""

    rows: np.ndarray
    X: Any


class _Size(NamedTuple):
    """The part of X that workers use."""

    nnz: int


@dataclass(frozen=True)
class ToyWork:
    """Creates workers; also the driver's source of rows.

    data_visible: whether workers can open shards without the driver.
    """

    solver: Toy = field(default_factory=Toy)
    data_visible: bool = True
    n_features: int = FEATURES

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShardWorker:
        """Return the worker."""
        return ShardWorker(ToyWorker(self.solver, self.n_features, stopped), self.open)

    def warm_up(self) -> None:
        """Do nothing: there are no kernels to compile."""

    def open(self) -> Any:
        """Return the source of shards, or None."""
        return self if self.data_visible else None

    def cut_shard(self, shard: int) -> Any:
        """Return a shard and its held-out rows."""
        return _Cut(np.arange(10 + shard), _Size(100 + shard)), None


GROUPS: dict[str, Any] = {"serial": SerialGroup, "threads": ThreadGroup}


class TrainingRun(NamedTuple):
    """A finished training."""

    outcome: ProgramOutcome
    blocks: list[Finished]

    @property
    def bits(self) -> str:
        """SHA-256 of all delivered blocks."""
        arrays = [
            {"W": b.W, "state": b.state, "ends": np.array([b.lo, b.hi]), "n": b.positives}
            for b in self.blocks
        ]
        return sha256_arrays(
            {f"{n}.{name}": array for n, each in enumerate(arrays) for name, array in each.items()}
        )


def observer_of(how: dict[str, Any], blocks: list[Any]) -> FunctionObserver:
    """Take the functions of an observer out of `how`; by default blocks are collected."""
    return FunctionObserver(
        how.pop("deliver", blocks.append),
        how.pop("on_progress", lambda progress: None),
        how.pop("record", lambda span: None),
        timeline=how.pop("timeline", None),
        discard=how.pop("discard", blocks.clear),
    )


def trained(
    folder: Path,
    group: Any = "serial",
    workers: int = 2,
    work: ToyWork | None = None,
    between: float = 1e9,
    **out: Any,
) -> TrainingRun:
    """Train the toy in `folder`. group: a kind of worker group, or a group that is not open.

    between: seconds between two checkpoints; infinity for none.
    """
    work, blocks = work or ToyWork(), list[Finished]()
    result = GROUPS[group](work, workers) if isinstance(group, str) else group
    values = observer_of(out, blocks)
    how = {
        "folder": None if math.isinf(between) else CheckpointFolder(folder),
        "positives": frozen(np.arange(LABELS), np.int64),
        "truth": TRUTH,
        **out,
    }
    layout, rows = Layout(workers, grid=GRID), empty_rows(FEATURES, LABELS)
    parts = ShardAssignment(result, work, GRID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seconds_between", lambda _: between)
        outcome = train_group(work.solver, rows, layout, parts, values, **how).outcome
    return TrainingRun(outcome, blocks)


LAM = 1e-3
COMMON = {"lam": LAM, "epochs": 4, "tolerance": 0.0, "bias": 1.0}


class Model:
    """A trained model of a data set: the outcome, W (K, D) and biases (K,)."""

    def __init__(
        self, report: ProgramOutcome, blocks: list[Any], n_labels: int, n_features: int
    ) -> None:
        self.outcome = report
        self.block = merge(blocks, n_labels, n_features)
        self.W = self.block.W.to_scipy().toarray().astype(np.float64)
        self.bias = self.block.bias


def trained_dsmlr(
    dataset: Any,
    folder: Path,
    group: Any = "serial",
    workers: int = 1,
    *,
    directory: bool = True,
    X: CSR | None = None,
    **parameters: Any,
) -> Model:
    """Train DS-MLR on a data set.

    group: a kind of worker group, or a function of work and number of workers. directory: whether
    workers open the directory of the data set. X: rows that replace those of the data set.
    """
    how = {
        name: parameters.pop(name)
        for name in ("on_progress", "stop", "record", "max_seconds", "deliver")
        if name in parameters
    }
    fields = {**COMMON, **parameters}
    solver, seen = DSMLRSolver(**fields), how.pop("deliver", lambda block: None)
    train, test = dataset.train, dataset.test
    rows = TrainingRows(X or train.X, train.Y, train.weights, (test.X, test.Y, None))
    source = ShardSource(GRID, split_plan(rows, GRID, solver.seed, solver.bias), rows)
    where = (str(dataset.path), dataset.content_hash) if directory else ()
    none = empty_rows(dataset.n_features, dataset.n_labels)
    layout = Layout(workers, grid=GRID)
    work = GroupWorkerFactory(solver, none, layout, source.split, *where)
    blocks: list[Any] = []
    how = {
        "folder": CheckpointFolder(folder),
        "positives": frozen(dataset.label_counts, np.int64),
        "truth": test.Y if X is None else None,
        **how,
    }
    how["deliver"] = lambda block: (blocks.append(block), seen(block))
    make = GROUPS[group] if isinstance(group, str) else group
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
        observer = observer_of(how, blocks)
        parts = make_parts(make(work, workers), layout, source)
        result = train_group(solver, rows, layout, parts, observer, **how)
    return Model(result.outcome, blocks, dataset.n_labels, dataset.n_features)
