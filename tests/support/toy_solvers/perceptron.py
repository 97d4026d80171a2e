"""Toy solver of family "joint": a perceptron over all labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern, csr_from, frozen
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import transpose_pattern
from xcray.solvers.contract import JointSolver
from xcray.solvers.declarations import Link, RecordSchema, StoppingRule, TaskNeeds
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.solved_labels import SolvedLabels


@dataclass
class PerceptronState:
    """State of the worker: rows (N, D), labels of each row (N, K)."""

    X: CSR
    Y: Pattern

    def clone_for_thread(self) -> PerceptronState:
        """Return the same state: the task creates its own arrays."""
        return self


@dataclass(frozen=True)
class PerceptronSolver(Parameters, JointSolver):
    """If another label scores as high as a row's own label, both move by the row."""

    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RecordSchema()
    cost_rates: ClassVar[tuple[float, ...]] = (1e-5,)  # seconds per row

    passes: int = parameter(5, "maximum number of passes over the rows", low=1)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule("tolerance", 0.0, self.passes, "a pass made no mistakes")

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> PerceptronState:
        """Return the state of the worker."""
        if weights is not None:
            raise ParameterError("the perceptron has no sample weights")
        return PerceptronState(X, transpose_pattern(YT))

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the share of each label in the rows: (K, 1)."""
        return frozen(np.full((YT.n_rows, 1), self.passes * X.n_rows / YT.n_rows), np.float64)

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the dense weights."""
        return TaskNeeds(bytes_per_weight=8)

    def solve(
        self, local: PerceptronState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Return the weights of all labels, in the order of `labels`."""
        W, mistakes, passes = np.zeros((local.Y.n_cols, local.X.n_cols)), 1, 0
        while mistakes and passes < self.passes:
            mistakes, passes = 0, passes + 1
            for row in range(local.X.n_rows):
                if stopped():
                    raise Stopped("stopped between two rows")
                mistakes += self._learn_row(local, row, W)
        records = np.zeros(len(labels), self.records.dtype)
        counts = np.bincount(local.Y.indices, minlength=local.Y.n_cols)
        records["label"], records["positives"], records["rounds"] = labels, counts[labels], passes
        matrix = csr_from(W[labels].astype(np.float32))
        bias = frozen(np.zeros(len(labels)), np.float64)
        return SolvedLabels(frozen(labels, np.int32), matrix, bias, records)

    def _learn_row(self, local: PerceptronState, row: int, W: Float64) -> int:
        """Update W (K, D) in place; return the number of mistakes."""
        features, values = local.X.row(row)
        own = local.Y.indices[local.Y.indptr[row] : local.Y.indptr[row + 1]]
        scores = W[:, features] @ values
        others = scores.copy()
        others[own] = -np.inf
        rival = int(others.argmax())
        wrong = own[scores[own] <= others[rival]]
        W[np.ix_(wrong, features)] += values
        W[rival, features] -= len(wrong) * values
        return len(wrong)
