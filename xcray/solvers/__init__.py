"""Solvers: one file a family, a frozen dataclass of parameters and the verbs of a solver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcray.errors import ParameterError
from xcray.solvers import parameters
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.lbfgs import LBFGSSolver
from xcray.solvers.lc import LCSolver
from xcray.solvers.pdsparse import PDSparseSolver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.presets import DiSMECSolver, L2SVMSolver

SOLVERS: dict[str, type[Any]] = {  # a Solver, or what its family has in its place
    "ppdsparse": PPDSparseSolver,
    "dismec": DiSMECSolver,
    "l2svm": L2SVMSolver,
    "pdsparse": PDSparseSolver,
    "dsmlr": DSMLRSolver,
    "lbfgs": LBFGSSolver,
    "lc": LCSolver,
}


def make_solver(name: str, given: Mapping[str, Any]) -> Any:
    """The solver called `name` with the parameters `given`. Raises ParameterError for unknown names and bad values."""
    if name not in SOLVERS:
        raise ParameterError(
            f"unknown solver {str(name)[:80]!r}; there are: {', '.join(SOLVERS)}",
            code="UNKNOWN_SOLVER",
        )
    return parameters.make_parameters(SOLVERS[name], given)


def parameter_table(name: str) -> list[dict[str, Any]]:
    """The parameters of the solver called `name`: name, type, default, help, range. Raises ParameterError for unknown names."""
    if name not in SOLVERS:
        raise ParameterError(
            f"unknown solver {str(name)[:80]!r}; there are: {', '.join(SOLVERS)}",
            code="UNKNOWN_SOLVER",
        )
    return parameters.parameter_table(SOLVERS[name])
