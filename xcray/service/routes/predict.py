"""Predictions and their reasons.

Predict requests do not pass through the framework: `PredictDoor` sees them first, because routing a request, resolving what its
handler depends on and writing its reply takes FastAPI longer than the answer takes. The route below is the same, described.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Depends, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from xcray.service.app_state import Rooms, rooms_of
from xcray.service.http import auth
from xcray.service.http.auth import Asker
from xcray.service.http.body import described, json_body
from xcray.service.models.cache import Loaded
from xcray.service.prediction import handler as predicting
from xcray.service.prediction.handler import wanted
from xcray.service.prediction.instances import rows_of
from xcray.service.schemas import (
    Answerer,
    Contribution,
    ExplainReply,
    ExplainRequest,
    PredictReply,
    PredictRequest,
)

router = APIRouter(prefix="/v1/models", tags=["predictions"])

ExplainBody: TypeAlias = Annotated[
    ExplainRequest, Depends(json_body(ExplainRequest, "predict_body_bytes"))
]
_PATH: Final = re.compile(r"/v1/models/([^/:@]+(?:@[^/:@]+|:[0-9]+)?):predict")
_caller: Final = auth.needs("predict")


@router.post(
    "/{reference:modelref}:predict",
    openapi_extra=described(PredictRequest),
    response_model=PredictReply,
    response_model_exclude_unset=True,
)
async def predict(request: Request, caller: Asker, reference: str) -> Response:
    """The best labels of each instance. `reference` is name, name@alias or name:3; the reply says which version answered."""
    return Response(
        await predicting.answer(
            request, rooms_of(request), wanted(request, caller.tenant, reference)
        ),
        media_type="application/json",
    )


class PredictDoor:
    """ASGI middleware: answers what the route `predict` would answer, and passes everything else on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._route = next(
            route for route in router.routes if getattr(route, "endpoint", None) is predict
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a predict request. Raises XcrayError, which the guard outside turns into a problem."""
        found = (
            _PATH.fullmatch(scope["path"])
            if scope["type"] == "http" and scope["method"] == "POST"
            else None
        )
        if found is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope["route"] = self._route  # for the guard's figures
        caller = await _caller(request)
        body = await predicting.answer(
            request, rooms_of(request), wanted(request, caller.tenant, found[1])
        )
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@router.post("/{reference:modelref}:explain", openapi_extra=described(ExplainRequest))
async def explain(
    request: Request, caller: Asker, reference: str, asked: ExplainBody
) -> ExplainReply:
    """Which features made the score of a label (the best one when none is named), and what it lacks to be among the best."""
    rooms = rooms_of(request)
    with rooms.desk.place(1):
        loaded = await rooms.predictors.find(wanted(request, caller.tenant, reference))
        return await _explained(rooms, loaded, asked)


async def _explained(rooms: Rooms, loaded: Loaded, asked: ExplainRequest) -> ExplainReply:
    """An explanation, computed at the desk."""

    def work(_: list[Any]) -> list[ExplainReply]:
        return [_explain(loaded, asked)]

    reply: ExplainReply = await rooms.desk.compute(("explain", loaded.key), None, work, joins=False)
    return reply


def _explain(loaded: Loaded, asked: ExplainRequest) -> ExplainReply:
    """Explain by one version."""
    predictor = loaded.predictor
    row = rows_of(predictor.model, [asked.instance], "instance")
    label = asked.label if asked.label is not None else int(predictor.predict(row, 1).labels[0, 0])
    found = predictor.explain(row, label, asked.top)
    fields = {
        name: getattr(found, name)
        for name in ("score", "bias", "rest", "n_rest", "rank", "gap_to_top", "gap_to_kth")
    }
    contributions = [Contribution(**part._asdict()) for part in found.contributions]
    answerer = Answerer(name=loaded.name, version=loaded.version, sha256=predictor.model.sha256)
    return ExplainReply(model=answerer, label=found.name, contributions=contributions, **fields)
