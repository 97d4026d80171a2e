"""Pictures of versions, jobs and data sets as SVG, the same ones that `xcray report` writes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response

from xcray.data.dataset import Dataset
from xcray.errors import NotFound
from xcray.jobs.job import TRAIN
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.jobs import JobFilter
from xcray.model.model import Model
from xcray.plots.picture import FILE_WIDTH, Picture
from xcray.plots.trainings import objective_picture, runs_picture, timeline_picture
from xcray.service.app_state import AppState, app_state_of
from xcray.service.datasets.histograms import dataset_picture
from xcray.service.http.auth import ModelReader, Reader
from xcray.service.http.etags import reply
from xcray.service.routes.dataset_requests import require_ready
from xcray.service.routes.job_replies import job_timeline
from xcray.training.report.pictures import MAX_BATCHES, model_picture
from xcray.training.report.timeline import describe_timeline, timeline_document

router = APIRouter()

SVG: Final = "image/svg+xml"
EVENT_PAGE: Final = 1000  # events per query
MAX_RUNS: Final = 200  # trainings in a picture
_PICTURE: Final[dict[str, Any]] = {
    "response_class": Response,
    "responses": {
        200: {"content": {SVG: {"schema": {"type": "string"}}}},
        304: {"description": "Not modified."},
    },
}
Width: TypeAlias = Annotated[
    int,
    Query(ge=240, le=2400, description="In pixels; a narrow picture has fewer panels per row."),
]


@router.get(
    "/v1/models/{name:modelname}/versions/{version:int}/pictures/{picture}",
    tags=["models"],
    **_PICTURE,
)
def model(
    request: Request,
    caller: ModelReader,
    name: str,
    version: int,
    picture: Annotated[str, Path(max_length=64)],
    width: Width = FILE_WIDTH,
    panel: Annotated[
        int | None, Query(ge=1, le=100, description="Draw this panel only, from 1.")
    ] = None,
) -> Response:
    """Draw a picture of a version's training. `/report` lists the pictures that exist."""
    path = app_state_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    title = f"{name}, version {version}"
    drawn = model_picture(Model.open(path, verify=False), picture, title)
    if panel is not None:
        if panel > len(drawn.panels):
            raise NotFound(f"picture {picture} has panels 1 to {len(drawn.panels)}")
        drawn = drawn._replace(panels=drawn.panels[panel - 1 : panel])
    return _picture_reply(request, drawn, width)


@router.get("/v1/jobs/{job_id}/pictures/{picture}", tags=["jobs"], **_PICTURE)
def job(
    request: Request,
    caller: Reader,
    job_id: str,
    picture: Literal["timeline", "objective"],
    width: Width = FILE_WIDTH,
) -> Response:
    """Draw a training so far: the timeline of its workers, or its objective by epoch."""
    app_state = app_state_of(request)
    found = app_state.store.jobs.get(job_id, caller.tenant)
    if picture == "timeline":
        document = timeline_document(job_timeline(app_state, found), MAX_BATCHES)
        drawn = timeline_picture(document, found.name, describe_timeline(document))
    else:
        history = _epochs(app_state, job_id, caller.tenant)
        if not history:
            raise NotFound(f"job {job_id} has no epochs: label-by-label solvers have none")
        note = f"objective {history[-1]['objective']:.6g} after {history[-1]['epoch']:,} epochs"
        drawn = objective_picture(history, found.name, note)
    return _picture_reply(request, drawn, width)


@router.get("/v1/datasets/{dataset_id}/picture", tags=["data sets"], **_PICTURE)
def dataset(
    request: Request, caller: Reader, dataset_id: str, width: Width = FILE_WIDTH
) -> Response:
    """Draw the histograms of a READY data set: rows per label, labels and features per row."""
    record = app_state_of(request).store.datasets.get(dataset_id, caller.tenant)
    require_ready(record, dataset_id)
    return _picture_reply(request, dataset_picture(Dataset.open(record.path), record.name), width)


@router.get("/v1/datasets/{dataset_id}/pictures/runs", tags=["data sets"], **_PICTURE)
def runs(request: Request, caller: Reader, dataset_id: str, width: Width = FILE_WIDTH) -> Response:
    """Draw P@1 over the cost of the newest 200 trainings on a data set."""
    store = app_state_of(request).store
    record = store.datasets.get(dataset_id, caller.tenant)
    selection = JobFilter(caller.tenant, status=SUCCEEDED, kind=TRAIN, dataset_id=record.id)
    found = [
        (job.spec["solver"], job.result["report"]["core_seconds"], job.result["measures"]["P@1"])
        for job in store.jobs.list_page(selection, limit=MAX_RUNS)[0]
        if job.result and "P@1" in job.result["measures"] and "core_seconds" in job.result["report"]
    ]
    return _picture_reply(request, runs_picture(found, record.name), width)


def _picture_reply(request: Request, picture: Picture, width: int) -> Response:
    """Return a picture with the ETag of its content."""
    return reply(request, picture.svg(width).encode(), media_type=SVG)


def _epochs(app_state: AppState, job_id: str, tenant: str) -> list[dict[str, Any]]:
    """Return the epochs of a job with their seconds; epochs repeated after a resume count once."""
    epochs: dict[int, dict[str, Any]] = {}
    after, page = 0, EVENT_PAGE
    while page == EVENT_PAGE:
        events = app_state.store.jobs.list_events(job_id, tenant, after=after, limit=EVENT_PAGE)
        for event in events:
            if event.kind == "epoch" and event.data.get("objective") is not None:
                epoch = int(event.data["epoch"])
                for later in [each for each in epochs if each >= epoch]:
                    del epochs[later]
                epochs[epoch] = event.data
        after, page = (events[-1].seq if events else after), len(events)
    return list(epochs.values())
