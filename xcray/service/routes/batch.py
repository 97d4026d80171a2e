"""Batch predictions: an input file, a job, and Parquet files as output.

The input is an upload (POST /v1/uploads), which the job takes ownership of, or a server path that
the operator allowed. The output belongs to the job and is removed only when the job is deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import Field

from xcray.api.job_replies import JobView, OutputView
from xcray.api.options import BatchOptions, Format, JobOptions
from xcray.batch import BatchPredictSpec, read_manifest
from xcray.batch.answer_file import answer_lines
from xcray.batch.output import MANIFEST
from xcray.batch.spec import resolve_label_sets
from xcray.errors import NotFound, ParameterError, Unavailable
from xcray.jobs.job import PREDICT, Job, body_digest, new_id
from xcray.jobs.runner.batch_job import INPUT_FOLDER, OUTPUT_FOLDER
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.calibration import require_probabilities
from xcray.model.manifest import read_manifest as read_model_manifest
from xcray.model.manifest import require_weights
from xcray.model.registry import Registry
from xcray.predict.thresholds import require_label_thresholds
from xcray.service.app_state import AppState, app_state_of
from xcray.service.datasets.builds import allowed_path
from xcray.service.datasets.uploads import link_upload
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.idempotency import IdempotencyKey, replay_response
from xcray.service.routes.job_replies import submission_reply
from xcray.service.schemas.base import ID_PATTERN, Strict
from xcray.service.schemas.declared import declared_values, with_parameters
from xcray.storage.atomic import sync_path
from xcray.telemetry import tracing

router = APIRouter(tags=["batch predictions"])

PATH = "/v1/models/{reference:modelref}:batchPredict"
PARQUET = "application/vnd.apache.parquet"
# all answers as one file
ANSWER_FILES = {"answers.jsonl": "application/jsonl", "answers.csv": "text/csv"}
BLOCK_LINES = 1000
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in (PARQUET, *ANSWER_FILES.values())
        }
    }
}


class InputRequest(Strict):
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
    format: Format


BatchRequest = with_parameters("BatchRequest", InputRequest, BatchOptions, JobOptions)


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
    body: Annotated[InputRequest, Depends(json_body(BatchRequest, for_predictions=True))],
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
    fields = {name: manifest[name] for name in OutputView.__annotations__ if name != "job"}
    return cast(OutputView, {"job": job_id, **fields})


@router.get("/v1/jobs/{job_id}/output/{file}", responses=_FILE, response_class=FileResponse)
def output_file(request: Request, caller: Reader, job_id: str, file: str) -> Response:
    """Download one output file or the manifest. Range requests are supported.

    `answers.jsonl` and `answers.csv` have all rows, without ranges.
    """
    app_state = app_state_of(request)
    folder = _output_folder(app_state, app_state.store.jobs.get(job_id, caller.tenant))
    if file in ANSWER_FILES:
        lines = answer_lines(folder, Path(file).suffix[1:])
        return StreamingResponse(_blocks(lines), media_type=ANSWER_FILES[file])
    if file not in {MANIFEST, *(part["file"] for part in read_manifest(folder)["parts"])}:
        raise NotFound(
            f"job {job_id} has no output file of this name: GET /v1/jobs/{job_id}/output lists them"
        )
    return FileResponse(
        folder / file, media_type="application/json" if file == MANIFEST else PARQUET, filename=file
    )


def _blocks(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines in blocks: a message per line would take most of the time."""
    while block := "".join(islice(lines, BLOCK_LINES)):
        yield block


def _submit_job(
    app_state: AppState,
    caller: Caller,
    reference: str,
    body: InputRequest,
    key: str | None,
    digest: str,
) -> tuple[Job, bool]:
    """Submit the job; return it and whether it is new.

    A concurrent request with the same key may have used the upload; then its job is returned.
    """
    registry = app_state.registry_of(caller.tenant)
    name, version = registry.resolve_version(reference)
    job_id, created = new_id("job"), False
    try:
        path = _find_input(app_state, caller.tenant, body, job_id)
        submission = JobSubmission(
            _batch_spec(app_state, registry, body, path, name, version),
            tenant=caller.tenant,
            idempotency_key=key,
            digest=digest,
            kind=PREDICT,
            job_id=job_id,
            key_id=caller.key_id,
            model=name,
            **{"name": name, **declared_values(body, JobOptions)},
        )
        job, created = app_state.store.jobs.submit(submission, max_queued=caller.limits.max_queued)
    except Unavailable:
        created = True  # possibly; if not, a sweep removes the input
        raise
    except NotFound:
        existing = app_state.store.jobs.find_by_key(caller.tenant, key, digest)
        if existing is None:
            raise
        job = existing
    finally:
        if not created:
            shutil.rmtree(app_state.home.run(job_id), ignore_errors=True)
    if body.upload is not None:
        app_state.uploads.remove(body.upload)
    return job, created


def _output_folder(app_state: AppState, job: Job) -> Path:
    """Return the folder of a job's output. Raises NotFound if there is none."""
    folder = app_state.home.run(job.id) / OUTPUT_FOLDER
    if job.kind != PREDICT or not (folder / MANIFEST).is_file():
        raise NotFound(
            f"job {job.id} has no output; it is {job.status}"
            + ("" if job.kind == PREDICT else " and not a batch prediction")
        )
    return folder


def _find_input(app_state: AppState, tenant: str, body: InputRequest, job_id: str) -> Path:
    """Return the path of the input; an upload is linked into the job's directory."""
    if (body.upload is None) == (body.path is None):
        raise ParameterError(
            "set either upload (an id from POST /v1/uploads) or path", code="INPUT"
        )
    if body.path is not None:
        return allowed_path(body.path, app_state.settings.dataset_roots)
    upload = app_state.uploads.path(str(body.upload), tenant)
    folder = app_state.home.run(job_id) / INPUT_FOLDER
    folder.mkdir(mode=0o700, parents=True)
    name = link_upload(upload, folder, "input", body.format)
    sync_path(folder)
    return folder / name


def _batch_spec(
    app_state: AppState,
    registry: Registry,
    body: InputRequest,
    path: Path,
    name: str,
    version: int,
) -> dict[str, Any]:
    """Return the validated specification of the requested job.

    Raises ParameterError, also for a model in shards, and NotCalibrated for one without
    probabilities.
    """
    options = {"pool": app_state.settings.pool, **declared_values(body, BatchOptions)}
    labels = [*options.get("allow", ()), *options.get("deny", ())]
    spec = BatchPredictSpec.from_dict(
        {
            "model": str(registry.resolve(f"{name}:{version}")),
            "input": str(path),
            "format": body.format,
            "label_sets": resolve_label_sets(labels, registry.label_sets(name)),
            **options,
        }
    )
    manifest = read_model_manifest(Path(spec.model))
    require_weights(manifest)
    if spec.needs_probabilities:
        require_probabilities(manifest)
    if spec.label_thresholds:
        require_label_thresholds(manifest)
    shown = {"model": f"{name}:{version}", "input": body.upload or body.path}
    return {**spec.as_dict(), "shown": shown, **tracing.trace_headers()}
