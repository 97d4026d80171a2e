"""Batch predictions: a file in, a job, Parquet files out.

The input is an upload (POST /v1/uploads), which the job takes over, or a path of the server that the operator opened. The
answers lie with the job, and go when it is deleted; nothing else removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field

from xcray.batch import BulkSpec, read_manifest
from xcray.batch.output import MANIFEST
from xcray.batch.spec import MOST_K, MOST_ROWS, sets_named
from xcray.errors import NotFound, ParameterError
from xcray.jobs.job import PREDICT, Job, body_digest, new_id
from xcray.jobs.runner.batch_job import INPUT, OUTPUT
from xcray.model.registry import Registry
from xcray.service.app_state import Rooms, rooms_of
from xcray.service.datasets.builds import allowed_path
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import described, json_body
from xcray.service.http.idempotency import IdempotencyKey, replayed
from xcray.service.routes.jobs import accepted, limits_of
from xcray.service.schemas import JobView, Strict, View
from xcray.service.schemas.jobs import Attempts, Expires, Timeout
from xcray.storage.atomic import sync_path
from xcray.telemetry import tracing

router = APIRouter(tags=["batch predictions"])

LABELS = 100_000  # of an allow or deny list
PATH = "/v1/models/{reference:modelref}:batchPredict"
PARQUET = "application/vnd.apache.parquet"
LabelNames = Annotated[
    list[Annotated[str, Field(max_length=10_000)]],
    Field(min_length=1, max_length=LABELS, fail_fast=True),
]
Column = Annotated[str, Field(min_length=1, max_length=1000)]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {PARQUET: {"schema": {"type": "string", "format": "binary"}}}}
}


class BatchRequest(Strict):
    """A file to answer: `upload` or `path`, its format, what is asked for each row, and where the work is done."""

    upload: str | None = Field(
        None, max_length=64, description="Id of POST /v1/uploads; the job takes the upload over."
    )
    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A file, or a folder of Parquet files, of the server.",
    )
    format: Literal["parquet", "svmlight", "xc", "jsonl", "text"]
    top_k: int = Field(5, ge=1, le=MOST_K)
    allow: LabelNames | None = Field(
        None,
        description="Answer only these: names of labels, and set:NAME for the labels of a set.",
    )
    deny: LabelNames | None = Field(None, description="Never answer these, named in the same way.")
    probabilities: bool = Field(
        False,
        description="Tell the probability of each label; the model must be calibrated, or softmax.",
    )
    certificate: bool = Field(
        False, description="Tell for each row whether the answer is proven, and by what margin."
    )
    text_columns: list[Column] | None = Field(
        None, min_length=1, max_length=100, description="parquet, jsonl: joined to the text."
    )
    indices_column: Column | None = Field(
        None, description="parquet, jsonl: lists of feature numbers."
    )
    values_column: Column | None = Field(
        None, description="parquet, jsonl: lists of their values; alone: of all features."
    )
    id_column: Column | None = Field(
        None,
        description="parquet, jsonl: copied to the answers; else they have the row's number, from 0.",
    )
    zero_based: bool = Field(False, description="svmlight: feature indices start at 0.")
    on_error: Literal["fail", "skip"] = Field(
        "fail", description="What to do with rows that can't be read: skipped ones are counted."
    )
    part_rows: int = Field(
        0,
        ge=0,
        le=MOST_ROWS,
        description="Rows of a part file; 0: chosen by the size of the input.",
    )
    pool: Literal["serial", "threads", "ray"] | None = Field(
        None, description="Where rows are answered; else the server chooses."
    )
    workers: int = Field(0, ge=0, le=4096, description="Workers of the pool; 0 takes all cores.")
    name: str | None = Field(
        None, min_length=1, max_length=128, description="A readable name; else the model's."
    )
    priority: int = Field(
        0, ge=-100, le=100, description="Higher runs first; equal ones in order of submission."
    )
    timeout_seconds: Timeout = None
    expires_seconds: Expires = None
    max_attempts: Attempts = None


class OutputFile(View):
    """A part: it answers rows [first_row, first_row + rows_read) of the input; `rows` of them, the others were skipped."""

    file: str
    first_row: int
    rows_read: int
    rows: int
    skipped: int
    bytes: int
    sha256: str


class OutputView(View):
    """The answers of a batch prediction: its files in the order of the input, what their columns are, and what was skipped."""

    job: str
    rows: int
    answered: int
    skipped: int
    skipped_reasons: list[dict[str, Any]]
    columns: dict[str, str]
    parts: list[OutputFile]


@router.post(
    PATH,
    status_code=201,
    openapi_extra=described(BatchRequest),
    responses=replayed(JobView),
    response_model=JobView,
)
def submit(
    request: Request,
    caller: Submitter,
    reference: str,
    asked: Annotated[BatchRequest, Depends(json_body(BatchRequest, "predict_body_bytes"))],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Queue a batch prediction by the version that `reference` means now. With an Idempotency-Key, sending it again gives the same
    job (200); with another body, 409."""
    rooms = rooms_of(request)
    digest = body_digest({"model": reference, **asked.model_dump(mode="json", exclude_unset=True)})
    job, created = rooms.store.same_key(caller.tenant, idempotency_key, digest), False
    if job is None:
        job, created = _accepted(rooms, caller, reference, asked, idempotency_key, digest)
    return accepted(request, job, created)


