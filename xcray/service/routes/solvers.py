"""Solvers and their parameters, for forms and completion."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xcray.api.job_replies import SolverView
from xcray.api.options import JobOptions, TrainingOptions
from xcray.errors import NotFound, excerpt, similar_or_all
from xcray.parameters import parameter_table
from xcray.service.http.auth import Reader
from xcray.service.http.etags import NOT_MODIFIED, reply
from xcray.service.schemas.solvers import SolverPage
from xcray.solvers import SOLVERS, describe_solver, loaded_solvers

router = APIRouter(prefix="/v1/solvers", tags=["solvers"])


@router.get("", response_model=SolverPage, responses=NOT_MODIFIED)
def index(request: Request, caller: Reader) -> Response:
    """List the solvers with their parameters, and the options of a training.

    With types, defaults, ranges and help. Solvers of other packages that cannot be loaded are left
    out; GET /v1/solvers/{solver} returns the reason.
    """
    solvers = [describe_solver(name) for name in loaded_solvers()[0]]
    options = parameter_table(TrainingOptions, JobOptions)
    return reply(request, {"solvers": solvers, "training": options})


@router.get("/{solver}", response_model=SolverView, responses=NOT_MODIFIED)
def show(request: Request, caller: Reader, solver: str) -> Response:
    """Return one solver with its parameters."""
    if solver not in SOLVERS:
        similar = similar_or_all(solver, SOLVERS)
        raise NotFound(f"there is no solver {excerpt(solver)!r}{similar}")
    return reply(request, describe_solver(solver))
