"""Jobs: queued trainings and batch predictions, their events and logs."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pyarrow as pa
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from xcray.errors import InputError, NotFound
from xcray.jobs.job import TRAIN, Job, body_digest
from xcray.jobs.states import TERMINAL
from xcray.jobs.store.paging import page_start, page_token_after
from xcray.model.model import Model
from xcray.service.app_state import Rooms, rooms_of
from xcray.service.http import sse
from xcray.service.http.auth import Caller, Reader, Submitter
from xcray.service.http.body import described, json_body
from xcray.service.http.etags import NOT_MODIFIED, IfMatch, IfNoneMatch, expect, reply, tag
from xcray.service.http.idempotency import REPLAYED, IdempotencyKey, replayed
from xcray.service.observability import log_tail as log_pages
from xcray.service.routes.datasets import find
from xcray.service.schemas import (
    ClassPage,
    JobPage,
    JobRequest,
    JobView,
    StopRequest,
    StopView,
    TimelineView,
)
from xcray.telemetry import tracing
from xcray.training.report.timeline import document, read_timeline

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

STOPPED_AT_ONCE = 500  # jobs that stop in one transaction: others write in between
STOP_SECONDS = 5.0  # a request that stops many is answered after so long, and may be sent again
TIMELINE_ENTRIES = 20_000  # at most, in a reply: about 4 MB
MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"
_EVENT = {
    "type": "object",
    "description": "`data` is a JSON object: the time and what happened.",
    "properties": {
        "id": {"type": "string", "description": "For Last-Event-ID."},
        "event": {"type": "string", "description": "status, phase, progress, epoch or stop."},
        "data": {"type": "string"},
        "retry": {"type": "integer"},
    },
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": _EVENT}}},
    204: {"description": "Ended, and all was told."},
}
_LOGS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}},
        "headers": {
            "Log-Offset": {
                "description": "The byte of the log that this begins with.",
                "schema": {"type": "integer"},
            },
            "Log-Next-Offset": {
                "description": "`offset` for what follows.",
                "schema": {"type": "integer"},
            },
            "Log-Size": {"description": "Bytes of the log now.", "schema": {"type": "integer"}},
        },
    }
}
Status: TypeAlias = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
Moment: TypeAlias = Annotated[
    str | None,
    Query(
        max_length=40,
        pattern=MOMENT,
        description="A time, such as 2026-01-31T12:00:00Z.",
        examples=["2026-01-31T12:00:00Z"],
    ),
]
_OWN = tuple(name for name in JobView.model_fields if name not in ("spec", "expires"))
_HIDDEN = frozenset({"dataset_id", "ray_address", "shown", tracing.HEADER})


@router.post(
    "",
    status_code=201,
    openapi_extra=described(JobRequest),
    responses=replayed(JobView),
    response_model=JobView,
)
def submit(
    request: Request,
    caller: Submitter,
    asked: Annotated[JobRequest, Depends(json_body(JobRequest))],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Queue a training. With an Idempotency-Key, sending it again gives the same job (200); with another body, 409."""
    rooms = rooms_of(request)
    digest = body_digest(asked.model_dump(mode="json", exclude_unset=True))
    job, created = rooms.store.same_key(caller.tenant, idempotency_key, digest), False
    if job is None:
        record = find(rooms, caller.tenant, asked.dataset)
        job, created = rooms.store.submit(
            {**_spec(rooms, asked, record.path), "dataset_id": record.id, **tracing.carried()},
            name=asked.name or asked.model,
            tenant=caller.tenant,
            idempotency_key=idempotency_key,
            priority=asked.priority,
            digest=digest,
            model=asked.model,
            dataset_id=record.id,
            **limits_of(caller, asked.timeout_seconds, asked.expires_seconds, asked.max_attempts),
        )
    return accepted(request, job, created)


