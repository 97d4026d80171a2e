"""Jobs: queued trainings and batch predictions, their events and logs."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, cast

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from xcray.api.job_replies import EstimateView, JobView, TimelineView
from xcray.api.options import JobOptions, TrainingOptions
from xcray.errors import InputError, NotFound
from xcray.jobs.job import body_digest
from xcray.jobs.states import TERMINAL
from xcray.jobs.store.jobs import JobFilter, JobSubmission
from xcray.jobs.store.paging import page_start, page_token_after
from xcray.model.model import Model
from xcray.service.app_state import AppState, app_state_of
from xcray.service.child_work import estimate_in_child
from xcray.service.http import sse
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.etags import NOT_MODIFIED, check_if_match, counter_etag, reply
from xcray.service.http.idempotency import IdempotencyKey, replay_response
from xcray.service.observability import log_tail as log_pages
from xcray.service.routes.dataset_requests import find_ready
from xcray.service.routes.job_replies import (
    job_fields,
    job_reply,
    job_timeline,
    published_model,
    submission_reply,
)
from xcray.service.schemas.declared import declared_values
from xcray.service.schemas.jobs import JobPage, JobRequest, LabelTablePage, TrainingRequest
from xcray.service.supervision import ray_job_links
from xcray.telemetry import tracing
from xcray.training.report.timeline import timeline_document

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MAX_TIMELINE_ENTRIES = 20_000  # limit per reply: about 4 MB
TIME_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})$"
)
_EVENT = {
    "type": "object",
    "description": "`data` is a JSON object: the time and the details of the event.",
    "properties": {
        "id": {"type": "string", "description": "Value for Last-Event-ID."},
        "event": {"type": "string", "description": "status, phase, progress, epoch or stop."},
        "data": {"type": "string"},
        "retry": {"type": "integer"},
    },
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": _EVENT}}},
    204: {"description": "The job has ended and all events were sent."},
}
_LOGS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}},
        "headers": {
            "Log-Offset": {
                "description": "Offset of the first byte in the log.",
                "schema": {"type": "integer"},
            },
            "Log-Next-Offset": {
                "description": "`offset` of the next request.",
                "schema": {"type": "integer"},
            },
            "Log-Size": {
                "description": "Current size of the log in bytes.",
                "schema": {"type": "integer"},
            },
        },
    }
}
Status: TypeAlias = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
TimeFilter: TypeAlias = Annotated[
    str | None,
    Query(
        max_length=40,
        pattern=TIME_PATTERN,
        description="A time, such as 2026-01-31T12:00:00Z.",
        examples=["2026-01-31T12:00:00Z"],
    ),
]


@router.post(
    "",
    status_code=201,
    openapi_extra=openapi_body(JobRequest),
    responses=replay_response(JobView),
    response_model=JobView,
)
def submit(
    request: Request,
    caller: Submitter,
    body: Annotated[TrainingRequest, Depends(json_body(JobRequest))],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Queue a training.

    With an Idempotency-Key, sending the same request again returns the same job (200), and another
    body is refused (409).
    """
    app_state = app_state_of(request)
    digest = body_digest(body.model_dump(mode="json", exclude_unset=True))
    job, created = app_state.store.jobs.find_by_key(caller.tenant, idempotency_key, digest), False
    if job is None:
        record = find_ready(app_state, caller.tenant, body.dataset)
        submission = JobSubmission(
            {
                **_training_spec(app_state, body, record.path),
                "dataset_id": record.id,
                **tracing.trace_headers(),
            },
            tenant=caller.tenant,
            idempotency_key=idempotency_key,
            digest=digest,
            key_id=caller.key_id,
            model=body.model,
            dataset_id=record.id,
            **{"name": body.model, **declared_values(body, JobOptions)},
        )
        job, created = app_state.store.jobs.submit(submission, max_queued=caller.limits.max_queued)
    return submission_reply(request, job, created)


