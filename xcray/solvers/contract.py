"""Contract of solvers: what every solver declares, and the independent family.

A solver is a frozen dataclass of its parameters that subclasses the protocol of its family. The
other family is `group_contract.GroupSolver`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, Protocol, Self

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern, frozen
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.solvers.declarations import (
    Bounds,
    CompileCase,
    EarlierLabels,
    Exports,
    Link,
    RecordSchema,
    RowChange,
    StoppingRule,
    TaskNeeds,
    Tuning,
)
from xcray.solvers.solved_labels import SolvedLabels


class Solver(Protocol):
    """Members of the solvers of all families; see `xcray.solvers.declarations`.

    revision: incremented with every change of the bits of a model or of the fields of records, so
    that no run mixes parts of two revisions. link: from scores to probabilities. records: schema of
    the per-label records. exports: what the training publishes. compile_cases: trainings that
    compile all its kernels. baseline: whether it is for comparisons with a paper; others are better
    for the same problem. tuning: what `--auto` varies; None if it does not choose parameters of
    this solver, which must be a `WarmStartSolver` otherwise. warm_starts: whether it is a
    `WarmStartSolver`. solves_alone: whether each label is solved without the others.
    certifies_all: whether gaps are shares of one certificate of all labels.
    """

    warm_starts: ClassVar[bool] = False
    solves_alone: ClassVar[bool] = False
    certifies_all: ClassVar[bool] = False
    revision: ClassVar[int]
    records: ClassVar[RecordSchema]
    exports: ClassVar[Exports] = "weights"
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase(),)
    baseline: ClassVar[bool] = False
    tuning: ClassVar[Tuning | None] = None

    @property
    def link(self) -> Link:
        """Return how scores become probabilities."""

    @property
    def stopping(self) -> StoppingRule:
        """Return when a training with these parameters ends."""

    @property
    def seed(self) -> int | None:
        """Return the seed of all random numbers; None for deterministic solvers."""
        return None

    @property
    def row_norm(self) -> str:
        """Return how rows are normalised, in training and in every request: one of ROW_NORMS."""
        return "none"

    def as_dict(self) -> dict[str, Any]:
        """Return all parameters by name."""

    def warm_up(self) -> None:
        """Compile or load the kernels. By default there are none."""
        return

    def certified(self, records: np.ndarray) -> np.ndarray | None:
        """Return (n,) bool, which labels are certified; None if the solver certifies none.

        records: (n,) as in the schema. Labels with rounds = -1 were not trained.
        """
        return None

    def largest_gap(self, records: np.ndarray) -> float | None:
        """Return the largest relative duality gap of the labels; None if there are no gaps."""
        return None

    def check_updatable(self) -> None:
        """Raise ParameterError if changed rows give no bound for solved labels."""
        raise ParameterError(
            "labels of this solver have no dual bound that holds for changed rows: train again, "
            "or use ppdsparse or l2svm"
        )

    def summarize(self, records: np.ndarray) -> dict[str, Any]:
        """Return counts of the records (n,) for the report of a training; JSON.

        By default: labels without training rows, the sums of `SUMMED` that are recorded, and, if
        there are certificates, "stopped": why the training ended, and "converged": whether it did
        with its tolerance.
        """
        return summarize_records(self, records)


class SolverState(Protocol):
    """State of a solver at a worker: the shared read-only problem, and scratch memory.

    A dataclass or named tuple, so that the memory of its arrays can be measured.
    """

    def clone_for_thread(self) -> Self:
        """Return the same problem with separate scratch memory, for another thread."""


class IndependentSolver(Solver, Protocol):
    """Solves each label alone, with the same bits in any batch, on any worker, at any time.

    cost_rates: (T,) seconds of one core per unit of each column of `cost_terms`; a first estimate
    that schedules refine while they run.
    """

    family: ClassVar[Literal["independent"]] = "independent"
    solves_alone: ClassVar[bool] = True
    cost_rates: ClassVar[tuple[float, ...]]

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels.

        local: the state that they will be used with, see `solve`; None if there is none yet.
        """
        return

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> SolverState:
        """Return the state of a worker.

        X: (N, D); XT: (D, N), its transpose; YT: (K, N), the samples of each label. weights: (N,)
        float32 above 0, factors of the sample losses; None for 1. Raises ParameterError if the
        weights do not fit or the solver does not support weights.
        """

    def reload(
        self,
        before: SolverState,
        X: CSR,
        XT: CSR,
        YT: Pattern,
        weights: Float32 | None = None,
    ) -> SolverState:
        """Return the state of a worker, see `load`, with parts of an earlier state if they fit.

        before: a state of this kind of solver with other parameters, for the same data.
        """
        return self.load(X, XT, YT, weights)

    def load_dataset(self, dataset: Dataset, memory_limit: int | None = None) -> SolverState:
        """Return the state of a worker that sees the directory of a data set.

        memory_limit: bytes that the rows and what is derived from them can take, for solvers that
        can read rows from disk. By default the mapped training part is loaded, without a limit.
        """
        train = dataset.train
        return self.load(train.X, train.XT, train.YT, train.weights)

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the terms of each label's cost: (K, T) float64, non-negative.

        See `load` for the arguments.
        """

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve `labels` (n,) int32; the rows of the result are in their order.

        local: the result of this solver's `load`. `stopped` is called every 200 ms or more often.
        If it returns True, Stopped is raised and the labels of this call are discarded. Raises
        ParameterError for a label that does not exist.
        """

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of a worker in addition to its loaded state; X: (N, D)."""
        return TaskNeeds()


class WarmStartSolver(IndependentSolver, Protocol):
    """An independent solver that can start from the dual variables of a similar problem.

    dual_exponent: the dual variables of a start are multiplied by this power of the ratio of the
    values of C. The root is between the ratio itself (constant losses) and 1 (losses shrink as C
    grows).
    """

    warm_starts: ClassVar[bool] = True
    dual_exponent: ClassVar[float] = 0.5

    def solve(
        self,
        local: Any,
        labels: Int32,
        stopped: Callable[[], bool] = lambda: False,
        start: CSR | None = None,
        keep_duals: bool = False,
    ) -> SolvedLabels:
        """Solve `labels`, see `IndependentSolver`.

        start: (n, N) float32, dual variables of a similar problem for each of the labels.
        keep_duals: return the dual variables of this problem. Raises ParameterError for a start of
        another shape.
        """


class UpdatableSolver(WarmStartSolver, Protocol):
    """A solver whose `check_updatable` raises nothing."""

    def bound_changed(
        self, local: Any, earlier: EarlierLabels, change: RowChange, threads: int
    ) -> Bounds:
        """Return the objectives of labels that were solved before rows changed.

        local: the state of the changed rows.
        """


def check_labels(labels: Int32, n_labels: int) -> Int32:
    """Return `labels` (n,) as int32; raise ParameterError for one that does not exist."""
    labels = frozen(labels, np.int32)
    for label in labels[(labels < 0) | (labels >= n_labels)]:
        raise ParameterError(f"there is no label {label}: the data have labels 0 to {n_labels - 1}")
    return labels


def check_weights(weights: Float32, n_rows: int) -> Float32:
    """Return sample weights (n_rows,) as float32; raise ParameterError if one is not above 0."""
    weights = frozen(weights, np.float32)
    if weights.shape != (n_rows,) or not (np.isfinite(weights) & (weights > 0.0)).all():
        raise ParameterError(
            f"sample weights must be {n_rows} finite numbers above 0, one for each row; "
            "leave out rows of weight 0"
        )
    return weights


# fields of records whose sums are in a summary, and their names there
SUMMED: Final[Mapping[str, str]] = {
    "pruned": "weights_pruned",
    "support": "support_vectors",
    "violating": "margin_violations",
    "outliers": "outliers",
    "rows_read": "rows_read",
    "bytes_read": "bytes_read",
}


def summarize_records(solver: Solver, records: np.ndarray) -> dict[str, Any]:
    """Return the default summary of `Solver.summarize`."""
    summary: dict[str, Any] = {
        "labels_without_positives": int((records["positives"] == 0).sum()),
        **{
            key: int(records[name].sum())
            for name, key in SUMMED.items()
            if name in (records.dtype.names or ())
        },
    }
    certified, gap = solver.certified(records), solver.largest_gap(records)
    if gap is not None:
        summary["largest_gap"] = gap
    if certified is not None:
        rule, n = solver.stopping, int(certified.sum())
        others = f"; {len(records) - n:,} are not certified" if n < len(records) else ""
        summary |= {
            "labels_certified": n,
            "converged": n == len(records),
            "stopped": f"{rule.reached} for {n:,} of {len(records):,} labels{others}",
        }
    return summary
