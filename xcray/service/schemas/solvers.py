"""Solvers and their parameters."""

from __future__ import annotations

from pydantic import Field

from xcray.service.schemas.base import View


class ParameterView(View):
    """A parameter of a solver, or an option of a training.

    The range is low <= value <= high, value > above, or one of `choices`; low and high of a text
    are lengths.
    """

    name: str
    type: str = Field(description="int, float, str or bool.")
    default: bool | int | float | str | None
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: list[str] | None = None
    unit: str | None = Field(None, description="bytes or seconds.")
    set_by_server: bool = Field(
        False, description="Whether the service has a default of its own, which is not listed."
    )


class SolverView(View):
    """A solver with its parameters.

    family: how the work is distributed: independent, rotation or synchronous. baseline: for
    comparisons with a paper; other solvers are better for the same problem.
    """

    name: str
    help: str
    family: str
    baseline: bool
    parameters: list[ParameterView]


class SolverPage(View):
    """All solvers, the default first, and the options of a training and of its job."""

    solvers: list[SolverView]
    training: list[ParameterView]
