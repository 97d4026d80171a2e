"""Warm starts: solve labels from the duals of another setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xcray.arrays import CSR, Int32, frozen
from xcray.kernels.sparse import take_rows
from xcray.solvers.contract import SolverState, WarmStartSolver
from xcray.solvers.solved_labels import SolvedLabels


def dual_scale(before: Mapping[str, Any], after: Mapping[str, Any], exponent: float = 0.5) -> float:
    """Return the factor from the duals of one setting to the start of another.

    exponent: see `WarmStartSolver`. The root saved time on one small set and made no difference on
    a larger one. lam and tau do not change the duals.
    """
    return float((after["C"] / before["C"]) ** exponent) if "C" in before else 1.0


class WarmRunner:
    """Solves each label from given duals, if any, and returns the final duals.

    origin: (K x N), by label, or None. factor: applied to the duals.
    """

    def __init__(
        self, solver: WarmStartSolver, origin: CSR | None = None, factor: float = 1.0
    ) -> None:
        self._solver = solver
        self._origin = origin
        self._factor = np.float32(factor)

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels, see `Solver`."""
        self._solver.warm_up(local)

    def solve(
        self, state: SolverState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve labels like the solver, with a warm start."""
        start = None if self._origin is None else take_rows(self._origin, frozen(labels, np.int64))
        if start is not None:
            start = start._replace(data=frozen(start.data * self._factor, np.float32))
        return self._solver.solve(state, labels, stopped, start=start, keep_duals=True)
