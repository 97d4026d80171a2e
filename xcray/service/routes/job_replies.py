"""Replies about jobs: their fields, the reply to a submission, the files of their results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastapi import Request, Response

from xcray.api.job_replies import JobView
from xcray.errors import NotFound
from xcray.jobs.job import TRAIN, Job, format_utc
from xcray.service.app_state import AppState
from xcray.service.http.etags import (
    counter_etag,
    reply,
)
from xcray.service.http.idempotency import creation_reply
from xcray.telemetry import tracing
from xcray.training.report.timeline import read_timeline

_VIEW_FIELDS = tuple(
    name for name in JobView.__annotations__ if name not in ("spec", "expires", "ray_job")
)
_HIDDEN_SPEC_FIELDS = frozenset(
    {"dataset_id", "ray_address", "shown", "alias_changes", tracing.TRACEPARENT}
)


def job_fields(job: Job, ray_links: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a job as described by `JobView`, with its data set by id and without server paths.

    ray_links: pages of jobs in Ray's dashboard, by the jobs' ids.

    Lists contain these dicts directly, because a validated `JobView` per job takes many times as
    long.
    """
    fields = {name: getattr(job, name) for name in _VIEW_FIELDS}
    display = job.spec.get("shown", {})
    spec = {
        name: value for name, value in job.spec.items() if name not in _HIDDEN_SPEC_FIELDS
    } | display
    if "dataset_id" in job.spec:
        spec["dataset"] = job.spec["dataset_id"]
    expires = None if job.expires is None else format_utc(job.expires)
    return {**fields, "spec": spec, "expires": expires, "ray_job": (ray_links or {}).get(job.id)}


def job_timeline(app_state: AppState, job: Job) -> pa.Table:
    """Return the timeline of a job: from its model, which outlives the run, else from the run.

    Raises NotFound if there is none.
    """
    if job.result:
        with suppress(NotFound):  # the version was deleted: the run may still exist
            return read_timeline(published_model(app_state, job))
    try:
        return read_timeline(app_state.home.run(job.id))
    except NotFound:
        raise NotFound(f"job {job.id} has no timeline (yet)") from None


def submission_reply(request: Request, job: Job, created: bool) -> Response:
    """Return the reply to a submission: 201, or 200 if the idempotency key was used before."""
    etag = counter_etag(job.events)
    return creation_reply(request, job_fields(job), etag, f"/v1/jobs/{job.id}", created=created)


def job_reply(request: Request, job: Job) -> Response:
    """Return the reply of a request that changed a job."""
    return reply(request, job_fields(job), counter_etag(job.events))


def published_model(app_state: AppState, job: Job) -> Path:
    """Return the directory of the version that a job published.

    Raises NotFound if the job has not published one or it was deleted.
    """
    if not job.result or job.kind != TRAIN:
        raise NotFound(f"job {job.id} has published no model; it is {job.status}")
    return app_state.registry_of(job.tenant).resolve(
        f"{job.result['model']}:{job.result['version']}"
    )
