"""Comparisons of models on the held-out rows of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from xcray.api.gate import parse_gate
from xcray.errors import XcrayError
from xcray.service.app_state import app_state_of
from xcray.service.child_work import compare_in_child
from xcray.service.http.auth import Reader
from xcray.service.http.body import json_body, openapi_body
from xcray.service.routes.dataset_requests import find_ready
from xcray.service.schemas.models import ComparisonRequest, ComparisonView

router = APIRouter(prefix="/v1/models:compare", tags=["models"])


@router.post("", openapi_extra=openapi_body(ComparisonRequest))
async def compare(
    request: Request,
    caller: Reader,
    body: Annotated[ComparisonRequest, Depends(json_body(ComparisonRequest))],
) -> ComparisonView:
    """Compare two to five models or versions on the same rows, with paired intervals and a gate.

    Takes seconds: every model answers the held-out rows (or the training rows, if none were held
    out) in a process of its own, one comparison at a time.
    """
    app_state = app_state_of(request)
    if body.gate is not None:
        parse_gate(body.gate)

    def find() -> tuple[list[tuple[str, Path]], Path]:
        record = find_ready(app_state, caller.tenant, body.dataset)
        registry = app_state.registry_of(caller.tenant)
        numbered = [registry.resolve_version(reference) for reference in body.models]
        references = [f"{name}:{number}" for name, number in numbered]
        return [(each, registry.resolve(each)) for each in references], Path(record.path)

    def work() -> dict[str, Any]:
        models, dataset = find()
        try:
            return compare_in_child(models, dataset, body.gate)
        except XcrayError:
            find()  # names what was deleted meanwhile
            raise

    return ComparisonView(**await app_state.estimates.run(caller.tenant, work))
