"""Solvers and their parameters."""

from __future__ import annotations

from pydantic import Field

from xcray.service.schemas.base import View


class ParameterView(View):
    """A parameter of a solver: low <= value <= high, value > above, or one of `choices`."""

    name: str
    type: str = Field(description="int, float or str.")
    default: int | float | str
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: list[str] | None = None


class SolverView(View):
    """A solver with its parameters.

    family: how the work is distributed: independent, rotation or synchronous.
    """

    name: str
    help: str
    family: str
    parameters: list[ParameterView]


class SolverPage(View):
    """All solvers, the default first."""

    solvers: list[SolverView]