@router.get("", response_model=JobPage, responses=NOT_MODIFIED)
def index(
    request: Request,
    caller: Reader,
    status: Annotated[
        list[Status] | None, Query(max_length=5, description="One or several statuses.")
    ] = None,
    kind: Annotated[Literal["train", "predict"] | None, Query()] = None,
    name: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    contains: Annotated[
        str | None, Query(max_length=128, description="Part of the name, in any case.")
    ] = None,
    model: Annotated[
        str | None,
        Query(min_length=1, max_length=128, description="The model that the job trains or uses."),
    ] = None,
    dataset: Annotated[
        str | None, Query(min_length=1, max_length=64, description="The id of the job's data set.")
    ] = None,
    created_after: TimeFilter = None,
    created_before: TimeFilter = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List jobs, newest first. Filters are combined with AND."""
    app_state = app_state_of(request)
    jobs, token = app_state.store.jobs.list_page(
        JobFilter(
            caller.tenant,
            status=status,
            kind=kind,
            name=name,
            contains=contains,
            model=model,
            dataset_id=dataset,
            created_after=_to_unix_seconds("created_after", created_after),
            created_before=_to_unix_seconds("created_before", created_before),
        ),
        limit=limit,
        page_token=page_token,
    )
    links = ray_job_links(app_state.settings, app_state.home, jobs)
    page = {"jobs": [job_fields(job, links) for job in jobs], "next_page_token": token}
    return reply(request, page)


@router.post(":estimate", openapi_extra=openapi_body(JobRequest))
async def estimate(
    request: Request,
    caller: Submitter,
    body: Annotated[TrainingRequest, Depends(json_body(JobRequest))],
) -> EstimateView:
    """Estimate memory, disk and time of a training, without submitting it.

    Takes some seconds: labels are solved in a process of their own, one estimate at a time. A
    tenant that has two estimates already gets 429.
    """
    app_state = app_state_of(request)

    def work() -> EstimateView:
        record = find_ready(app_state, caller.tenant, body.dataset)
        spec = _training_spec(app_state, body, record.path)
        return cast(EstimateView, estimate_in_child(spec, app_state.home.path))

    return await app_state.estimates.run(caller.tenant, work)


@router.get("/{job_id}", response_model=JobView, responses=NOT_MODIFIED)
def show(request: Request, caller: Reader, job_id: str) -> Response:
    """Return one job."""
    app_state = app_state_of(request)
    job = app_state.store.jobs.get(job_id, caller.tenant)
    links = ray_job_links(app_state.settings, app_state.home, [job])
    return reply(request, job_fields(job, links), counter_etag(job.events))


@router.get("/{job_id}/events", responses=_EVENTS, response_class=StreamingResponse)
async def events(
    request: Request,
    caller: Reader,
    job_id: str,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream the past and future events of a job as server-sent events.

    The stream ends after the event that ends the job. It resumes after Last-Event-ID.
    """
    app_state = app_state_of(request)
    job = await asyncio.to_thread(app_state.store.jobs.get, job_id, caller.tenant)
    start = sse.start_after(after, last_event_id)
    if last_event_id is not None and job.status in TERMINAL:
        left = await asyncio.to_thread(
            app_state.store.jobs.list_events, job_id, caller.tenant, after=start, limit=1
        )
        if not left:
            return Response(status_code=204)  # makes an EventSource stop reconnecting
    stream = sse.stream_events(app_state, job_id, caller.tenant, start)
    return StreamingResponse(stream, media_type="text/event-stream", headers=sse.STREAM_HEADERS)


@router.get("/{job_id}/logs", responses=_LOGS, response_class=PlainTextResponse)
def logs(
    request: Request,
    caller: Reader,
    job_id: str,
    tail: Annotated[
        int | None,
        Query(
            ge=1,
            le=10_000,
            description="Number of lines from the end; default 200 if no offset is set.",
        ),
    ] = None,
    offset: Annotated[
        int | None,
        Query(ge=0, le=2**53, description="Return the log from this byte on; excludes tail."),
    ] = None,
    limit: Annotated[
        int,
        Query(
            ge=1,
            le=log_pages.MAX_PIECE_BYTES,
            description="Maximum number of bytes after an offset.",
        ),
    ] = log_pages.MAX_PIECE_BYTES,
) -> PlainTextResponse:
    """Return lines of a job's log over all attempts: the last lines, or those after an offset.

    Empty if there is no log yet. To follow the log, repeat the request with the Log-Next-Offset of
    the previous reply as `offset`.
    """
    if tail is not None and offset is not None:
        raise InputError(
            "tail and offset exclude each other: send one of them", code="CHOICE", loc="offset"
        )
    app_state = app_state_of(request)
    path = app_state.home.log(app_state.store.jobs.get(job_id, caller.tenant).id)
    page = (
        log_pages.read_last_lines(path, tail or 200)
        if offset is None
        else log_pages.read_from(path, offset, limit)
    )
    headers = {"Log-Offset": page.begin, "Log-Next-Offset": page.end, "Log-Size": page.size}
    return PlainTextResponse(
        page.text, headers={name: str(value) for name, value in headers.items()}
    )


@router.get("/{job_id}/timeline")
def timeline(
    request: Request,
    caller: Reader,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=MAX_TIMELINE_ENTRIES)] = 5000,
) -> TimelineView:
    """Return the timeline of the workers: partial while the job runs, complete when SUCCEEDED."""
    app_state = app_state_of(request)
    job = app_state.store.jobs.get(job_id, caller.tenant)
    document = timeline_document(job_timeline(app_state, job), limit)
    return cast(TimelineView, {"job": job.id, **document})


