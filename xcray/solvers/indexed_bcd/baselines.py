"""Baselines of indexed block coordinate descent: block minimisation and Pegasos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int64
from xcray.certificate import is_within
from xcray.kernels.training import dual_hinge as kernel
from xcray.kernels.training.pegasos import Steps, take_steps
from xcray.solvers.contract import summarize_records
from xcray.solvers.declarations import RecordField, RecordSchema, StoppingRule, TaskNeeds
from xcray.solvers.indexed_bcd.one_vs_rest import HingeOneVsRest, HingeState
from xcray.solvers.parameters import parameter

BYTES_PER_ROW = 40  # norms, losses, row numbers and blocks, in addition to the scratch memory

BLOCK_RECORDS = RecordSchema(
    RecordField("rows_read", np.int64, "rows of the blocks that were read", "rows_read"),
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
    """Base of the baselines, which train on rows in memory, in the order of the data."""

    baseline: ClassVar[bool] = True

    C: float = parameter(1.0, "weight of a row's loss", above=0.0)
    seed: int = parameter(
        0, "seed of random orders; every label has its own stream", low=0, high=2**31 - 1
    )

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the arrays of a label."""
        return TaskNeeds(BYTES_PER_ROW * X.n_rows + 24 * X.n_cols, equal_costs=True)

    def progress(
        self, local: HingeState, label: int, check: Callable[[], None]
    ) -> Iterator[BaselineProgress]:
        """Train a label with the state `local`; yield after each block or epoch."""
        raise NotImplementedError

    def _loss(self, local: HingeState, check: Callable[[], None]) -> float:
        """Return the loss of all rows at the present weights."""
        total = 0.0
        for part, rows in local.store.active_parts(np.arange(len(local.scratch.y))):
            check()
            total = kernel.hinge_sum(rows, local.scratch, part, total)
        return total


def _reset(local: HingeState, label: int) -> None:
    """Write the initial state of a label."""
    state = local.scratch
    state.y.fill(-1)
    state.y[local.positives(label)] = 1
    state.alpha.fill(0.0)
    state.v.fill(0.0)


@dataclass(frozen=True)
class BlockMinimisationSolver(Baseline):
    """One-vs-rest l1-loss SVM by sweeps over one random block of rows after the other.

    For every label k, with y_i = +1 if row i has label k and -1 otherwise:

        min over (w, b)   1/2 (|w|^2 + b^2) + C sum_i max(0, 1 - y_i (w.x_i + b))

    An epoch visits all blocks in random order, and takes `sweeps` sweeps of dual coordinate descent
    over each. The training ends when the duality gap over all rows, computed after every epoch, is
    at most `eps` times the null objective. A baseline of `indexed-bcd`: the blocks stay in memory
    here, and `rows_read` counts what a reader of blocks would read. State at a worker: X, the norms
    of its rows, and scratch memory of 27 bytes per row.

        Example:
            >>> BlockMinimisationSolver(blocks=10).sweeps
            3

    Source: Yu, Hsieh, Chang, Lin, "Large linear classification when data cannot fit in memory", KDD
    2010, Algorithm 2 and section 3.1.
    """

    revision: ClassVar[int] = 1
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
        certified = is_within(records, self.eps)
        certified &= records["rounds"] >= 0
        certified |= records["positives"] == 0
        return certified

    def summarize(self, records: np.ndarray) -> dict[str, Any]:
        """Return the default counts, support vectors, and rows read."""
        return {
            **summarize_records(self, records),
            "support_vectors": int(records["support"].sum()),
            "rows_read": int(records["rows_read"].sum()),
        }

    def progress(
        self, local: HingeState, label: int, check: Callable[[], None]
    ) -> Iterator[BaselineProgress]:
        """Train a label with the state `local`; yield after each block."""
        _reset(local, label)
        state, rng = local.scratch, np.random.default_rng([self.seed, label])
        n = len(state.y)
        blocks = np.array_split(rng.permutation(n), min(self.blocks, n))
        cached, reads = np.empty(0, np.int64), 0
        for _ in range(self.max_epochs):
            for number in rng.permutation(len(blocks)):
                block = blocks[number]
                chosen = np.concatenate([block, cached[~np.isin(cached, block)]])
                for _ in range(self.sweeps):
                    rng.shuffle(chosen)
                    for part, rows in local.store.active_parts(chosen):
                        check()
                        kernel.sweep(rows, state, part, np.inf, -np.inf)
                reads += len(block)
                cached = self._select(local, chosen)
                yield BaselineProgress(state.v, reads, int((state.alpha > 0.0).sum()))

    def _select(self, local: HingeState, chosen: Int64) -> Int64:
        """Return the rows that remain in memory for the next block: none."""
        return np.empty(0, np.int64)

    def solve_label(
        self, local: HingeState, label: int, record: np.ndarray, check: Callable[[], None]
    ) -> Float64:
        """Return the weights and the bias of a label (D + 1,); write its record (1,)."""
        state, null = local.scratch, self.null_objective(local, label)
        n_blocks = min(self.blocks, len(state.y))
        for visits, now in enumerate(self.progress(local, label, check), 1):
            if visits % n_blocks:
                continue
            half = 0.5 * float(state.v @ state.v)
            primal = half + self._loss(local, check)
            dual = float(state.alpha.sum()) - half
            record["rounds"], record["rows_read"], record["support"] = (
                visits // n_blocks,
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


@dataclass(frozen=True)
class PegasosSolver(Baseline):
    """One-vs-rest l1-loss SVM by stochastic subgradient steps, one row per step.

    The problem is that of `BlockMinimisationSolver`, with lambda = 1 / (C N): the bias is a weight.
    Step t has the size 1 / (lambda t), and the weights are projected on the ball that contains the
    optimum. Rows are visited in a random order per epoch. There is no certificate: training ends
    after `epochs` epochs. A baseline of `indexed-bcd`. State at a worker: X, the norms of its rows,
    and scratch memory of 27 bytes per row.

        Example:
            >>> PegasosSolver(epochs=5).C
            1.0

    Source: Shalev-Shwartz, Singer, Srebro, "Pegasos", ICML 2007, Figure 1. Differs from the paper:
    each epoch visits every row once, instead of rows drawn with replacement.
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
        radius, steps = float(np.sqrt(local.store.costs.sum())), Steps(0, 1.0, 0.0)
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
        record["primal"] = 0.5 * float(v @ v) + self._loss(local, check)
        record["null"] = self.null_objective(local, label)
        return v.copy()
