"""Jobs: queued trainings and batch predictions, their events and logs."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from xcray.errors import NotFound
from xcray.jobs.job import TRAIN, Job, body_digest
from xcray.jobs.paging import page_start, page_token_after
from xcray.jobs.states import TERMINAL
from xcray.model.model import Model
from xcray.service import sse
from xcray.service.auth import Reader, Submitter
from xcray.service.body import described, json_body
from xcray.service.routes.datasets import find
from xcray.service.schemas import ClassPage, JobPage, JobRequest, JobView, TimelineView
from xcray.service.state import Rooms, rooms_of
from xcray.train.timeline import document, read_timeline

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

LOG_BYTES = 1 << 20  # of its end, at most, in a reply
TIMELINE_ENTRIES = 20_000  # at most, in a reply: about 4 MB
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "Ended, and all was told."},
}
_REPLAYED: dict[int | str, dict[str, Any]] = {200: {"model": JobView, "description": "Replayed."}}
_LOGS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.post("", status_code=201, openapi_extra=described(JobRequest), responses=_REPLAYED)
def submit(
    request: Request,
    response: Response,
    caller: Submitter,
    asked: Annotated[JobRequest, Depends(json_body(JobRequest))],
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")] = None,
) -> JobView:
    """Queue a training. With an Idempotency-Key, sending it again gives the same job (200); with another body, 409."""
    rooms = rooms_of(request)
    digest = body_digest(asked.model_dump(mode="json"))
    record = find(rooms, caller.tenant, asked.dataset)
    spec = _spec(rooms, asked, record.path)
    job, created = rooms.store.submit(
        {**spec, "dataset_id": record.id},
        name=asked.name or asked.model,
        tenant=caller.tenant,
        idempotency_key=idempotency_key,
        priority=asked.priority,
        digest=digest,
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return view(job)


@router.get("")
def index(
    request: Request,
    caller: Reader,
    status: Annotated[str | None, Query(max_length=20)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> JobPage:
    """Jobs, newest first."""
    jobs, token = rooms_of(request).store.list(caller.tenant, status=status, limit=limit, page_token=page_token)
    return JobPage(jobs=[view(job) for job in jobs], next_page_token=token)


@router.get("/{job_id}")
def show(request: Request, caller: Reader, job_id: str) -> JobView:
    """One job."""
    return view(rooms_of(request).store.get(job_id, caller.tenant))


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
        left = await asyncio.to_thread(rooms.store.events, job_id, caller.tenant, after=start, limit=1)
        if not left:
            return Response(status_code=204)  # tells an EventSource not to come back
    return StreamingResponse(sse.stream(rooms, job_id, caller.tenant, start), media_type="text/event-stream")


@router.get("/{job_id}/logs", responses=_LOGS, response_class=PlainTextResponse)
def logs(request: Request, caller: Reader, job_id: str, tail: Annotated[int, Query(ge=1, le=10_000)] = 200) -> PlainTextResponse:
    """The last lines of its log, all attempts; empty while there is none."""
    rooms = rooms_of(request)
    job = rooms.store.get(job_id, caller.tenant)
    return PlainTextResponse(_tail(rooms.home.log(job.id), tail))


@router.get("/{job_id}/timeline")
def timeline(
    request: Request, caller: Reader, job_id: str, limit: Annotated[int, Query(ge=1, le=TIMELINE_ENTRIES)] = 5000
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
    named = [{"number": row["label"], **row, "label": model.label_name(row["label"])} for row in rows]
    return ClassPage(classes=named, next_page_token=page_token_after(left, limit))


@router.post("/{job_id}/stop")
def stop(request: Request, caller: Submitter, job_id: str) -> JobView:
    """Ask it to stop; finished work is kept. Asking twice, or an ended job, changes nothing."""
    return view(rooms_of(request).store.request_stop(job_id, caller.tenant))


@router.post("/{job_id}/resume")
def resume(request: Request, caller: Submitter, job_id: str) -> JobView:
    """Queue a stopped or failed job again; it does what is left."""
    return view(rooms_of(request).store.resume(job_id, caller.tenant))


@router.delete("/{job_id}", status_code=204)
def delete(request: Request, caller: Submitter, job_id: str) -> None:
    """Forget an ended job, its events, log and finished parts; of a batch prediction the answers too. The model stays."""
    rooms = rooms_of(request)
    rooms.store.delete(job_id, caller.tenant)
    shutil.rmtree(rooms.home.run(job_id), ignore_errors=True)
    rooms.home.log(job_id).unlink(missing_ok=True)


def view(job: Job) -> JobView:
    """A job as callers see it: its data set by id, no path of the server."""
    fields = {name: value for name, value in job.as_dict().items() if name in JobView.model_fields}
    spec = {name: value for name, value in job.spec.items() if name not in ("dataset_id", "ray_address", "shown")}
    spec |= job.spec.get("shown", {})
    if "dataset_id" in job.spec:
        spec["dataset"] = job.spec["dataset_id"]
    return JobView(**{**fields, "spec": spec})


def _spec(rooms: Rooms, asked: JobRequest, dataset: str) -> dict[str, Any]:
    """The training that a request means, checked as a whole. Raises ParameterError."""
    fields = {"solver": asked.solver, "params": asked.params, "workers": asked.workers, "ks": list(asked.ks), "name": asked.model}
    limits = {"max_seconds": asked.max_seconds, "memory_limit": asked.memory_limit}
    given = {name: limit for name, limit in limits.items() if limit is not None} | ({"calibrate": True} if asked.calibrate else {})
    return rooms.check_spec({"dataset": dataset, "pool": asked.pool or rooms.settings.pool, **fields, **given})


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


def _tail(path: Path, lines: int) -> str:
    """The last lines of a file, at most LOG_BYTES of them; bytes that are not UTF-8 are shown as such."""
    try:
        with open(path, "rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - LOG_BYTES))
            text = handle.read().decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return ""
    return "".join(text.splitlines(keepends=True)[-lines:])
