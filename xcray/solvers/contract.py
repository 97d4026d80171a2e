"""The contract of solvers: what schedules, pools, trainings and estimators know of a family, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from xcray.arrays import CSR, Float32, Float64, Int32, Pattern
from xcray.solvers.solved_labels import Block


class Local(Protocol):
    """What stays at a worker: the problem, shared and read-only, and scratch of the worker's own."""

    def sibling(self) -> Self:
        """The same problem with scratch of its own, for another thread."""


@runtime_checkable
class Keeping(Protocol):
    """The local part of a joint solver that keeps its state in the directory `keep` from pass to pass, and finds it again there."""

    keep: Path | None


def keep_in(local: Local, directory: Path | None) -> None:
    """Let a solver that can go on where it was do so in `directory`, which is one run's own; others are left as they are."""
    if isinstance(local, Keeping):
        local.keep = directory


class Solver(Protocol):
    """A family of solvers: a frozen dataclass of its parameters (`xcray.solvers.parameters`) with these verbs.

    family: how the work is spread, and so which verbs there are: "scatter" (labels are given out in batches: the verbs below),
    "circulate" (blocks of labels go round shards of rows) or "rounds" (all workers do one verb at a time).
    revision: raised with every change of the bits of a model, so that no run mixes parts of two. joint: labels depend on
    each other, so one task holds them all; else each label is solved alone, and gives the same bits in any batch.
    cost_rates: (T,) seconds of one core for a unit of each column of `cost_terms`; a first guess that schedules better
    while they run.
    """

    family: ClassVar[str]
    revision: ClassVar[int]
    joint: ClassVar[bool]
    cost_rates: ClassVar[tuple[float, ...]]

    @property
    def eps(self) -> float:
        """The duality gap asked for, relative to the null objective."""

    @property
    def seed(self) -> int:
        """The seed of everything random."""

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> Local:
        """The local part of a worker: X (N x D), XT (D x N) its transpose, YT (K x N) the samples of each label.

        weights: (N,) float32 above 0, what the losses of samples are multiplied by; None for 1. Raises ParameterError when
        they do not fit, or the solver has no weights.
        """

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """What the cost of each label is made of: (K, T) float64, non-negative; see `load` for the arguments."""

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> Block:
        """Solve `labels` (n,) int32; the block's rows are in their order. local: what this solver's `load` gave.

        `stopped` is asked every 200 ms or oftener; when it says True, Stopped is raised and nothing is kept. Raises
        ParameterError for a label that there is not.
        """

    def warm_up(self) -> None:
        """Compile or load the kernels."""
