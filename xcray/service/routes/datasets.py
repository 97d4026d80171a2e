"""Data sets: uploaded, built in, downloaded, or from folders that the operator allows."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from xcray.api.job_replies import DatasetView
from xcray.data.dataset import Dataset
from xcray.data.readers.formats import UPLOAD_FORMATS
from xcray.errors import ParameterError
from xcray.jobs.job import DatasetRecord, body_digest
from xcray.service.app_state import AppState, app_state_of
from xcray.service.datasets import builds as building
from xcray.service.datasets.histograms import dataset_histograms
from xcray.service.http.auth import Reader, Submitter
from xcray.service.http.body import check_media_type, json_body, openapi_body
from xcray.service.http.etags import NOT_MODIFIED, check_if_match, counter_etag, reply
from xcray.service.http.idempotency import IdempotencyKey, creation_reply, replay_response
from xcray.service.http.strict_json import loads
from xcray.service.routes.dataset_requests import (
    RAW_CONTENT_TYPES,
    accept_received,
    accept_request,
    check_options,
    require_ready,
)
from xcray.service.schemas.base import SHA256_PATTERN
from xcray.service.schemas.datasets import (
    DatasetHistogramsView,
    DatasetPage,
    DatasetRequest,
    UploadView,
)
from xcray.storage.atomic import check_name

router = APIRouter(tags=["data sets"])

_BYTES = {
    kind: {"schema": {"type": "string", "format": "binary", "minLength": 1}}
    for kind in RAW_CONTENT_TYPES[:3]
}
_RAW_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BYTES}}
_BOTH_BODIES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": openapi_body(DatasetRequest)["requestBody"]["content"] | _BYTES,
    }
}


@router.post("/v1/uploads", status_code=201, openapi_extra=_RAW_BODY)
async def upload(
    request: Request,
    caller: Submitter,
    sha256: Annotated[
        str | None,
        Query(
            description="SHA-256 of the file.",
            max_length=64,
            json_schema_extra={"pattern": SHA256_PATTERN},
        ),
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> UploadView:
    """Upload one file as a raw body, streamed to disk.

    The returned id can be used once in `uploads` of POST /v1/datasets, within a day. With an
    Idempotency-Key, sending the same bytes again returns the same upload while no data set has used
    it, and other bytes are refused (409).
    """
    check_media_type(request, RAW_CONTENT_TYPES)
    stored = await app_state_of(request).uploads.receive(request, sha256, idempotency_key)
    app_state_of(request).metrics.uploaded.inc(stored.n_bytes)
    return UploadView(id=stored.id, bytes=stored.n_bytes, sha256=stored.sha256)


@router.post(
    "/v1/datasets",
    status_code=201,
    openapi_extra=_BOTH_BODIES,
    responses=replay_response(DatasetView),
    response_model=DatasetView,
)
async def create(
    request: Request,
    caller: Submitter,
    name: Annotated[
        str | None, Query(description="Raw body: name of the data set.", max_length=128)
    ] = None,
    format: Annotated[
        str | None,
        Query(description=f"Raw body: one of {', '.join(UPLOAD_FORMATS)}.", max_length=20),
    ] = None,
    options: Annotated[
        str | None,
        Query(description="Raw body: reader options, a JSON object.", max_length=8192),
    ] = None,
    sha256: Annotated[
        str | None, Query(description="Raw body: its SHA-256.", max_length=64)
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a data set from the raw body (name and format in the query), or from a JSON request.

    The reply is immediate, with status BUILDING. With an Idempotency-Key, sending the same request
    again returns the same data set (200), and another body is refused (409).
    """
    app_state = app_state_of(request)
    kind = check_media_type(request, ("application/json", *RAW_CONTENT_TYPES))
    if kind == "application/json" and format is None:
        body = await json_body(DatasetRequest)(request)
        record, created = await asyncio.to_thread(
            accept_request, app_state, caller, body, idempotency_key
        )
    else:
        record, created = await _from_body(
            request, app_state, caller.tenant, name, format, options, sha256, idempotency_key
        )
    if created and record.status == building.BUILDING:
        app_state.builder.start(record.id)
    fields, etag = dataset_fields(record), counter_etag(record.version)
    return creation_reply(request, fields, etag, f"/v1/datasets/{record.id}", created=created)