@router.get("", response_model=JobPage, responses=NOT_MODIFIED)
def index(
    request: Request,
    caller: Reader,
    status: Annotated[
        list[Status] | None, Query(max_length=5, description="One, or several.")
    ] = None,
    kind: Annotated[Literal["train", "predict"] | None, Query()] = None,
    name: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    model: Annotated[
        str | None, Query(min_length=1, max_length=128, description="The model it makes or asks.")
    ] = None,
    dataset: Annotated[
        str | None, Query(min_length=1, max_length=64, description="The id of its data set.")
    ] = None,
    created_after: Moment = None,
    created_before: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Jobs, newest first: those that fit all that is named."""
    jobs, token = rooms_of(request).store.list(
        caller.tenant,
        status=status,
        kind=kind,
        name=name,
        model=model,
        dataset=dataset,
        created_after=_seconds("created_after", created_after),
        created_before=_seconds("created_before", created_before),
        limit=limit,
        page_token=page_token,
    )
    return reply(request, {"jobs": [members(job) for job in jobs], "next_page_token": token})


@router.post(":stop", openapi_extra=described(StopRequest))
def stop_all(
    request: Request,
    caller: Submitter,
    asked: Annotated[StopRequest, Depends(json_body(StopRequest))],
) -> StopView:
    """Stop many: all jobs that wait or run and fit what is named; {} means every one. Ask again while `more`."""
    stopped, deadline = 0, time.monotonic() + STOP_SECONDS
    while True:
        found = rooms_of(request).store.request_stop_all(
            caller.tenant, **asked.model_dump(), limit=STOPPED_AT_ONCE
        )
        stopped, more = stopped + found, found == STOPPED_AT_ONCE
        if not more or time.monotonic() >= deadline:
            break
    return StopView(stopped=stopped, more=more)


@router.get("/{job_id}", response_model=JobView, responses=NOT_MODIFIED)
def show(
    request: Request, caller: Reader, job_id: str, if_none_match: IfNoneMatch = None
) -> Response:
    """One job."""
    job = rooms_of(request).store.get(job_id, caller.tenant)
    return reply(request, members(job), tag(job.events))


@router.get("/{job_id}/events", responses=_EVENTS, response_class=StreamingResponse)
async def events(
    request: Request,
    caller: Reader,
    job_id: str,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """What happened and happens, as server-sent events; ends after the event that ends the job. Resumes after Last-Event-ID."""
    rooms = rooms_of(request)
    job = await asyncio.to_thread(rooms.store.get, job_id, caller.tenant)
    start = sse.start_after(after, last_event_id)
    if last_event_id is not None and job.status in TERMINAL:
        left = await asyncio.to_thread(
            rooms.store.events, job_id, caller.tenant, after=start, limit=1
        )
        if not left:
            return Response(status_code=204)  # tells an EventSource not to come back
    stream = sse.stream(rooms, job_id, caller.tenant, start)
    return StreamingResponse(stream, media_type="text/event-stream", headers=sse.HEADERS)


@router.get("/{job_id}/logs", responses=_LOGS, response_class=PlainTextResponse)
def logs(
    request: Request,
    caller: Reader,
    job_id: str,
    tail: Annotated[
        int | None,
        Query(ge=1, le=10_000, description="The last so many lines; 200 when no offset is given."),
    ] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=2**53, description="What follows this byte; not with tail.")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=log_pages.LONGEST, description="Most bytes after an offset.")
    ] = log_pages.LONGEST,
) -> PlainTextResponse:
    """Lines of its log, all attempts: the last ones, or those after a byte; empty while there is none.

    To follow it, ask again with the Log-Next-Offset of the answer before.
    """
    if tail is not None and offset is not None:
        raise InputError(
            "tail and offset exclude each other: send one", code="CHOICE", loc="offset"
        )
    rooms = rooms_of(request)
    path = rooms.home.log(rooms.store.get(job_id, caller.tenant).id)
    found = (
        log_pages.last_lines(path, tail or 200)
        if offset is None
        else log_pages.following(path, offset, limit)
    )
    places = {"Log-Offset": found.begin, "Log-Next-Offset": found.end, "Log-Size": found.size}
    return PlainTextResponse(
        found.text, headers={name: str(value) for name, value in places.items()}
    )


@router.get("/{job_id}/timeline")
def timeline(
    request: Request,
    caller: Reader,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=TIMELINE_ENTRIES)] = 5000,
) -> TimelineView:
    """Which worker did what when: so far while it runs, and with the model once it SUCCEEDED."""
    rooms = rooms_of(request)
    job = rooms.store.get(job_id, caller.tenant)
    return TimelineView(job=job.id, **document(_timeline(rooms, job), limit))


@router.get("/{job_id}/classes")
def classes(
    request: Request,
    caller: Reader,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> ClassPage:
    """How each class was solved, once the job SUCCEEDED: positives, rounds, support, gap, seconds, worker."""
    rooms = rooms_of(request)
    job = rooms.store.get(job_id, caller.tenant)
    model = Model.open(_model(rooms, job), verify=False)
    if model.classes is None:
        raise NotFound(f"the model of job {job.id} keeps no report by class")
    start = page_start(page_token, limit) or 0
    rows = model.classes.slice(start, limit).to_pylist()
    left = [{"seq": start + i + 1} for i in range(min(limit + 1, model.n_labels - start))]
    named = [
        {"number": row["label"], **row, "label": model.label_name(row["label"])} for row in rows
    ]
    return ClassPage(classes=named, next_page_token=page_token_after(left, limit))


@router.post("/{job_id}/stop", response_model=JobView)
def stop(request: Request, caller: Submitter, job_id: str, if_match: IfMatch = None) -> Response:
    """Ask it to stop; finished work is kept. Asking twice, or an ended job, changes nothing."""
    seen = _seen(request, caller, job_id)
    return _told(
        request, rooms_of(request).store.request_stop(job_id, caller.tenant, if_events=seen)
    )


@router.post("/{job_id}/resume", response_model=JobView)
def resume(request: Request, caller: Submitter, job_id: str, if_match: IfMatch = None) -> Response:
    """Queue a stopped or failed job again; it does what is left."""
    seen = _seen(request, caller, job_id)
    return _told(request, rooms_of(request).store.resume(job_id, caller.tenant, if_events=seen))


@router.delete("/{job_id}", status_code=204)
def delete(request: Request, caller: Submitter, job_id: str, if_match: IfMatch = None) -> None:
    """Forget an ended job, its events, log and finished parts; of a batch prediction the answers too. The model stays."""
    rooms = rooms_of(request)
    rooms.store.delete(job_id, caller.tenant, if_events=_seen(request, caller, job_id))
    shutil.rmtree(rooms.home.run(job_id), ignore_errors=True)
    rooms.home.log(job_id).unlink(missing_ok=True)


def members(job: Job) -> dict[str, Any]:
    """A job as `JobView` describes it: its data set by id, no path of the server. Lists are made of these as they are: making a
    checked `JobView` of each takes many times as long."""
    found = {name: getattr(job, name) for name in _OWN}
    shown = job.spec.get("shown", {})
    spec = {name: value for name, value in job.spec.items() if name not in _HIDDEN} | shown
    if "dataset_id" in job.spec:
        spec["dataset"] = job.spec["dataset_id"]
    expires = (
        None
        if job.expires is None
        else datetime.fromtimestamp(job.expires, UTC).isoformat(timespec="milliseconds")
    )
    return {**found, "spec": spec, "expires": expires and expires.replace("+00:00", "Z")}


def accepted(request: Request, job: Job, created: bool) -> Response:
    """The reply to a submission: 201, or 200 when the key was used before."""
    headers = {"Location": f"/v1/jobs/{job.id}", **({} if created else REPLAYED)}
    return reply(
        request, members(job), tag(job.events), status=201 if created else 200, headers=headers
    )


def limits_of(
    caller: Caller, timeout: float | None, expires: float | None, attempts: int | None
) -> dict[str, Any]:
    """What a submission says of its limits, and of the caller's."""
    own = {"timeout_seconds": timeout, "expires_seconds": expires, "max_attempts": attempts}
    return {**own, "key_id": caller.key_id, "most_queued": caller.limits.max_queued}


def _told(request: Request, job: Job) -> Response:
    """A job that was asked to change."""
    return reply(request, members(job), tag(job.events))


def _seen(request: Request, caller: Caller, job_id: str) -> int | None:
    """How many events the job has that an If-Match means; None without one. Raises Changed when it means another state."""
    if "if-match" not in request.headers:
        return None
    job = rooms_of(request).store.get(job_id, caller.tenant)
    expect(request, tag(job.events))
    return job.events


def _seconds(place: str, moment: str | None) -> float | None:
    """A moment as Unix seconds. Raises InputError."""
    if moment is None:
        return None
    try:
        seconds = datetime.fromisoformat(moment).timestamp()
        datetime.fromtimestamp(seconds, UTC)  # in another zone it can lie before the year 1
        return seconds
    except (ValueError, OverflowError):
        raise InputError(
            f"query: {place} is no time: write it like 2026-01-31T12:00:00Z", code="TIME", loc=place
        ) from None


def _spec(rooms: Rooms, asked: JobRequest, dataset: str) -> dict[str, Any]:
    """The training that a request means, checked as a whole. Raises ParameterError."""
    fields = {
        "solver": asked.solver,
        "params": asked.params,
        "workers": asked.workers,
        "ks": list(asked.ks),
        "name": asked.model,
    }
    limits = {"max_seconds": asked.max_seconds, "memory_limit": asked.memory_limit}
    given = {name: limit for name, limit in limits.items() if limit is not None} | (
        {"calibrate": True} if asked.calibrate else {}
    )
    return rooms.check_spec(
        {"dataset": dataset, "pool": asked.pool or rooms.settings.pool, **fields, **given}
    )


def _timeline(rooms: Rooms, job: Job) -> pa.Table:
    """The timeline of a job: of its model, which outlives the run; else of the run. Raises NotFound while there is none."""
    if job.result:
        with suppress(NotFound):  # the version was deleted: the run may still be there
            return read_timeline(_model(rooms, job))
    try:
        return read_timeline(rooms.home.run(job.id))
    except NotFound:
        raise NotFound(f"job {job.id} has no timeline (yet)") from None


def _model(rooms: Rooms, job: Job) -> Path:
    """The directory of the version that a job published. Raises NotFound before, and when it was deleted."""
    if not job.result or job.kind != TRAIN:
        raise NotFound(f"job {job.id} has published no model; it is {job.status}")
    return rooms.registry_of(job.tenant).resolve(f"{job.result['model']}:{job.result['version']}")
