"""Solvers and their parameters."""

from __future__ import annotations

from xcray.api.job_replies import ParameterView, SolverView
from xcray.service.schemas.base import View


class SolverPage(View):
    """All solvers, the default first, and the options of a training and of its job."""

    solvers: list[SolverView]
    training: list[ParameterView]