@router.get("/v1/datasets", response_model=DatasetPage, responses=NOT_MODIFIED)
def index(
    request: Request,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List data sets, newest first."""
    records, token = app_state_of(request).store.datasets.list_page(
        caller.tenant, limit=limit, page_token=page_token
    )
    return reply(
        request,
        {"datasets": [dataset_fields(record) for record in records], "next_page_token": token},
    )


@router.get("/v1/datasets/{dataset_id}", response_model=DatasetView, responses=NOT_MODIFIED)
def show(request: Request, caller: Reader, dataset_id: str) -> Response:
    """Return one data set: its sizes if READY, the first invalid lines if FAILED."""
    record = app_state_of(request).store.datasets.get(dataset_id, caller.tenant)
    return reply(request, dataset_fields(record), counter_etag(record.version))


@router.get(
    "/v1/datasets/{dataset_id}/histograms",
    response_model=DatasetHistogramsView,
    responses=NOT_MODIFIED,
)
def histograms(
    request: Request,
    caller: Reader,
    dataset_id: str,
    examples: Annotated[int, Query(ge=0, le=100, description="Example rows per part.")] = 5,
) -> Response:
    """Return histograms of a READY data set (rows per label, labels per row) and example rows."""
    record = app_state_of(request).store.datasets.get(dataset_id, caller.tenant)
    require_ready(record, dataset_id)
    return reply(
        request, DatasetHistogramsView(**dataset_histograms(Dataset.open(record.path), examples))
    )


@router.delete("/v1/datasets/{dataset_id}", status_code=204)
async def delete(request: Request, caller: Submitter, dataset_id: str) -> None:
    """Delete a data set and its files (but not a folder that it was registered from)."""
    app_state = app_state_of(request)
    record = await asyncio.to_thread(app_state.store.datasets.get, dataset_id, caller.tenant)
    check_if_match(request, counter_etag(record.version))
    expected_version = record.version if "if-match" in request.headers else None
    await asyncio.to_thread(
        app_state.store.datasets.delete, dataset_id, caller.tenant, if_version=expected_version
    )
    await app_state.builder.cancel(dataset_id)
    if Path(record.path) == app_state.home.dataset(dataset_id):
        await asyncio.to_thread(shutil.rmtree, record.path, True)


def dataset_fields(record: DatasetRecord) -> dict[str, Any]:
    """Return a record as described by `DatasetView`, without its path."""
    return {name: getattr(record, name) for name in DatasetView.__annotations__}


async def _from_body(
    request: Request,
    app_state: AppState,
    tenant: str,
    name: str | None,
    format: str | None,
    options: str | None,
    sha256: str | None,
    key: str | None,
) -> tuple[DatasetRecord, bool]:
    """Receive the raw body and accept it as the training file; return whether it is new."""
    if name is None or format not in UPLOAD_FORMATS:
        raise ParameterError(
            f"a raw body needs ?name=...&format=..., the format one of {', '.join(UPLOAD_FORMATS)}",
            code="FORMAT",
        )
    check_name(name)
    reader_options = check_options(
        format, {} if options is None else loads(options.encode("utf-8", "surrogatepass"))
    )
    received = await app_state.uploads.receive(request, sha256)
    content = {"name": name, "format": format, "options": reader_options, "sha256": received.sha256}
    digest = body_digest(content) if key else None
    new = building.NewDataset(tenant, name, format, reader_options, key, digest)
    return await asyncio.to_thread(accept_received, app_state, new, received)
