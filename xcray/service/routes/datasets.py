"""Data sets: uploaded, built in, or from folders that the operator allows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from xcray.data.build import BuildOptions
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ParameterError
from xcray.files import check_name
from xcray.jobs.job import DatasetRecord
from xcray.service import building
from xcray.service.auth import Reader, Submitter
from xcray.service.body import check_type, described, json_body
from xcray.service.figures import statistics
from xcray.service.schemas import DatasetPage, DatasetRequest, DatasetView, UploadView
from xcray.service.state import Rooms, rooms_of
from xcray.service.strict_json import loads

router = APIRouter(tags=["data sets"])

UPLOADED = ("svmlight", "xc", "jsonl", "csv", "tsv", "parquet")
GENERATED = ("pydocs", "synthetic")
RAW = ("application/octet-stream", "application/x-ndjson", "text/csv", "text/plain", "text/tab-separated-values")
# paths of the server; patterns that could run for hours in a process that serves; what the server itself declares
CLOSED_OPTIONS = frozenset(
    {"expected_bytes", "expected_sha256", "label_names_file", "labels_file", "name", "test_rows_file", "token_pattern"}
)
_BYTES = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in RAW[:3]}
_RAW_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BYTES}}
_BOTH_BODIES: dict[str, Any] = {
    "requestBody": {"required": True, "content": described(DatasetRequest)["requestBody"]["content"] | _BYTES}
}


@router.post("/v1/uploads", status_code=201, openapi_extra=_RAW_BODY, responses={507: {"description": "The disk is full."}})
async def upload(request: Request, caller: Submitter, sha256: str | None = None) -> UploadView:
    """Send one file: the raw body, streamed to disk. Its id is for `uploads` of POST /v1/datasets, once, within a day."""
    check_type(request, RAW)
    found = await rooms_of(request).uploads.receive(request, sha256)
    rooms_of(request).gauges.uploaded.inc(found.n_bytes)
    return UploadView(id=found.id, bytes=found.n_bytes, sha256=found.sha256)


@router.post("/v1/datasets", status_code=201, openapi_extra=_BOTH_BODIES)
async def create(
    request: Request,
    response: Response,
    caller: Submitter,
    name: Annotated[str | None, Query(description="Raw body: name of the data set.")] = None,
    format: Annotated[str | None, Query(description=f"Raw body: one of {', '.join(UPLOADED)}.")] = None,
    options: Annotated[str | None, Query(description="Raw body: options of the reader, a JSON object.", max_length=8192)] = None,
    sha256: Annotated[str | None, Query(description="Raw body: what its SHA-256 is.")] = None,
) -> DatasetView:
    """Make a data set: from the raw body (name and format in the query), or from a JSON request. Answers at once: BUILDING."""
    rooms = rooms_of(request)
    kind = check_type(request, ("application/json", *RAW))
    if kind == "application/json" and format is None:
        asked = await json_body(DatasetRequest)(request)
        record = await asyncio.to_thread(_from_request, rooms, caller.tenant, asked)
    else:
        record = await _from_body(request, rooms, caller.tenant, name, format, options, sha256)
    if record.status == building.BUILDING:
        rooms.builder.begin(record.id)
    response.headers["Location"] = f"/v1/datasets/{record.id}"
    return view(record)


@router.get("/v1/datasets")
def index(
    request: Request,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> DatasetPage:
    """Data sets, newest first."""
    records, token = rooms_of(request).store.list_datasets(caller.tenant, limit=limit, page_token=page_token)
    return DatasetPage(datasets=[view(record) for record in records], next_page_token=token)


@router.get("/v1/datasets/{dataset_id}")
def show(request: Request, caller: Reader, dataset_id: str) -> DatasetView:
    """One data set: its sizes when READY, the first bad lines when FAILED."""
    return view(rooms_of(request).store.get_dataset(dataset_id, caller.tenant))


@router.delete("/v1/datasets/{dataset_id}", status_code=204)
async def delete(request: Request, caller: Submitter, dataset_id: str) -> None:
    """Forget a data set and remove its files (not those of a folder that it was registered from)."""
    rooms = rooms_of(request)
    record = await asyncio.to_thread(rooms.store.get_dataset, dataset_id, caller.tenant)
    await asyncio.to_thread(_check_unused, rooms, record, caller.tenant)
    await asyncio.to_thread(rooms.store.delete_dataset, dataset_id, caller.tenant)
    await rooms.builder.cancel(dataset_id)
    if Path(record.path) == rooms.home.dataset(dataset_id):
        await asyncio.to_thread(shutil.rmtree, record.path, True)


def view(record: DatasetRecord) -> DatasetView:
    """A record without its path."""
    fields = {name: getattr(record, name) for name in ("id", "name", "status", "created", "stats")}
    return DatasetView(**fields)


def find(rooms: Rooms, tenant: str, reference: str) -> DatasetRecord:
    """A data set by id, or the newest READY one of a name. Raises NotFound; Conflict when it is not READY."""
    named = [record for record in _all(rooms, tenant) if record.name == reference]
    ready = [record for record in named if record.status == building.READY]
    record = (ready or named)[0] if named else rooms.store.get_dataset(reference, tenant)
    if record.status != building.READY:
        waits = record.status == building.BUILDING
        mend = "wait until it is READY" if waits else f"see GET /v1/datasets/{record.id} for the reason"
        raise Conflict(f"data set {reference} is {record.status}: {mend}", code="DATASET_NOT_READY", dataset=record.id)
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
    request: Request, rooms: Rooms, tenant: str, name: str | None, format: str | None, options: str | None, sha256: str | None
) -> DatasetRecord:
    """Receive the raw body and accept it as the training file."""
    if name is None or format not in UPLOADED:
        raise ParameterError(f"a raw body needs ?name=...&format=..., the format one of {', '.join(UPLOADED)}", code="FORMAT")
    check_name(name)
    chosen = _options({} if options is None else loads(options.encode("utf-8", "surrogatepass")))
    received = await rooms.uploads.receive(request, sha256)
    rooms.gauges.uploaded.inc(received.n_bytes)
    try:
        return await asyncio.to_thread(rooms.builder.accept, tenant, name, format, chosen, {"train": received.path}, take=True)
    finally:
        await asyncio.to_thread(rooms.uploads.remove, received.id)


def _from_request(rooms: Rooms, tenant: str, asked: DatasetRequest) -> DatasetRecord:
    """Accept what a JSON request names."""
    options = _options(asked.options)
    if asked.format in GENERATED:
        if asked.uploads or asked.path:
            raise ParameterError(f"format {asked.format} needs neither uploads nor a path", code="FORMAT")
        return rooms.builder.accept(tenant, asked.name, asked.format, options, {}, take=False)
    if asked.path is not None and asked.uploads is None:
        found = building.allowed_path(asked.path, rooms.settings.dataset_roots)
        if asked.format == "dataset":
            return _register(rooms, tenant, asked.name, found)
        return rooms.builder.accept(tenant, asked.name, asked.format, options, {"train": found}, take=False)
    if asked.uploads is None or "train" not in asked.uploads or asked.path is not None or asked.format not in UPLOADED:
        raise ParameterError(f"format {asked.format} needs uploads {{'train': id}} of POST /v1/uploads, or a path", code="FORMAT")
    sources = {str(part): rooms.uploads.path(upload_id) for part, upload_id in asked.uploads.items()}
    if len(set(sources.values())) < len(sources):
        raise ParameterError("train and test are the same upload: send two files", code="FORMAT")
    record = rooms.builder.accept(tenant, asked.name, asked.format, options, sources, take=True)
    for upload_id in asked.uploads.values():
        rooms.uploads.remove(upload_id)
    return record


def _register(rooms: Rooms, tenant: str, name: str, path: Path) -> DatasetRecord:
    """Record a data set directory where it lies."""
    stats = {"format": "dataset", **statistics(Dataset.open(path))}
    return rooms.store.add_dataset(name, str(path), tenant=tenant, status=building.READY, stats=stats)


def _options(options: Any) -> Mapping[str, Any]:
    """Options that a stranger may set, when the reader takes them. Raises ParameterError."""
    if not isinstance(options, dict):
        raise InputError("options is not a JSON object", code="TYPE")
    closed = CLOSED_OPTIONS & (set(options) | {name for value in options.values() if isinstance(value, dict) for name in value})
    if closed:
        raise ParameterError(f"option {min(closed)!r} can't be set over HTTP", code="FORBIDDEN")
    try:
        BuildOptions.from_dict(options)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"the options do not fit: {error}") from None
    return options


def _check_unused(rooms: Rooms, record: DatasetRecord, tenant: str) -> None:
    """Refuse to pull a data set away from jobs that need it."""
    for status in ("PENDING", "RUNNING"):
        jobs, _ = rooms.store.list(tenant, status=status, limit=1000)
        users = [job.id for job in jobs if job.spec.get("dataset") == record.path]
        if users:
            raise Conflict(f"data set {record.id} is used by {users[0]} ({status}): stop it first", code="STATE", job=users[0])
