"""Data sets: uploaded, built in, or from folders that the operator allows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from xcray.data.build import BuildOptions
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ParameterError, Refused
from xcray.jobs.job import DatasetRecord, body_digest, new_id
from xcray.service.app_state import Rooms, rooms_of
from xcray.service.datasets import builds as building
from xcray.service.datasets.fetching import fetch
from xcray.service.datasets.statistics import statistics
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import check_type, described, json_body
from xcray.service.http.etags import NOT_MODIFIED, IfMatch, IfNoneMatch, expect, reply, tag
from xcray.service.http.idempotency import REPLAYED, IdempotencyKey, replayed
from xcray.service.http.strict_json import loads
from xcray.service.schemas import DatasetPage, DatasetRequest, DatasetView, UploadView
from xcray.storage.atomic import check_name

router = APIRouter(tags=["data sets"])

UPLOADED = ("svmlight", "xc", "jsonl", "csv", "tsv", "parquet")
GENERATED = ("pydocs", "synthetic")
RAW = (
    "application/octet-stream",
    "application/x-ndjson",
    "text/csv",
    "text/plain",
    "text/tab-separated-values",
)
# paths of the server; patterns that could run for hours in a process that serves; what the server itself declares
CLOSED_OPTIONS = frozenset(
    {
        "expected_bytes",
        "expected_sha256",
        "label_names_file",
        "labels_file",
        "name",
        "test_rows_file",
        "token_pattern",
    }
)
_BYTES = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in RAW[:3]}
_RAW_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BYTES}}
_BOTH_BODIES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": described(DatasetRequest)["requestBody"]["content"] | _BYTES,
    }
}


@router.post("/v1/uploads", status_code=201, openapi_extra=_RAW_BODY)
async def upload(
    request: Request,
    caller: Submitter,
    sha256: Annotated[str | None, Query(description="What its SHA-256 is.", max_length=64)] = None,
    idempotency_key: IdempotencyKey = None,
) -> UploadView:
    """Send one file: the raw body, streamed to disk. Its id is for `uploads` of POST /v1/datasets, once, within a day.

    With an Idempotency-Key, sending the same bytes again gives the same upload, as long as no data set took it; other bytes, 409.
    """
    check_type(request, RAW)
    found = await rooms_of(request).uploads.receive(request, sha256, idempotency_key)
    rooms_of(request).gauges.uploaded.inc(found.n_bytes)
    return UploadView(id=found.id, bytes=found.n_bytes, sha256=found.sha256)


@router.post(
    "/v1/datasets",
    status_code=201,
    openapi_extra=_BOTH_BODIES,
    responses=replayed(DatasetView),
    response_model=DatasetView,
)
async def create(
    request: Request,
    caller: Submitter,
    name: Annotated[
        str | None, Query(description="Raw body: name of the data set.", max_length=128)
    ] = None,
    format: Annotated[
        str | None, Query(description=f"Raw body: one of {', '.join(UPLOADED)}.", max_length=20)
    ] = None,
    options: Annotated[
        str | None,
        Query(description="Raw body: options of the reader, a JSON object.", max_length=8192),
    ] = None,
    sha256: Annotated[
        str | None, Query(description="Raw body: what its SHA-256 is.", max_length=64)
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make a data set: from the raw body (name and format in the query), or from a JSON request. Answers at once: BUILDING.

    With an Idempotency-Key, sending it again gives the same data set (200); with another body, 409.
    """
    rooms = rooms_of(request)
    kind = check_type(request, ("application/json", *RAW))
    if kind == "application/json" and format is None:
        asked = await json_body(DatasetRequest)(request)
        record, created = await asyncio.to_thread(
            _from_request, rooms, caller, asked, idempotency_key
        )
    else:
        record, created = await _from_body(
            request, rooms, caller.tenant, name, format, options, sha256, idempotency_key
        )
    if created and record.status == building.BUILDING:
        rooms.builder.begin(record.id)
    headers = {"Location": f"/v1/datasets/{record.id}", **({} if created else REPLAYED)}
    return reply(
        request,
        members(record),
        tag(record.version),
        status=201 if created else 200,
        headers=headers,
    )


