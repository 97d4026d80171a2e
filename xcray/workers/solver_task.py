"""Serialisable solver task: the solver, its parameters, and the location of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from xcray.arrays import Int32, csr, pattern
from xcray.data.dataset import Dataset
from xcray.errors import XcrayError
from xcray.solvers.contract import IndependentSolver, SolverState
from xcray.solvers.solved_labels import SolvedLabels
from xcray.workers.pool import TaskRunner


@dataclass(frozen=True)
class SolverTask:
    """Solves labels of a data set directory.

    solver: its class must be importable by the workers. path, content_hash: of the data set.
    memory_limit: bytes of a worker's rows, see `load_dataset` of a solver. prepare: what is made of
    the mapped data set before it is loaded, for example by adding groups of labels. runner: solves
    the labels, by default the solver.
    """

    counter: ClassVar[tuple[str, str]] = ("xcray_labels_solved", "Labels solved by this worker")

    solver: IndependentSolver
    path: str
    content_hash: str
    memory_limit: int | None = None
    prepare: Callable[[Dataset], Dataset] | None = None
    runner: TaskRunner | None = None

    def open(self) -> SolverState | None:
        """Map the data set if this node has it with this content; None otherwise."""
        dataset = open_dataset(self.path, self.content_hash)
        if dataset is None:
            return None
        if self.prepare is not None:
            dataset = self.prepare(dataset)
        return self.solver.load_dataset(dataset, self.memory_limit)

    def load(self, *shared: Any) -> SolverState:
        """Load X, XT, YT and the row weights, mapped from disk or from the object store."""
        X, XT, YT, weights = shared
        return self.solver.load(csr(*X), csr(*XT), pattern(*YT), weights)

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve labels, see `Solver`, and compute their checksum, so that the driver need not."""
        solved: SolvedLabels = (self.runner or self.solver).solve(local, labels, stopped)
        return solved._replace(checksum=solved.digest())

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels, see `Solver`."""
        self.solver.warm_up(local)

    def decode_result(self, result: SolvedLabels) -> SolvedLabels:
        """Return the block with the array types that xcray's own code expects."""
        duals = None if result.duals is None else csr(*result.duals)
        return result._replace(W=csr(*result.W), duals=duals)


def open_dataset(path: str, content_hash: str) -> Dataset | None:
    """Map the data set if this node has it with this content; None otherwise."""
    try:
        dataset = Dataset.open(Path(path))
    except XcrayError:
        return None
    return dataset if dataset.content_hash == content_hash else None


def shared_arrays(dataset: Dataset) -> tuple[Any, ...]:
    """Return the arrays that `SolverTask.load` needs on nodes that do not see the data set."""
    train = dataset.train
    return tuple(train.X), tuple(train.XT), tuple(train.YT), train.weights
