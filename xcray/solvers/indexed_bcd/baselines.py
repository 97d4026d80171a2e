"""Baselines of indexed block coordinate descent: block minimisation and Pegasos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import ClassVar, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern, frozen
from xcray.certificate import is_certified
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.forest import extended_norms
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.pegasos import Steps, take_steps
from xcray.solvers.declarations import RecordField, RecordSchema, StoppingRule, TaskNeeds
from xcray.solvers.indexed_bcd.disk_blocks import NO_ROWS, DiskBlocks
from xcray.solvers.indexed_bcd.one_vs_rest import HingeOneVsRest, HingeState, new_scratch
from xcray.solvers.indexed_bcd.selection import ExactScan
from xcray.solvers.parameters import parameter

BYTES_PER_ROW = 40  # norms, losses, row numbers and blocks, in addition to the scratch memory

BLOCK_RECORDS = RecordSchema(
    RecordField("rows_read", np.int64, "rows of the blocks that were read", "rows_read"),
    RecordField("bytes_read", np.int64, "bytes of blocks that were read", "bytes_read"),
    RecordField("support", np.int32, "rows with a non-zero dual variable", "support"),
    RecordField("primal", np.float64, "primal objective", "objective"),
    RecordField("dual", np.float64, "dual objective"),
    RecordField("gap", np.float64, "duality gap over all rows", "gap"),
    RecordField("null", np.float64, "hinge objective of w = 0 with the best bias", "null"),
)
PEGASOS_RECORDS = RecordSchema(
    RecordField("rows_read", np.int64, "rows that were read", "rows_read"),
    RecordField("primal", np.float64, "primal objective", "objective"),
    RecordField("null", np.float64, "hinge objective of w = 0 with the best bias", "null"),
)


class BaselineProgress(NamedTuple):
    """State of a training after a block or epoch.

    v: (D + 1,); reads: rows read; support: rows with a non-zero dual variable, 0 for Pegasos.
    """

    v: Float64
    reads: int
    support: int


@dataclass(frozen=True)
class Baseline(HingeOneVsRest):
    """Base of the baselines."""

    baseline: ClassVar[bool] = True

    C: float = parameter(1.0, "weight of a row's loss", above=0.0)
    loss: str = parameter("hinge", "loss of a row", choices=("hinge", "squared_hinge"))
    seed: int = parameter(0, "seed of random orders; every label has its own stream", low=0)

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the squared hinge."""
        return self.loss == "squared_hinge"

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the arrays of a label."""
        return TaskNeeds(BYTES_PER_ROW * X.n_rows + 24 * X.n_cols)

    def progress(
        self, local: HingeState, label: int, check: Callable[[], None]
    ) -> Iterator[BaselineProgress]:
        """Train a label with the state `local`; yield after each block or epoch."""
        raise NotImplementedError


def _reset(local: HingeState, label: int) -> None:
    """Write the initial state of a label."""
    state = local.scratch
    state.y.fill(-1)
    state.y[local.positives(label)] = 1
    state.alpha.fill(0.0)
    state.v.fill(0.0)


@dataclass(frozen=True)
class BlockMinimisationSolver(Baseline):
    """One-vs-rest linear SVM by sweeps over one random block of rows after the other.

    For every label k, with y_i = +1 if row i has label k and -1 otherwise:

        min over (w, b)   1/2 (|w|^2 + b^2) + C sum_i max(0, 1 - y_i (w.x_i + b))

    With `loss` squared_hinge the loss of a row is squared. An epoch visits all blocks in random
    order, and takes `sweeps` sweeps of dual coordinate descent over each. The training ends when
    the duality gap over all rows, computed after every epoch, is at most `eps` times the null
    objective. A baseline of `indexed-bcd`: the blocks are in a temporary file (in the directory of
    the data set, or of the system), and one of them is in memory. `bytes_read` counts the bytes of
    the blocks that are swept; the gap reads all blocks again, and they are left out.
    State at a worker: a block of X, the norms of all rows, and scratch memory of 27 bytes per row.

        Example:
            >>> BlockMinimisationSolver(blocks=10).sweeps
            3

    Source: Yu, Hsieh, Chang, Lin, "Large linear classification when data cannot fit in memory", KDD
    2010, Algorithm 2 and section 3.1.
    """

    revision: ClassVar[int] = 2
    records: ClassVar[RecordSchema] = BLOCK_RECORDS

    eps: float = parameter(
        0.001,
        "a label ends when its duality gap is at most eps times the null objective",
        above=0.0,
        high=1.0,
    )
    blocks: int = parameter(20, "blocks of rows", low=1)
    sweeps: int = parameter(3, "sweeps over a block per visit", low=1)
    max_epochs: int = parameter(300, "maximum number of epochs", low=1)

    @property
    def stopping(self) -> StoppingRule:
        """Return when a label ends."""
        reached = f"the gap is at most {self.eps:g} of the null objective"
        return StoppingRule(
            "certificate", self.eps, self.max_epochs, reached, ("eps", "max_epochs")
        )

    def certified(self, records: np.ndarray) -> np.ndarray:
        """Return (n,) bool: a gap of at most `eps` of the null objective."""
        return is_certified(records, self.eps)

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> HingeState:
        """Return the state of a worker, with its blocks in the temporary directory."""
        return self._write_blocks(X, YT, weights, Path(gettempdir()))

    def load_dataset(self, dataset: Dataset, memory_limit: int | None = None) -> HingeState:
        """Return the state of a worker, with its blocks in its directory."""
        train = dataset.train
        return self._write_blocks(train.X, train.YT, train.weights, dataset.path)

    def _write_blocks(
        self, X: CSR, YT: Pattern, weights: Float32 | None, folder: Path
    ) -> HingeState:
        """Return the state of a worker, with its blocks in a file; see `load`."""
        order = np.random.default_rng(self.seed).permutation(X.n_rows)
        costs = self.row_costs(weights, X.n_rows)[order]
        store = DiskBlocks(
            X,
            order,
            min(self.blocks, X.n_rows),
            frozen(extended_norms(X)[order], np.float64),
            frozen(costs, np.float64),
            self.is_squared,
            folder,
        )
        scratch, positions = new_scratch(X.n_rows, X.n_cols), np.argsort(order).astype(np.int32)
        return HingeState(store, YT, ExactScan(X), scratch, frozen(positions, np.int32))

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the arrays of a label, and of a block and its copy."""
        needs = super().task_needs(X)
        return needs._replace(n_bytes=needs.n_bytes + 16 * X.nnz // self.blocks)

    def progress(
        self, local: HingeState, label: int, check: Callable[[], None]
    ) -> Iterator[BaselineProgress]:
        """Train a label with the state `local`; yield after each block."""
        _reset(local, label)
        store, state = _blocks(local), local.scratch
        rng, reads = np.random.default_rng([self.seed, label]), 0
        store.hold(NO_ROWS)
        for _ in range(self.max_epochs):
            for number in rng.permutation(store.n_blocks):
                chosen = store.open(int(number))
                for _ in range(self.sweeps):
                    rng.shuffle(chosen)
                    for part, rows in store.active_parts(chosen):
                        check()
                        kernel.sweep(rows, state, part, np.inf, -np.inf)
                reads += int(store.edges[number + 1] - store.edges[number])
                store.hold(self._select(local, chosen))
                yield BaselineProgress(state.v, reads, int((state.alpha > 0.0).sum()))

    def _select(self, local: HingeState, chosen: Int64) -> Int64:
        """Return the rows that remain in memory for the next block: none."""
        return NO_ROWS

    def _loss(self, local: HingeState, check: Callable[[], None]) -> float:
        """Return the loss of all rows at the present weights; the held rows remain."""
        store, total = _blocks(local).clone(), 0.0
        for number in range(store.n_blocks):
            for part, rows in store.active_parts(store.open(number)):
                check()
                total = kernel.hinge_sum(rows, local.scratch, part, total)
        return total

    def solve_label(
        self, local: HingeState, label: int, record: np.ndarray, check: Callable[[], None]
    ) -> Float64:
        """Return the weights and the bias of a label (D + 1,); write its record (1,)."""
        state, null = local.scratch, self.null_objective(local, label)
        store, everywhere = _blocks(local), np.arange(len(state.y))
        store.bytes_read = 0
        for visits, now in enumerate(self.progress(local, label, check), 1):
            if visits % store.n_blocks:
                continue
            half = 0.5 * float(state.v @ state.v)
            primal = half + self._loss(local, check)
            dual = kernel.dual_sum(state, store.costs, self.is_squared, everywhere) - half
            record["bytes_read"] = store.bytes_read
            record["rounds"], record["rows_read"], record["support"] = (
                visits // store.n_blocks,
                now.reads,
                now.support,
            )
            record["primal"], record["dual"], record["gap"] = primal, dual, primal - dual
            if primal - dual <= self.eps * null:
                break
        record["positives"], record["null"] = len(local.positives(label)), null
        return state.v.copy()


@dataclass(frozen=True)
class SelectiveBlockMinimisationSolver(BlockMinimisationSolver):
    """Block minimisation that keeps informative rows in memory from one block to the next.

    The rows of a block and of the cache that are nearest to the margin, |y_i (w.x_i + b) - 1|, stay
    in memory and take part in the sweeps over the next block. Problem, certificate and other
    parameters are those of `BlockMinimisationSolver`.

        Example:
            >>> SelectiveBlockMinimisationSolver().cache
            1.0

    Source: Chang, Roth, "Selective block minimization for faster convergence of limited memory
    large-scale linear models", KDD 2011, Algorithm 1. Differs from the paper: the distance from the
    margin is the only measure of how informative a row is.
    """

    cache: float = parameter(1.0, "rows in the cache, as a multiple of a block", above=0.0)

    def _select(self, local: HingeState, chosen: Int64) -> Int64:
        """Return the rows nearest to the margin."""
        margins, begin = np.empty(len(chosen)), 0
        for part, rows in local.store.active_parts(chosen):
            kernel.write_margins(rows, local.scratch, part, margins[begin : begin + len(part)])
            begin += len(part)
        size = int(self.cache * -(-len(local.scratch.y) // self.blocks))
        nearest = np.argsort(np.abs(margins - 1.0), kind="stable")[:size]
        return chosen[nearest]


def _blocks(local: HingeState) -> DiskBlocks:
    """Return the blocks of a worker."""
    assert isinstance(local.store, DiskBlocks)
    return local.store


@dataclass(frozen=True)
class PegasosSolver(Baseline):
    """One-vs-rest linear SVM by stochastic subgradient steps, one row per step.

    The problem is that of `BlockMinimisationSolver`, with lambda = 1 / (C N): the bias is a weight.
    Step t has the size 1 / (lambda t), and the weights are projected on the ball that contains the
    optimum. Rows are visited in a random order per epoch. There is no certificate: training ends
    after `epochs` epochs. A baseline of `indexed-bcd`. State at a worker: X, the norms of its rows,
    and scratch memory of 27 bytes per row.

        Example:
            >>> PegasosSolver(epochs=5).C
            1.0

    Source: Shalev-Shwartz, Singer, Srebro, "Pegasos", ICML 2007, Figure 1. Differs from the paper:
    each epoch visits every row once, instead of rows drawn with replacement. With `loss`
    squared_hinge a step is multiplied by the derivative 2 (1 - y_i (w.x_i + b)), and the ball has
    half the squared radius.
    """

    revision: ClassVar[int] = 1
    records: ClassVar[RecordSchema] = PEGASOS_RECORDS

    epochs: int = parameter(10, "passes over all rows", low=1)

    @property
    def stopping(self) -> StoppingRule:
        """Return when a label ends."""
        reached = f"{self.epochs} epochs are done"
        return StoppingRule("tolerance", 0.0, self.epochs, reached, ("epochs", "epochs"))

    def largest_gap(self, records: np.ndarray) -> None:
        """Return None: there are no gaps."""
        return

    def progress(
        self, local: HingeState, label: int, check: Callable[[], None]
    ) -> Iterator[BaselineProgress]:
        """Train a label with the state `local`; yield after each epoch."""
        _reset(local, label)
        state, rng = local.scratch, np.random.default_rng([self.seed, label])
        squared_radius = local.store.costs.sum() / (2.0 if self.is_squared else 1.0)
        radius, steps = float(np.sqrt(squared_radius)), Steps(0, 1.0, 0.0)
        order = np.arange(len(state.y))
        for epoch in range(1, self.epochs + 1):
            rng.shuffle(order)
            for part, rows in local.store.active_parts(order):
                check()
                steps = Steps(*take_steps(rows, state.y, part, radius, state.v, steps))
            state.v[:] *= steps.scale
            steps = steps._replace(scale=1.0)
            yield BaselineProgress(state.v, epoch * len(order), 0)

    def solve_label(
        self, local: HingeState, label: int, record: np.ndarray, check: Callable[[], None]
    ) -> Float64:
        """Return the weights and the bias of a label (D + 1,); write its record (1,)."""
        for now in self.progress(local, label, check):
            record["rows_read"] = now.reads
        v = local.scratch.v
        record["rounds"], record["positives"] = self.epochs, len(local.positives(label))
        loss, everywhere = 0.0, np.arange(len(local.scratch.y))
        for part, rows in local.store.active_parts(everywhere):
            check()
            loss = kernel.hinge_sum(rows, local.scratch, part, loss)
        record["primal"] = 0.5 * float(v @ v) + loss
        record["null"] = self.null_objective(local, label)
        return v.copy()