@router.get("/{job_id}/labels")
def labels(
    request: Request,
    caller: Reader,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> LabelTablePage:
    """Return the training report by label of a job that has SUCCEEDED.

    The columns include positives, rounds, support, gap, seconds and worker.
    """
    app_state = app_state_of(request)
    job = app_state.store.jobs.get(job_id, caller.tenant)
    model = Model.open(published_model(app_state, job), verify=False)
    if model.label_table is None:
        raise NotFound(f"the model of job {job.id} has no report by label")
    start = page_start(page_token, limit) or 0
    rows = model.label_table.slice(start, limit).to_pylist()
    following = [{"seq": start + i + 1} for i in range(min(limit + 1, model.n_labels - start))]
    rows_of_page = [
        {"number": row["label"], **row, "label": model.label_name(row["label"])} for row in rows
    ]
    return LabelTablePage(labels=rows_of_page, next_page_token=page_token_after(following, limit))


@router.post("/{job_id}/stop", response_model=JobView)
def stop(request: Request, caller: Submitter, job_id: str) -> Response:
    """Request a stop. Finished work is kept.

    The call is idempotent and has no effect on a finished job.
    """
    expected = _expected_events(request, caller, job_id)
    return job_reply(
        request,
        app_state_of(request).store.jobs.request_stop(job_id, caller.tenant, if_events=expected),
    )


@router.post("/{job_id}/resume", response_model=JobView)
def resume(request: Request, caller: Submitter, job_id: str) -> Response:
    """Queue a stopped or failed job again; only the remaining work is done."""
    expected = _expected_events(request, caller, job_id)
    return job_reply(
        request, app_state_of(request).store.jobs.resume(job_id, caller.tenant, if_events=expected)
    )


@router.delete("/{job_id}", status_code=204)
def delete(request: Request, caller: Submitter, job_id: str) -> None:
    """Delete a finished job with its events, log and finished parts; a trained model stays.

    The output of a batch prediction is deleted, too.
    """
    app_state = app_state_of(request)
    app_state.store.jobs.delete(
        job_id, caller.tenant, if_events=_expected_events(request, caller, job_id)
    )
    shutil.rmtree(app_state.home.run(job_id), ignore_errors=True)
    app_state.home.log(job_id).unlink(missing_ok=True)


def _expected_events(request: Request, caller: Caller, job_id: str) -> int | None:
    """Return the event count of the job that an If-Match header requires; None without a header.

    Raises Changed if the job is in another state.
    """
    if "if-match" not in request.headers:
        return None
    job = app_state_of(request).store.jobs.get(job_id, caller.tenant)
    check_if_match(request, counter_etag(job.events))
    return job.events


def _to_unix_seconds(name: str, value: str | None) -> float | None:
    """Convert a time to Unix seconds. Raises InputError."""
    if value is None:
        return None
    try:
        seconds = datetime.fromisoformat(value).timestamp()
        datetime.fromtimestamp(seconds, UTC)  # fails if the time in UTC is before the year 1
        return seconds
    except (ValueError, OverflowError):
        raise InputError(
            f"query: {name} is not a valid time: use a form like 2026-01-31T12:00:00Z",
            code="TIME",
            loc=name,
        ) from None


def _training_spec(app_state: AppState, body: TrainingRequest, dataset: str) -> dict[str, Any]:
    """Return the validated specification of the requested training. Raises ParameterError."""
    options = {"pool": app_state.settings.pool, **declared_values(body, TrainingOptions)}
    named = {"dataset": dataset, "solver": body.solver, "params": body.params, "name": body.model}
    return app_state.check_spec({**named, **options})
