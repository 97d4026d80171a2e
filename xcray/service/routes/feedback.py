"""Feedback: what callers say of the answers of a model, for the next data set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from xcray.api.model_replies import FeedbackView, NewFeedbackView
from xcray.data.readers.labels import plain_label
from xcray.errors import ParameterError
from xcray.jobs.job import new_id
from xcray.jobs.store.feedback import Feedback
from xcray.model.model import Model
from xcray.predict.labels import unknown_labels
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import PredictCaller, Reader, Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.etags import counter_etag, reply, to_json
from xcray.service.http.idempotency import creation_reply, replay_response
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.prediction.handler import model_target
from xcray.service.prediction.instances import to_rows
from xcray.service.schemas.feedback import FeedbackPage, FeedbackRequest

router = APIRouter(prefix="/v1/models/{reference:modelref}", tags=["feedback"])

FeedbackId = Annotated[str, Path(max_length=255)]
JSON_LINES = "application/jsonl"
_EXPORT: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}}
}


@router.post(
    "/feedback",
    status_code=201,
    openapi_extra=openapi_body(FeedbackRequest),
    responses=replay_response(NewFeedbackView),
    response_model=NewFeedbackView,
)
async def create(
    request: Request,
    caller: PredictCaller,
    reference: str,
    body: Annotated[FeedbackRequest, Depends(json_body(FeedbackRequest))],
) -> Response:
    """Store the right and wrong labels of an instance, durably.

    Sending the same feedback again returns it (200); an id with other content is refused (409). It
    changes no model: a data set of format `feedback` has it, and `:update` makes the next version.
    """
    app_state = app_state_of(request)
    loaded = await app_state.prediction.model_cache.find(
        model_target(request, caller.tenant, reference)
    )
    model = loaded.predictor.model
    judged, new_labels = await run_in_heavy_thread(partial(_check, model, body))
    entry, created = await asyncio.to_thread(
        app_state.store.feedback.add,
        caller.tenant,
        loaded.name,
        body.id or new_id("fb"),
        {**body.model_dump(mode="json", exclude_none=True, exclude={"id"}), **judged},
        version=loaded.version,
        key_id=caller.key_id,
        limit=app_state.settings.tenant_feedback,
    )
    view = NewFeedbackView(**_view(entry), new_labels=new_labels)
    place = f"/v1/models/{entry.model}/feedback/{quote(entry.id, safe='')}"
    return creation_reply(request, view, counter_etag(entry.seq), place, created=created)


@router.get("/feedback", response_model=FeedbackPage)
def index(
    request: Request,
    caller: Reader,
    reference: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,  # of up to a megabyte each
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List the feedback of all versions of a model, newest first."""
    name = _require_name(request, caller.tenant, reference)
    entries, token = app_state_of(request).store.feedback.list_page(
        caller.tenant, name, limit=limit, page_token=page_token
    )
    page = FeedbackPage(feedback=[_view(entry) for entry in entries], next_page_token=token)
    return reply(request, page)


@router.get("/feedback:export", responses=_EXPORT, response_class=StreamingResponse)
def export(request: Request, caller: Reader, reference: str) -> StreamingResponse:
    """Return the feedback of all versions of a model as JSON lines, oldest first."""
    name = _require_name(request, caller.tenant, reference)
    entries = app_state_of(request).store.feedback.all_after(caller.tenant, name)
    return StreamingResponse(_lines(entries), media_type=JSON_LINES)


@router.get("/feedback/{id:path}", response_model=FeedbackView)
def show(request: Request, caller: Reader, reference: str, id: FeedbackId) -> Response:
    """Return one entry."""
    entry = app_state_of(request).store.feedback.get(caller.tenant, _name(reference), id)
    return reply(request, _view(entry), counter_etag(entry.seq))


@router.delete("/feedback/{id:path}", status_code=204)
def delete(request: Request, caller: Submitter, reference: str, id: FeedbackId) -> None:
    """Delete an entry and its text. Data sets that were built from it still have the row."""
    app_state_of(request).store.feedback.delete(caller.tenant, _name(reference), id)


def _check(model: Model, body: FeedbackRequest) -> tuple[dict[str, list[str]], list[str]]:
    """Check feedback; return its labels, and the right ones that are new.

    Names that the model does not have are changed as if they were read from a file: a blank at the
    end is not another label.
    """
    to_rows(model, [body.instance], "instance")
    unknown = {*unknown_labels(model, [*body.right, *body.wrong])}
    right, wrong = (
        [plain_label(name) if name in unknown else name for name in names]
        for names in (body.right, body.wrong)
    )
    if not (right or wrong) or set(right) & set(wrong) or "" in (*right, *wrong):
        raise ParameterError(
            "feedback needs a right or a wrong label, and no label is both or empty",
            code="FEEDBACK_LABELS",
        )
    return {"right": right, "wrong": wrong}, unknown_labels(model, right)


def _name(reference: str) -> str:
    """Return the name of the model in a reference."""
    return reference.partition("@")[0].partition(":")[0]


def _require_name(request: Request, tenant: str, reference: str) -> str:
    """Return the name of a model that exists, or that has feedback from when it did."""
    name, app_state = _name(reference), app_state_of(request)
    registry, table = app_state.registry_of(tenant), app_state.store.feedback
    if not registry.versions(name) and not table.list_page(tenant, name, limit=1)[0]:
        raise registry.unknown_model(name)
    return name


def _lines(entries: Iterable[Feedback]) -> Iterator[bytes]:
    """Yield entries as JSON lines."""
    for entry in entries:
        yield to_json(_view(entry)) + b"\n"


def _view(entry: Feedback) -> FeedbackView:
    """Return an entry as a view."""
    names = ("id", "model", "version", "created")
    return cast(FeedbackView, {**{name: getattr(entry, name) for name in names}, **entry.content})
