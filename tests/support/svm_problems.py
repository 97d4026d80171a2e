"""Random linear SVM problems with label noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Pattern, csr_from, frozen
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.kernels.sparse import transpose, transpose_pattern


class SVMProblem(NamedTuple):
    """Rows X (N, D) with 1 or -1 as y (N,), and the rows of the only label."""

    X: CSR
    y: np.ndarray
    YT: Pattern

    @property
    def dense(self) -> np.ndarray:
        """Rows (N, D) in float64."""
        out: np.ndarray = self.X.to_scipy().toarray().astype(np.float64)
        return out


def svm_problem(seed: int, n: int = 900, d: int = 8, flipped: float = 0.05) -> SVMProblem:
    """Return a problem of n sparse rows; `flipped`: share of rows with the wrong sign."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)).astype(np.float32)
    y = np.where(X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0.5, 1, -1)
    y[rng.random(n) < flipped] *= -1
    positives = np.flatnonzero(y > 0)
    YT = Pattern(frozen([0, len(positives)], np.int64), frozen(positives, np.int32), n)
    return SVMProblem(csr_from(X), y, YT)


def svm_dataset(problem: SVMProblem, path: Path) -> Dataset:
    """Return the problem as a data set in the directory `path`."""
    with DatasetWriter(path, name="svm", n_labels=1) as writer:
        writer.add("train", problem.X, transpose_pattern(problem.YT))
        return writer.finish(source={"format": "synthetic"})


def load(solver: Any, problem: SVMProblem, weights: np.ndarray | None = None) -> Any:
    """Return the state of a worker."""
    return solver.load(problem.X, transpose(problem.X), problem.YT, weights)
