"""Batch predictions: an input file, a job, and Parquet files as output.

The input is an upload (POST /v1/uploads), which the job takes ownership of, or a server path that
the operator allowed. The output belongs to the job and is removed only when the job is deleted.
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

from xcray.batch import BatchPredictSpec, read_manifest
from xcray.batch.output import MANIFEST
from xcray.batch.spec import MAX_K, MAX_PART_ROWS, resolve_label_sets
from xcray.data.readers.blocks import compressed_suffix
from xcray.errors import NotFound, ParameterError
from xcray.jobs.job import PREDICT, Job, body_digest, new_id
from xcray.jobs.runner.batch_job import INPUT_FOLDER, OUTPUT_FOLDER
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.registry import Registry
from xcray.service.app_state import AppState, app_state_of
from xcray.service.datasets.builds import allowed_path
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.idempotency import IdempotencyKey, replay_response
from xcray.service.routes.jobs import submission_reply
from xcray.service.schemas import JobView, Strict, View
from xcray.service.schemas.base import ID_PATTERN, WHOLE
from xcray.service.schemas.jobs import Attempts, Expires, Priority, Timeout
from xcray.storage.atomic import sync_path
from xcray.telemetry import tracing

router = APIRouter(tags=["batch predictions"])

MAX_FILTER_LABELS = 100_000  # labels per allow or deny list
PATH = "/v1/models/{reference:modelref}:batchPredict"
PARQUET = "application/vnd.apache.parquet"
LabelNames = Annotated[
    list[Annotated[str, Field(max_length=10_000)]],
    Field(min_length=1, max_length=MAX_FILTER_LABELS, fail_fast=True),
]
Column = Annotated[str, Field(min_length=1, max_length=1000)]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {PARQUET: {"schema": {"type": "string", "format": "binary"}}}}
}


class BatchRequest(Strict):
    """Input file (`upload` or `path`), its format, prediction options, and where the work runs."""

    upload: str | None = Field(
        None,
        max_length=64,
        description="Id from POST /v1/uploads; the job takes ownership of the upload.",
        json_schema_extra={"pattern": ID_PATTERN},
    )
    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A file, or a folder of Parquet files, on the server.",
    )
    format: Literal["parquet", "svmlight", "xc", "jsonl", "csv", "tsv", "text"]
    top_k: Annotated[int, Field(ge=1, le=MAX_K), WHOLE] = 5
    allow: LabelNames | None = Field(
        None,
        description="Only these labels can be predicted: label names, or set:NAME for the labels "
        "of a set.",
    )
    deny: LabelNames | None = Field(
        None, description="These labels are never predicted; same syntax as `allow`."
    )
    probabilities: bool = Field(
        False,
        description="Return the probability of each label; needs a calibrated model or a softmax "
        "model.",
    )
    certificate: bool = Field(
        False, description="Return for each row whether the result is proven exact, and the margin."
    )
    text_columns: list[Column] | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="parquet, jsonl: columns that are joined to the text.",
    )
    indices_column: Column | None = Field(
        None, description="parquet, jsonl: column of feature number lists."
    )
    values_column: Column | None = Field(
        None,
        description="parquet, jsonl: column of value lists; without indices, one value per "
        "feature.",
    )
    id_column: Column | None = Field(
        None,
        description="parquet, jsonl: column that is copied to the output; default: the row number "
        "from 0.",
    )
    zero_based: bool = Field(False, description="svmlight: feature indices start at 0.")
    on_error: Literal["fail", "skip"] = Field(
        "fail", description="What to do with rows that can't be read; skipped rows are counted."
    )
    part_rows: Annotated[int, Field(ge=0, le=MAX_PART_ROWS), WHOLE] = Field(
        0,
        description="Rows per output file; 0: chosen by the size of the input.",
    )
    pool: Literal["serial", "threads", "ray"] | None = Field(
        None, description="Where the rows are predicted. Default: chosen by the server."
    )
    workers: Annotated[int, Field(ge=0, le=4096), WHOLE] = Field(
        0, description="Workers of the pool; 0 uses all cores."
    )
    name: str | None = Field(
        None, min_length=1, max_length=128, description="A display name; default: the model's name."
    )
    priority: Priority = 0
    timeout_seconds: Timeout = None
    expires_seconds: Expires = None
    max_attempts: Attempts = None


class OutputFile(View):
    """One output file, for the input rows [first_row, first_row + rows_read).

    `rows` of them are in the file; the others were skipped.
    """

    file: str
    first_row: int
    rows_read: int
    rows: int
    skipped: int
    bytes: int
    sha256: str


class OutputView(View):
    """Output of a batch prediction: files in input order, their columns, and skipped rows."""

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
    openapi_extra=openapi_body(BatchRequest),
    responses=replay_response(JobView),
    response_model=JobView,
)
def submit(
    request: Request,
    caller: Submitter,
    reference: str,
    body: Annotated[BatchRequest, Depends(json_body(BatchRequest, "predict_body_bytes"))],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Queue a batch prediction with the version that `reference` currently resolves to.

    With an Idempotency-Key, sending the same request again returns the same job (200), and another
    body is refused (409).
    """
    app_state = app_state_of(request)
    digest = body_digest({"model": reference, **body.model_dump(mode="json", exclude_unset=True)})
    job, created = app_state.store.jobs.find_by_key(caller.tenant, idempotency_key, digest), False
    if job is None:
        job, created = _submit_job(app_state, caller, reference, body, idempotency_key, digest)
    return submission_reply(request, job, created)