@router.get("/v1/jobs/{job_id}/output")
def output(request: Request, caller: Reader, job_id: str) -> OutputView:
    """The files that a batch prediction made, once it SUCCEEDED."""
    rooms = rooms_of(request)
    folder = _folder(rooms, rooms.store.get(job_id, caller.tenant))
    manifest = read_manifest(folder)
    return OutputView(
        job=job_id, **{name: manifest[name] for name in OutputView.model_fields if name != "job"}
    )


@router.get("/v1/jobs/{job_id}/output/{file}", responses=_FILE, response_class=FileResponse)
def output_file(request: Request, caller: Reader, job_id: str, file: str) -> FileResponse:
    """One of these files, or its manifest; a part of it with a Range header."""
    rooms = rooms_of(request)
    folder = _folder(rooms, rooms.store.get(job_id, caller.tenant))
    if file not in {MANIFEST, *(part["file"] for part in read_manifest(folder)["parts"])}:
        raise NotFound(
            f"job {job_id} made no file of this name: GET /v1/jobs/{job_id}/output lists them"
        )
    return FileResponse(
        folder / file, media_type="application/json" if file == MANIFEST else PARQUET, filename=file
    )


def _accepted(
    rooms: Rooms, caller: Caller, reference: str, asked: BatchRequest, key: str | None, digest: str
) -> tuple[Job, bool]:
    """The job, and whether it is new: the same request may have come through another door in between, and has the upload then."""
    registry = rooms.registry_of(caller.tenant)
    name, version = registry.locate(reference)
    job_id = new_id("job")
    try:
        with _taken(rooms, caller.tenant, asked, job_id) as path:
            return rooms.store.submit(
                _spec(rooms, registry, asked, path, name, version),
                name=asked.name or name,
                tenant=caller.tenant,
                idempotency_key=key,
                priority=asked.priority,
                digest=digest,
                kind=PREDICT,
                job_id=job_id,
                model=name,
                **limits_of(
                    caller, asked.timeout_seconds, asked.expires_seconds, asked.max_attempts
                ),
            )
    except NotFound:
        job = rooms.store.same_key(caller.tenant, key, digest)
        if job is None:
            raise
        return job, False


def _folder(rooms: Rooms, job: Job) -> Path:
    """Where a job's answers are. Raises NotFound while there are none."""
    folder = rooms.home.run(job.id) / OUTPUT
    if job.kind != PREDICT or not (folder / MANIFEST).is_file():
        raise NotFound(
            f"job {job.id} has no output; it is {job.status}"
            + ("" if job.kind == PREDICT else " and no batch prediction")
        )
    return folder


@contextmanager
def _taken(rooms: Rooms, tenant: str, asked: BatchRequest, job_id: str) -> Iterator[Path]:
    """The input's path; an upload becomes the job's, and is given back when the job is not accepted."""
    if (asked.upload is None) == (asked.path is None):
        raise ParameterError(
            "name the input: upload, an id of POST /v1/uploads, or path; one of them", code="INPUT"
        )
    if asked.path is not None:
        yield allowed_path(asked.path, rooms.settings.dataset_roots)
        return
    upload = rooms.uploads.path(str(asked.upload), tenant)
    folder = rooms.home.run(job_id) / INPUT
    folder.parent.mkdir(mode=0o700)
    os.rename(upload.parent, folder)
    try:
        os.rename(folder / upload.name, folder / f"input.{asked.format}")
        sync_path(folder)
        yield folder / f"input.{asked.format}"
    except BaseException:
        with suppress(OSError):
            os.rename(folder / f"input.{asked.format}", folder / upload.name)
            os.rename(folder, upload.parent)
            folder.parent.rmdir()
        raise


def _spec(
    rooms: Rooms, registry: Registry, asked: BatchRequest, path: Path, name: str, version: int
) -> dict[str, Any]:
    """The spec that a request means, checked as a whole. Raises ParameterError."""
    own = (
        "upload",
        "path",
        "top_k",
        "pool",
        "name",
        "priority",
        "timeout_seconds",
        "expires_seconds",
        "max_attempts",
    )
    fields = {
        field: value for field, value in asked.model_dump(mode="json").items() if field not in own
    }
    given = {
        "model": str(registry.resolve(f"{name}:{version}")),
        "input": str(path),
        "k": asked.top_k,
    }
    sets = sets_named([*(asked.allow or ()), *(asked.deny or ())], registry.sets(name))
    spec = BulkSpec.from_dict(
        {**fields, **given, "pool": asked.pool or rooms.settings.pool, "label_sets": sets}
    )
    shown = {"model": f"{name}:{version}", "input": asked.upload or asked.path}
    return {**spec.as_dict(), "shown": shown, **tracing.carried()}
