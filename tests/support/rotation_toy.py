"""Toy solver for tests of rotation trainings, whose numbers show every change of order.

It minimises nothing. A block changes with the state of each shard that it visits, and the state
of a shard changes with each block. So a visit that is missing, repeated or out of order changes
all bits that follow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.observers import FunctionObserver
from xcray.arrays import CSR, frozen, pattern
from xcray.errors import Stopped
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.rotation_contract import (
    Decision,
    Grid,
    PassMetrics,
    Step,
    SweepMetrics,
    WeightBlock,
)
from xcray.solvers.solved_labels import merge
from xcray.storage.atomic import sha256_arrays
from xcray.training.rotation.config import RotationConfig, TrainingOutcome
from xcray.training.rotation.shard_worker import ShardWorker, ShardWorkerSpec, make_shard_source
from xcray.training.rotation.trainer import train_rotation
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.pool import StopFlag

FEATURES, LABELS, WATCHED = 5, 23, 3
GRID = Grid(4, 5)
TRUTH = pattern(
    np.arange(GRID.shards * WATCHED + 1), np.arange(GRID.shards * WATCHED) % LABELS, LABELS
)


class Passed:
    """State of a shard: the blocks seen in this sweep, and a number that depends on their order."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.b = np.array([1.0 + shard, 0.0])
        self.blocks: list[int] = []

    def state(self) -> dict[str, np.ndarray]:
        """Return the state at a sync point."""
        assert not self.blocks, "a state is read at sync points only"
        return {"b": self.b}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the state of a sync point."""
        self.b, self.blocks = state["b"], []


@dataclass(frozen=True)
class Toy:
    """The solver. back: numbers of the sync points (from 1) at which it goes back.

    pause: seconds per visit.
    """

    lam: float = 0.5
    epochs: int = 6
    back: tuple[int, ...] = ()
    pause: float = 0.0

    exact_phase = None

    @property
    def stopping(self) -> StoppingRule:
        """Return that it stops after all epochs."""
        return StoppingRule("tolerance", 0.0, self.epochs, "all epochs are done")

    def objective(self, squared: Sequence[float], losses: Sequence[float]) -> float:
        """Return the norm and the losses, added in any order."""
        return 0.5 * self.lam * math.fsum(squared) + math.fsum(losses)

    def start_objective(self, n_labels: int) -> float:
        """Return the same as DS-MLR."""
        return math.log(n_labels)

    def make_shard_state(self, rows: Any, number: int, grid: Grid, watched: Any) -> Passed:
        """Return the initial state of shard `number`."""
        return Passed(number)

    def initial_block(self, lo: int, hi: int, n_features: int) -> WeightBlock:
        """Return a block before training."""
        shape = (n_features, hi - lo)
        return WeightBlock(lo, hi, np.zeros(shape, np.float32), (np.ones(shape, np.float32),))

    def sweep_kinds(self, epochs: int, observe: bool) -> tuple[str, ...]:
        """Return two sweeps per epoch, and one for evaluation."""
        return ("update", "sum") * epochs + ("observe",) * observe

    def step(
        self,
        local: Passed,
        block: WeightBlock,
        step: Step,
        *,
        owned: bool,
        stopped: Callable[[], bool],
    ) -> tuple[WeightBlock, PassMetrics]:
        """Update a block and a shard with each other."""
        self._rest(stopped)
        assert block.lo not in local.blocks, "a block visited a shard twice in a sweep"
        local.blocks.append(block.lo)
        if step.kind == "update":
            W = block.W if owned else block.W.copy()
            W *= np.float32(0.75)
            W += np.float32(step.rate * local.b[0] / (1 + block.lo))
            block = WeightBlock(block.lo, block.hi, W, (block.state[0] * np.float32(1.01),))
        else:
            local.b = np.array([local.b[0] * 0.9 + float(block.W[0, 0]), local.b[1] + step.epoch])
        squared = None if step.kind == "update" else float((block.W.astype(np.float64) ** 2).sum())
        return block, PassMetrics(squared, self._closed(local, step))

    def decide(self, history: Sequence[Any]) -> Decision:
        """Go back as configured, with half the rate; end after the last epoch."""
        newest, back = history[-1], len(history) in self.back
        ended = newest.epoch >= self.epochs and not back
        return Decision(
            newest.rate * (0.5 if back else 1.0), "all epochs are done" if ended else None, back
        )

    def export(self, block: WeightBlock, positives: Any) -> Any:
        """Return a finished block."""
        return Finished(block.lo, block.hi, block.W.copy(), block.state[0].copy(), positives)

    def _rest(self, stopped: Callable[[], bool]) -> None:
        """Wait for `pause` seconds, in slices."""
        ends = time.monotonic() + self.pause
        while self.pause and time.monotonic() < ends:
            if stopped():
                raise Stopped("as asked")
            time.sleep(0.002)

    def _closed(self, local: Passed, step: Step) -> SweepMetrics | None:
        """Return metrics when all blocks have visited a shard, None before.

        The predicted labels contain those of each row except the first.
        """
        if len(local.blocks) < GRID.blocks:
            return None
        local.blocks = []
        if step.kind != "observe":
            return None
        rows = np.arange(WATCHED) + WATCHED * local.shard
        labels = np.stack(
            [(rows + (rows % WATCHED == 0)) % LABELS, (rows + 1) % LABELS], axis=1
        ).astype(np.int32)
        scores = np.array([[2.0, 1.0]] * WATCHED, np.float32)
        return SweepMetrics(local.shard, float(local.b[0]), 0.125, WATCHED, labels, scores, rows)


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
    grid: Grid = GRID
    n_features: int = FEATURES

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShardWorker:
        """Return the worker."""
        return ShardWorker(self, stopped)  # type: ignore[arg-type]

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

    outcome: TrainingOutcome
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


def plan_of(**changes: Any) -> RotationConfig:
    """Return a configuration of the toy with checkpoints only at a stop and at the end."""
    fixed = {
        "grid": GRID,
        "n_labels": LABELS,
        "n_features": FEATURES,
        "positives": frozen(np.arange(LABELS), np.int64),
    }
    return RotationConfig(**{**fixed, "truth": TRUTH, "checkpoint_seconds": 1e9, **changes})


def observer_of(how: dict[str, Any], blocks: list[Any]) -> FunctionObserver:
    """Take the functions of an observer out of `how`; by default blocks are collected."""
    return FunctionObserver(
        how.pop("deliver", blocks.append),
        how.pop("on_progress", lambda progress: None),
        how.pop("record", lambda span: None),
        timeline=how.pop("timeline", None),
    )


def trained(
    folder: Path,
    group: Any = "serial",
    workers: int = 2,
    work: ToyWork | None = None,
    plan: RotationConfig | None = None,
    **out: Any,
) -> TrainingRun:
    """Train the toy in `folder`. group: a kind of worker group, or a group that is not open."""
    work, blocks = work or ToyWork(), list[Finished]()
    result = GROUPS[group](work, workers) if isinstance(group, str) else group
    values = observer_of(out, blocks)
    how = {"stop": StopFlag(), "fingerprint": {"run": 1}, **out}
    outcome = train_rotation(
        work.solver, result, work, plan or plan_of(), values, directory=folder, **how
    )  # type: ignore[arg-type]
    return TrainingRun(outcome, blocks)


LAM = 1e-3
COMMON = {"lam": LAM, "epochs": 4, "tolerance": 0.0, "bias": 1.0}


class Model:
    """A trained model of a data set: the outcome, W (K, D) and biases (K,)."""

    def __init__(
        self, report: TrainingOutcome, blocks: list[Any], n_labels: int, n_features: int
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
        for name in ("on_progress", "stop", "order", "record", "max_seconds", "deliver")
        if name in parameters
    }
    fields = {**COMMON, **parameters}
    solver, seen = DSMLRSolver(**fields), how.pop("deliver", lambda block: None)
    train, test = dataset.train, dataset.test
    rows = make_shard_source(
        X or train.X,
        train.Y,
        train.weights,
        (test.X, test.Y),
        grid=GRID,
        seed=solver.seed,
        bias=solver.bias,
    )
    D = dataset.n_features + bool(solver.bias)
    where = {"path": str(dataset.path), "content_hash": dataset.content_hash} if directory else {}
    work = ShardWorkerSpec(solver, rows.split, D, **where)
    plan = RotationConfig(
        GRID,
        dataset.n_labels,
        D,
        frozen(dataset.label_counts, np.int64),
        truth=test.Y if X is None else None,
        order=how.pop("order", "ring"),
        checkpoint_seconds=0.0,
        max_seconds=how.pop("max_seconds", None),
        sync_every=solver.sync_every,
    )
    blocks: list[Any] = []
    how = {"stop": StopFlag(), "fingerprint": {}, **how}
    how["deliver"] = lambda block: (blocks.append(block), seen(block))
    make = GROUPS[group] if isinstance(group, str) else group
    result = train_rotation(
        solver, make(work, workers), rows, plan, observer_of(how, blocks), directory=folder, **how
    )
    return Model(result, blocks, dataset.n_labels, dataset.n_features)