@router.get("/v1/jobs/{job_id}/output")
def output(request: Request, caller: Reader, job_id: str) -> OutputView:
    """List the output files of a batch prediction that has SUCCEEDED."""
    app_state = app_state_of(request)
    folder = _output_folder(app_state, app_state.store.jobs.get(job_id, caller.tenant))
    manifest = read_manifest(folder)
    return OutputView(
        job=job_id, **{name: manifest[name] for name in OutputView.model_fields if name != "job"}
    )


@router.get("/v1/jobs/{job_id}/output/{file}", responses=_FILE, response_class=FileResponse)
def output_file(request: Request, caller: Reader, job_id: str, file: str) -> FileResponse:
    """Download one output file or the manifest. Range requests are supported."""
    app_state = app_state_of(request)
    folder = _output_folder(app_state, app_state.store.jobs.get(job_id, caller.tenant))
    if file not in {MANIFEST, *(part["file"] for part in read_manifest(folder)["parts"])}:
        raise NotFound(
            f"job {job_id} has no output file of this name: GET /v1/jobs/{job_id}/output lists them"
        )
    return FileResponse(
        folder / file, media_type="application/json" if file == MANIFEST else PARQUET, filename=file
    )


def _submit_job(
    app_state: AppState,
    caller: Caller,
    reference: str,
    body: BatchRequest,
    key: str | None,
    digest: str,
) -> tuple[Job, bool]:
    """Submit the job; return it and whether it is new.

    A concurrent request with the same key may have claimed the upload; then its job is returned.
    """
    registry = app_state.registry_of(caller.tenant)
    name, version = registry.resolve_version(reference)
    job_id = new_id("job")
    try:
        with _claim_input(app_state, caller.tenant, body, job_id) as path:
            submission = JobSubmission(
                _batch_spec(app_state, registry, body, path, name, version),
                name=body.name or name,
                tenant=caller.tenant,
                idempotency_key=key,
                priority=body.priority,
                digest=digest,
                kind=PREDICT,
                job_id=job_id,
                key_id=caller.key_id,
                model=name,
                timeout_seconds=body.timeout_seconds,
                expires_seconds=body.expires_seconds,
                max_attempts=body.max_attempts,
            )
            return app_state.store.jobs.submit(submission, max_queued=caller.limits.max_queued)
    except NotFound:
        job = app_state.store.jobs.find_by_key(caller.tenant, key, digest)
        if job is None:
            raise
        return job, False


def _output_folder(app_state: AppState, job: Job) -> Path:
    """Return the folder of a job's output. Raises NotFound if there is none."""
    folder = app_state.home.run(job.id) / OUTPUT_FOLDER
    if job.kind != PREDICT or not (folder / MANIFEST).is_file():
        raise NotFound(
            f"job {job.id} has no output; it is {job.status}"
            + ("" if job.kind == PREDICT else " and not a batch prediction")
        )
    return folder


@contextmanager
def _claim_input(
    app_state: AppState, tenant: str, body: BatchRequest, job_id: str
) -> Iterator[Path]:
    """Yield the path of the input; an upload is moved to the job, and back if submission fails."""
    if (body.upload is None) == (body.path is None):
        raise ParameterError(
            "set either upload (an id from POST /v1/uploads) or path", code="INPUT"
        )
    if body.path is not None:
        yield allowed_path(body.path, app_state.settings.dataset_roots)
        return
    upload = app_state.uploads.path(str(body.upload), tenant)
    folder = app_state.home.run(job_id) / INPUT_FOLDER
    folder.parent.mkdir(mode=0o700)
    name = f"input.{body.format}{compressed_suffix(upload)}"  # readers know compression by name
    os.rename(upload.parent, folder)
    try:
        os.rename(folder / upload.name, folder / name)
        sync_path(folder)
        yield folder / name
    except BaseException:
        with suppress(OSError):
            os.rename(folder / name, folder / upload.name)
            os.rename(folder, upload.parent)
            folder.parent.rmdir()
        raise


def _batch_spec(
    app_state: AppState,
    registry: Registry,
    body: BatchRequest,
    path: Path,
    name: str,
    version: int,
) -> dict[str, Any]:
    """Return the validated specification of the requested job. Raises ParameterError."""
    not_spec_fields = (
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
        field: value
        for field, value in body.model_dump(mode="json").items()
        if field not in not_spec_fields
    }
    model_fields = {
        "model": str(registry.resolve(f"{name}:{version}")),
        "input": str(path),
        "k": body.top_k,
    }
    sets = resolve_label_sets([*(body.allow or ()), *(body.deny or ())], registry.label_sets(name))
    spec = BatchPredictSpec.from_dict(
        {**fields, **model_fields, "pool": body.pool or app_state.settings.pool, "label_sets": sets}
    )
    shown = {"model": f"{name}:{version}", "input": body.upload or body.path}
    return {**spec.as_dict(), "shown": shown, **tracing.trace_headers()}
