"""Contract of solvers: what schedules, pools, trainings and estimators use of a solver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern
from xcray.solvers.solved_labels import SolvedLabels


class SolverState(Protocol):
    """State of a solver at a worker: the shared read-only problem, and scratch memory."""

    def clone_for_thread(self) -> Self:
        """Return the same problem with separate scratch memory, for another thread."""


@runtime_checkable
class Checkpointable(Protocol):
    """State of a joint solver that saves itself in `checkpoint_dir` and resumes from there."""

    checkpoint_dir: Path | None


def set_checkpoint_dir(local: SolverState, directory: Path | None) -> None:
    """Let a checkpointable state save itself in `directory`, which belongs to one run.

    Other states are left unchanged.
    """
    if isinstance(local, Checkpointable):
        local.checkpoint_dir = directory


class Solver(Protocol):
    """A solver: a frozen dataclass of its parameters (`xcray.solvers.parameters`) with methods.

    family: how the work is distributed, which determines the methods. "independent": labels are
    dispatched in batches, with the methods below. "rotation": blocks of labels rotate over shards
    of rows. "synchronous": all workers run the same method at the same time.

    revision: incremented with every change of the bits of a model, so that no run mixes parts of
    two revisions. joint: labels depend on each other, so one task solves all of them. Otherwise
    each label is solved alone, with the same bits in any batch. cost_rates: (T,) seconds of one
    core per unit of each column of `cost_terms`; a first estimate that schedules refine while they
    run.
    """

    family: ClassVar[str]
    revision: ClassVar[int]
    joint: ClassVar[bool]
    cost_rates: ClassVar[tuple[float, ...]]

    @property
    def eps(self) -> float:
        """Return the requested duality gap, relative to the null objective."""

    @property
    def seed(self) -> int:
        """Return the seed of all random numbers."""

    def as_dict(self) -> dict[str, Any]:
        """Return all parameters by name."""

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> SolverState:
        """Return the state of a worker.

        X: (N, D); XT: (D, N), its transpose; YT: (K, N), the samples of each label. weights: (N,)
        float32 above 0, factors of the sample losses; None for 1. Raises ParameterError if the
        weights do not fit or the solver does not support weights.
        """

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

    def warm_up(self) -> None:
        """Compile or load the kernels."""