@router.get("/v1/datasets", response_model=DatasetPage, responses=NOT_MODIFIED)
def index(
    request: Request,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Data sets, newest first."""
    records, token = rooms_of(request).store.list_datasets(
        caller.tenant, limit=limit, page_token=page_token
    )
    return reply(
        request, {"datasets": [members(record) for record in records], "next_page_token": token}
    )


@router.get("/v1/datasets/{dataset_id}", response_model=DatasetView, responses=NOT_MODIFIED)
def show(
    request: Request, caller: Reader, dataset_id: str, if_none_match: IfNoneMatch = None
) -> Response:
    """One data set: its sizes when READY, the first bad lines when FAILED."""
    record = rooms_of(request).store.get_dataset(dataset_id, caller.tenant)
    return reply(request, members(record), tag(record.version))


@router.delete("/v1/datasets/{dataset_id}", status_code=204)
async def delete(
    request: Request, caller: Submitter, dataset_id: str, if_match: IfMatch = None
) -> None:
    """Forget a data set and remove its files (not those of a folder that it was registered from)."""
    rooms = rooms_of(request)
    record = await asyncio.to_thread(rooms.store.get_dataset, dataset_id, caller.tenant)
    expect(request, tag(record.version))
    await asyncio.to_thread(_check_unused, rooms, record, caller.tenant)
    seen = record.version if "if-match" in request.headers else None
    await asyncio.to_thread(rooms.store.delete_dataset, dataset_id, caller.tenant, if_version=seen)
    await rooms.builder.cancel(dataset_id)
    if Path(record.path) == rooms.home.dataset(dataset_id):
        await asyncio.to_thread(shutil.rmtree, record.path, True)


def members(record: DatasetRecord) -> dict[str, Any]:
    """A record as `DatasetView` describes it, without its path."""
    return {name: getattr(record, name) for name in DatasetView.model_fields}


def find(rooms: Rooms, tenant: str, reference: str) -> DatasetRecord:
    """A data set by id, or the newest READY one of a name. Raises NotFound; Conflict when it is not READY."""
    named = [record for record in _all(rooms, tenant) if record.name == reference]
    ready = [record for record in named if record.status == building.READY]
    record = (ready or named)[0] if named else rooms.store.get_dataset(reference, tenant)
    if record.status != building.READY:
        waits = record.status == building.BUILDING
        mend = (
            "wait until it is READY"
            if waits
            else f"see GET /v1/datasets/{record.id} for the reason"
        )
        raise Conflict(
            f"data set {reference} is {record.status}: {mend}",
            code="DATASET_NOT_READY",
            dataset=record.id,
        )
    return record


def _all(rooms: Rooms, tenant: str) -> Iterator[DatasetRecord]:
    """All records of a tenant, newest first."""
    token = None
    while True:
        records, token = rooms.store.list_datasets(tenant, limit=1000, page_token=token)
        yield from records
        if token is None:
            return


async def _from_body(
    request: Request,
    rooms: Rooms,
    tenant: str,
    name: str | None,
    format: str | None,
    options: str | None,
    sha256: str | None,
    key: str | None,
) -> tuple[DatasetRecord, bool]:
    """Receive the raw body and accept it as the training file; whether it is new."""
    if name is None or format not in UPLOADED:
        raise ParameterError(
            f"a raw body needs ?name=...&format=..., the format one of {', '.join(UPLOADED)}",
            code="FORMAT",
        )
    check_name(name)
    chosen = _options({} if options is None else loads(options.encode("utf-8", "surrogatepass")))
    received = await rooms.uploads.receive(request, sha256)
    rooms.gauges.uploaded.inc(received.n_bytes)
    digest = (
        body_digest({"name": name, "format": format, "options": chosen, "sha256": received.sha256})
        if key
        else None
    )
    accept = partial(
        _accepted, rooms, tenant, name, format, chosen, {"train": received.path}, key, digest
    )
    try:
        return await asyncio.to_thread(accept)
    finally:
        await asyncio.to_thread(rooms.uploads.remove, received.id)


def _from_request(
    rooms: Rooms, caller: Caller, asked: DatasetRequest, key: str | None
) -> tuple[DatasetRecord, bool]:
    """Accept what a JSON request names; whether it is new."""
    tenant = caller.tenant
    digest = body_digest(asked.model_dump(mode="json", exclude_unset=True)) if key else None
    known = rooms.store.same_dataset(tenant, key, digest)
    if known is not None:  # its uploads are used up
        return known, False
    options = _options(asked.options)
    if asked.format in GENERATED:
        if asked.uploads or asked.path or asked.uri:
            raise ParameterError(
                f"format {asked.format} needs neither uploads nor a path", code="FORMAT"
            )
        return _accepted(rooms, tenant, asked.name, asked.format, options, {}, key, digest)
    if asked.uri is not None:
        return _from_uri(rooms, caller, asked, options, key, digest)
    if asked.path is not None and asked.uploads is None:
        found = building.allowed_path(asked.path, rooms.settings.dataset_roots)
        if asked.format == "dataset":
            return _register(rooms, tenant, asked.name, found, key, digest)
        return _accepted(
            rooms,
            tenant,
            asked.name,
            asked.format,
            options,
            {"train": found},
            key,
            digest,
            take=False,
        )
    if (
        asked.uploads is None
        or "train" not in asked.uploads
        or asked.path is not None
        or asked.format not in UPLOADED
    ):
        raise ParameterError(
            f"format {asked.format} needs uploads {{'train': id}} of POST /v1/uploads, or a path",
            code="FORMAT",
        )
    sources = {
        str(part): rooms.uploads.path(upload_id, tenant)
        for part, upload_id in asked.uploads.items()
    }
    if len(set(sources.values())) < len(sources):
        raise ParameterError("train and test are the same upload: send two files", code="FORMAT")
    record, created = _accepted(
        rooms, tenant, asked.name, asked.format, options, sources, key, digest
    )
    for upload_id in asked.uploads.values():
        rooms.uploads.remove(upload_id)
    return record, created


def _from_uri(
    rooms: Rooms,
    caller: Caller,
    asked: DatasetRequest,
    options: Mapping[str, Any],
    key: str | None,
    digest: str | None,
) -> tuple[DatasetRecord, bool]:
    """Fetch a file that the operator lets us fetch, and accept it as the training file."""
    if asked.uploads is not None or asked.path is not None or asked.format not in UPLOADED:
        raise ParameterError(
            f"name one of uri, uploads and path, and a format of {', '.join(UPLOADED)}",
            code="FORMAT",
        )
    received = rooms.uploads.take(caller, fetch(str(asked.uri), rooms.settings), asked.sha256)
    rooms.gauges.uploaded.inc(received.n_bytes)
    try:
        return _accepted(
            rooms,
            caller.tenant,
            asked.name,
            asked.format,
            options,
            {"train": received.path},
            key,
            digest,
        )
    finally:
        rooms.uploads.remove(received.id)


def _accepted(
    rooms: Rooms,
    tenant: str,
    name: str,
    format: str,
    options: Mapping[str, Any],
    sources: Mapping[str, Path],
    key: str | None,
    digest: str | None,
    *,
    take: bool = True,
) -> tuple[DatasetRecord, bool]:
    """The record of a data set to build, and whether it is new."""
    known = rooms.store.same_dataset(tenant, key, digest)
    if known is not None:
        return known, False
    _check_quota(rooms, tenant)
    return rooms.builder.accept(
        tenant, name, format, options, sources, take=take and bool(sources), key=key, digest=digest
    )


def _register(
    rooms: Rooms, tenant: str, name: str, path: Path, key: str | None, digest: str | None
) -> tuple[DatasetRecord, bool]:
    """Record a data set directory where it lies."""
    _check_quota(rooms, tenant)
    stats = {"format": "dataset", **statistics(Dataset.open(path))}
    own = new_id("ds")
    record = rooms.store.add_dataset(
        name,
        str(path),
        tenant=tenant,
        status=building.READY,
        stats=stats,
        dataset_id=own,
        idempotency_key=key,
        digest=digest,
    )
    return record, record.id == own


def _check_quota(rooms: Rooms, tenant: str) -> None:
    """Refuse one data set too many."""
    most = rooms.settings.tenant_datasets
    if rooms.store.count_datasets(tenant) >= most:
        raise Refused(
            f"this tenant has {most:,} data sets, which is all it may have: delete some",
            code="DATASET_QUOTA",
            limit=most,
        )


def _options(options: Any) -> Mapping[str, Any]:
    """Options that a stranger may set, when the reader takes them. Raises ParameterError."""
    if not isinstance(options, dict):
        raise InputError("options is not a JSON object", code="TYPE")
    closed = CLOSED_OPTIONS & (
        set(options)
        | {name for value in options.values() if isinstance(value, dict) for name in value}
    )
    if closed:
        raise ParameterError(f"option {min(closed)!r} can't be set over HTTP", code="FORBIDDEN")
    try:
        BuildOptions.from_dict(options)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"the options do not fit: {error}") from None
    return options


def _check_unused(rooms: Rooms, record: DatasetRecord, tenant: str) -> None:
    """Refuse to pull a data set away from jobs that need it."""
    users, _ = rooms.store.list(tenant, status=("PENDING", "RUNNING"), dataset=record.id, limit=1)
    if users:
        status = users[0].status
        raise Conflict(
            f"data set {record.id} is used by {users[0].id} ({status}): stop it first",
            code="STATE",
            job=users[0].id,
        )
