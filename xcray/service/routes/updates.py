"""Updates: a job that makes the next version of a model by a change of rows, labels or fits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from xcray.api.gate import parse_gate
from xcray.api.job_replies import JobView
from xcray.api.options import ChangeOptions, JobOptions, LocalPoolOptions
from xcray.data.dataset import Dataset
from xcray.jobs.job import body_digest
from xcray.jobs.runner.promotion import target_of
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.model import Model
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.idempotency import IdempotencyKey, replay_response
from xcray.service.routes.dataset_requests import find_ready
from xcray.service.routes.job_replies import submission_reply
from xcray.service.schemas.base import Name, Strict
from xcray.service.schemas.declared import declared_values, with_parameters
from xcray.telemetry import tracing
from xcray.training.calibration.fit import held_out_part
from xcray.training.edit.changes import check_change

router = APIRouter(tags=["jobs"])


class VersionRequest(Strict):
    """What changes, the data set, the name to publish under, and where the work runs."""

    dataset: str = Field(
        min_length=1,
        max_length=64,
        description="Id or name of a data set with the features of the version; for changed rows "
        "one whose `base` is the data set of the version.",
    )
    model: Name | None = Field(
        None, description="Name under which the model is published; default: that of the version."
    )
    gate: str | None = Field(
        None,
        max_length=1000,
        description="Conditions that the new version must meet on the held-out rows before `alias` "
        "moves, as of `:compare`; the version is published in any case.",
        examples=["P@1 >= -0.2, PSP@5 >= -0.5"],
    )
    alias: Name | None = Field(
        None, description="Alias of the published model that then points to the new version."
    )
    weight: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Share of the requests to `alias` that the new version gets; the versions that "
        "it has keep the rest.",
    )


UpdateRequest = with_parameters(
    "UpdateRequest", VersionRequest, ChangeOptions, LocalPoolOptions, JobOptions
)


@router.post(
    "/v1/models/{reference:modelref}:update",
    status_code=201,
    openapi_extra=openapi_body(UpdateRequest),
    responses=replay_response(JobView),
    response_model=JobView,
)
def submit(
    request: Request,
    caller: Submitter,
    reference: str,
    body: Annotated[VersionRequest, Depends(json_body(UpdateRequest))],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Queue a change of the version that `reference` currently resolves to.

    By default its rows change: only labels whose certificate the changed rows break are solved
    again. `change` names the others. The job is of kind train, with `update` in its spec. With an
    Idempotency-Key, sending the same request again returns the same job (200), and another body is
    refused (409).
    """
    app_state = app_state_of(request)
    digest = body_digest({"update": reference, **body.model_dump(mode="json", exclude_unset=True)})
    job, created = app_state.store.jobs.find_by_key(caller.tenant, idempotency_key, digest), False
    if job is None:
        record = find_ready(app_state, caller.tenant, body.dataset)
        registry = app_state.registry_of(caller.tenant)
        name, version = registry.resolve_version(reference)
        old = Model.open(registry.resolve(f"{name}:{version}"), verify=False)
        data = Dataset.open(record.path)
        change = declared_values(body, ChangeOptions)
        check_change(ChangeOptions(**change), old, data)
        if body.gate is not None:
            parse_gate(body.gate, old.n_labels)
            held_out_part(data)
        target = target_of(registry, body.model or name, body.alias, body.weight)
        spec: dict[str, Any] = {
            "dataset": record.path,
            "dataset_id": record.id,
            **{key: old.manifest[key] for key in ("solver", "params")},
            "name": body.model or name,
            "pool": "threads",
            "workers": 0,
            **declared_values(body, LocalPoolOptions),
            **change,
            "update": str(old.path),
            "gate": body.gate,
            **target,
            "shown": {"update": f"{name}:{version}"},
            **tracing.trace_headers(),
        }
        submission = JobSubmission(
            spec,
            tenant=caller.tenant,
            idempotency_key=idempotency_key,
            digest=digest,
            key_id=caller.key_id,
            model=spec["name"],
            dataset_id=record.id,
            **{"name": spec["name"], **declared_values(body, JobOptions)},
        )
        job, created = app_state.store.jobs.submit(submission, max_queued=caller.limits.max_queued)
    return submission_reply(request, job, created)
