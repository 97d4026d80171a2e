"""Solvers: one module per solver, a frozen dataclass of parameters with the solver's methods."""

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

# values are Solvers, or classes with the methods of their family
SOLVERS: dict[str, type[Any]] = {
    "ppdsparse": PPDSparseSolver,
    "dismec": DiSMECSolver,
    "l2svm": L2SVMSolver,
    "pdsparse": PDSparseSolver,
    "dsmlr": DSMLRSolver,
    "lbfgs": LBFGSSolver,
    "lc": LCSolver,
}


def make_solver(name: str, values: Mapping[str, Any]) -> Any:
    """Return the solver `name` with the parameters `values`.

    Raises ParameterError for an unknown solver, an unknown parameter or an invalid value.
    """
    if name not in SOLVERS:
        raise ParameterError(
            f"unknown solver {str(name)[:80]!r}; there are: {', '.join(SOLVERS)}",
            code="UNKNOWN_SOLVER",
        )
    return parameters.make_parameters(SOLVERS[name], values)


def parameter_table(name: str) -> list[dict[str, Any]]:
    """Return the parameters of the solver `name`: name, type, default, help, range.

    Raises ParameterError for an unknown solver.
    """
    if name not in SOLVERS:
        raise ParameterError(
            f"unknown solver {str(name)[:80]!r}; there are: {', '.join(SOLVERS)}",
            code="UNKNOWN_SOLVER",
        )
    return parameters.parameter_table(SOLVERS[name])
