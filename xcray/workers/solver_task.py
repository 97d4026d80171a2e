"""A solver's work for other processes: what an actor needs to know, and how it gets at the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from xcray.arrays import Int32, csr, pattern
from xcray.data.dataset import Dataset
from xcray.errors import XcrayError
from xcray.solvers import make_solver
from xcray.solvers.contract import Local, Solver, keep_in
from xcray.solvers.solved_labels import Block


@dataclass(frozen=True)
class SolverWork:
    """Labels of a data set directory to be solved.

    solver, parameters: see `make_solver`; path, content_hash: of the data set; keep: the run's directory, where a joint solver
    keeps its state if its node sees it.
    """

    counter: ClassVar[tuple[str, str]] = ("xcray_classes_solved", "Classes solved by this worker")

    solver: str
    parameters: Mapping[str, Any]
    path: str
    content_hash: str
    keep: str | None = None

    @cached_property
    def made(self) -> Solver:
        """The solver."""
        solver: Solver = make_solver(self.solver, self.parameters)
        return solver

    def open(self) -> Local | None:
        """Map the data set when this node has it, with this content; None when not."""
        dataset = opened(self.path, self.content_hash)
        if dataset is None:
            return None
        train = dataset.train
        return self.load(train.X, train.XT, train.YT, train.weights)

    def load(self, *shared: Any) -> Local:
        """Take X, XT, YT and the weights of rows, mapped from disk or from the object store."""
        X, XT, YT, weights = shared
        local = self.made.load(csr(*X), csr(*XT), pattern(*YT), weights)
        keep_in(local, Path(self.keep) if self.keep is not None else None)
        return local

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> Block:
        """See `Solver`."""
        return self.made.solve(local, labels, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.made.warm_up()

    def received(self, result: Block) -> Block:
        """The block in the arrays that xcray's own code expects."""
        return Block(result.labels, csr(*result.W), result.bias, result.records)


def opened(path: str, content_hash: str) -> Dataset | None:
    """The data set, mapped, when this node has it, with this content; None when not."""
    try:
        dataset = Dataset.open(Path(path))
    except XcrayError:
        return None
    return dataset if dataset.content_hash == content_hash else None


def shared_arrays(dataset: Dataset) -> tuple[Any, ...]:
    """What `SolverWork` loads where a node does not see the data set."""
    train = dataset.train
    return tuple(train.X), tuple(train.XT), tuple(train.YT), train.weights
