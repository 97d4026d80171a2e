"""Labels of a model: training rows, gaps, strongest features, similar labels."""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request, Response

from xcray.api.model_replies import Answerer, LabelSummaryView, LabelView
from xcray.jobs.store.paging import page_start, page_token_after
from xcray.predict.label_details import label_details, list_labels
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import ModelReader
from xcray.service.http.etags import NOT_MODIFIED, reply
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.models.cache import LoadedModel
from xcray.service.prediction.handler import model_target
from xcray.service.schemas.models import LabelPage

router = APIRouter(prefix="/v1/models/{reference:modelref}/labels", tags=["models"])


@router.get("", response_model=LabelPage, responses=NOT_MODIFIED)
async def index(
    request: Request,
    caller: ModelReader,
    reference: str,
    contains: Annotated[
        str | None, Query(max_length=1000, description="Part of the name, in any case.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List the labels of a version by number: training rows, gap, number of weights."""
    start = page_start(page_token, limit) or 0
    loaded = await _find(request, caller.tenant, reference)
    model = loaded.predictor.model
    labels = await run_in_heavy_thread(
        partial(list_labels, model, start, limit + 1, contains or None)
    )
    page = LabelPage(
        model=_answerer(loaded),
        labels=[cast(LabelSummaryView, each._asdict()) for each in labels[:limit]],
        next_page_token=page_token_after([{"seq": each.number + 1} for each in labels], limit),
    )
    return reply(request, page)


@router.get("/{label:path}", response_model=LabelView, responses=NOT_MODIFIED)
async def show(
    request: Request,
    caller: ModelReader,
    reference: str,
    label: str,
    features: Annotated[int, Query(ge=0, le=1000)] = 10,
    similar: Annotated[int, Query(ge=0, le=1000)] = 10,
) -> Response:
    """Return one label: training rows, gap, largest weights, and the most similar labels."""
    loaded = await _find(request, caller.tenant, reference)
    details = await run_in_heavy_thread(
        partial(label_details, loaded.predictor.model, label, features, similar)
    )
    return reply(request, {"model": _answerer(loaded), **details})


async def _find(request: Request, tenant: str, reference: str) -> LoadedModel:
    """Return the loaded version of a reference."""
    return await app_state_of(request).prediction.model_cache.find(
        model_target(request, tenant, reference)
    )


def _answerer(loaded: LoadedModel) -> Answerer:
    """Return the version that answers."""
    model = loaded.predictor.model
    return Answerer(name=loaded.name, version=loaded.version, sha256=model.sha256)
