"""Toy solver of family "independent": nearest centroids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern, csr_from, frozen
from xcray.errors import ParameterError, Stopped
from xcray.solvers.contract import IndependentSolver
from xcray.solvers.declarations import Link, RecordField, RecordSchema, StoppingRule
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.solved_labels import SolvedLabels

# what a model can store; rows of huge values exceed it
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass
class CentroidState:
    """State of a worker: the rows (N, D), the rows of each label, and the mean row (D,)."""

    X: Any
    YT: Pattern
    mean: Float64

    def clone_for_thread(self) -> CentroidState:
        """Return the same state: there is no scratch memory."""
        return self


@dataclass(frozen=True)
class CentroidSolver(Parameters, IndependentSolver):
    """A label scores x by (m_k - m).x, where m_k is the mean of its rows and m that of all rows."""

    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RecordSchema(
        RecordField("distance", np.float64, "distance of the two means", "distance")
    )
    cost_rates: ClassVar[tuple[float, ...]] = (1e-7,)  # seconds per row of a label

    prune: float = parameter(0.0, "drop weights of at most this size", low=0.0)

    @property
    def stopping(self) -> StoppingRule:
        """Return that there is one round."""
        return StoppingRule("tolerance", 0.0, 1, "the means are exact")

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> CentroidState:
        """Return the state of a worker."""
        if weights is not None:
            raise ParameterError("centroids have no sample weights")
        rows = X.to_scipy()
        return CentroidState(rows, YT, np.asarray(rows.mean(axis=0), np.float64).ravel())

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the number of rows of each label: (K, 1)."""
        return frozen(np.diff(YT.indptr)[:, None], np.float64)

    def solve(
        self, local: CentroidState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Return the weights of some labels; a label without rows has none."""
        W, bias = np.zeros((len(labels), local.X.shape[1])), np.full(len(labels), -1.0)
        records = np.zeros(len(labels), self.records.dtype)
        for i, label in enumerate(labels):
            if stopped():
                raise Stopped("stopped between two labels")
            rows = local.YT.indices[local.YT.indptr[label] : local.YT.indptr[label + 1]]
            if len(rows):
                W[i] = np.asarray(local.X[rows].mean(axis=0)).ravel() - local.mean
                bias[i] = np.clip(-W[i] @ local.mean, -FLOAT32_MAX, FLOAT32_MAX)
            W[i, np.abs(W[i]) <= self.prune] = 0.0
            records[i] = label, len(rows), 1, np.linalg.norm(W[i])
        matrix = csr_from(W.astype(np.float32))
        return SolvedLabels(frozen(labels, np.int32), matrix, frozen(bias, np.float64), records)
