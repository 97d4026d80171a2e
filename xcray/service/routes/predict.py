"""Predictions and explanations.

`xcray.service.prediction.fast_path` answers predict requests before they reach FastAPI; the route
below does the same and provides the documentation.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias, cast

from fastapi import APIRouter, Depends, Request, Response

from xcray.api.model_replies import Answerer, ExplainReply, PredictReply
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import PredictCaller
from xcray.service.http.body import json_body, openapi_body
from xcray.service.models.cache import LoadedModel
from xcray.service.prediction.fast_path import FastRoute, Reply
from xcray.service.prediction.handler import handle_predict, model_target
from xcray.service.prediction.instances import one_row
from xcray.service.prediction.services import PredictionServices
from xcray.service.schemas.predict import ExplainRequest, PredictRequest

router = APIRouter(prefix="/v1/models", tags=["predictions"])

ExplainBody: TypeAlias = Annotated[
    ExplainRequest, Depends(json_body(ExplainRequest, for_predictions=True))
]


@router.post(
    "/{reference:modelref}:predict",
    openapi_extra=openapi_body(PredictRequest),
    response_model=PredictReply,
    response_model_exclude_unset=True,
)
async def predict(request: Request, caller: PredictCaller, reference: str) -> Response:
    """Predict the best labels of each instance.

    `reference` is name, name@alias or name:3; the reply contains the version that answered.
    """
    return (await _answer(request, caller.tenant, reference)).to_response()


async def _answer(request: Request, tenant: str, reference: str) -> Reply:
    """Answer a predict request, of the route or of the fast path."""
    target = model_target(request, tenant, reference)
    return Reply(await handle_predict(request, app_state_of(request).prediction, target))


FAST_ROUTES: Final = tuple(
    FastRoute(re.compile(r"/v1/models/([^/:@]+(?:@[^/:@]+|:[0-9]+)?):predict"), route, _answer)
    for route in router.routes
    if getattr(route, "endpoint", None) is predict
)


@router.post("/{reference:modelref}:explain", openapi_extra=openapi_body(ExplainRequest))
async def explain(
    request: Request, caller: PredictCaller, reference: str, body: ExplainBody
) -> ExplainReply:
    """Explain the score of a label (default: the best label) by the contributions of features.

    The reply also has the score gaps to the best and the k-th best label.
    """
    services = app_state_of(request).prediction
    with services.batcher.admit(1):
        loaded = await services.model_cache.find(model_target(request, caller.tenant, reference))
        return await _explain(services, loaded, body)


async def _explain(
    services: PredictionServices, loaded: LoadedModel, body: ExplainRequest
) -> ExplainReply:
    """Compute an explanation in the batcher."""

    def compute(_: list[Any]) -> list[ExplainReply]:
        return [_explanation(loaded, body)]

    reply: ExplainReply = await services.batcher.submit(
        ("explain", loaded.key), None, compute, batchable=False
    )
    return reply


def _explanation(loaded: LoadedModel, body: ExplainRequest) -> ExplainReply:
    """Return the explanation by one version."""
    predictor = loaded.predictor
    row = one_row(predictor.model, body.instance, "instance")
    label = body.label if body.label is not None else int(predictor.predict(row, 1).labels[0, 0])
    explanation = predictor.explain(row, label, body.top)
    fields = {
        name: getattr(explanation, name)
        for name in ("score", "bias", "rest", "n_rest", "rank", "gap_to_top", "gap_to_kth")
    }
    contributions = [part._asdict() for part in explanation.contributions]
    answerer = Answerer(name=loaded.name, version=loaded.version, sha256=predictor.model.sha256)
    named = {"model": answerer, "label": explanation.name, "contributions": contributions}
    named["groups"] = [group.as_dict() for group in explanation.groups]
    if predictor.model.display_names is not None:
        named["name"] = predictor.model.display_names[explanation.label]
    if explanation.ranking is not None:
        named["ranking"] = explanation.ranking._asdict()
    return cast(ExplainReply, {**named, **fields})
