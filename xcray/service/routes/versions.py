"""Versions of a model in detail: reports for plots, differences, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from xcray.model.archive import archive_size, archive_stream
from xcray.model.diff import diff as compare
from xcray.model.model import Model
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import ModelReader, Reader
from xcray.service.http.etags import NOT_MODIFIED, reply
from xcray.service.routes.models import version_view
from xcray.service.schemas.base import MAX_VERSION
from xcray.service.schemas.models import DiffView, FirstLabels, ReportView
from xcray.training.report.document import report_document

router = APIRouter(prefix="/v1/models/{name:modelname}", tags=["models"])

MAX_NAMES: Final = 100  # label names per list of a difference
_TAR: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
}
VersionQuery = Annotated[int | None, Query(ge=1, le=MAX_VERSION)]


@router.get("/versions/{version:int}/report", response_model=ReportView, responses=NOT_MODIFIED)
def report(request: Request, caller: ModelReader, name: str, version: int) -> Response:
    """Return the training of a version as a report: by label frequency, calibration, gaps."""
    path = app_state_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    return reply(request, ReportView(**report_document(Model.open(path, verify=False))))


@router.get(":diff", response_model=DiffView, responses=NOT_MODIFIED)
def diff(
    request: Request,
    caller: ModelReader,
    name: str,
    start: Annotated[VersionQuery, Query(alias="from", description="Default: the one before.")] = (
        None
    ),
    to: Annotated[VersionQuery, Query(description="Default: the latest.")] = None,
) -> Response:
    """Return the differences from one version to another: sizes, measures, parameters, labels."""
    registry = app_state_of(request).registry_of(caller.tenant)
    _, last = registry.resolve_version(name if to is None else f"{name}:{to}")
    earlier = [each for each in registry.versions(name) if each < last]
    first = start or (earlier[-1] if earlier else last)
    views = [version_view(registry.describe(name, each)) for each in (first, last)]
    a, b = (Model.open(registry.resolve(f"{name}:{each}"), verify=False) for each in (first, last))
    found = compare(a, b)
    params = [model.manifest["params"] for model in (a, b)]
    return reply(
        request,
        DiffView(
            versions=views,
            params={
                key: [each.get(key) for each in params]
                for key in sorted({*params[0], *params[1]})
                if params[0].get(key) != params[1].get(key)
            },
            same_content=found.same_content,
            identical=len(found.identical),
            added=_first_labels(found.added),
            removed=_first_labels(found.removed),
            changed=_first_labels(found.changed),
        ),
    )


@router.get("/versions/{version:int}/archive", responses=_TAR, response_class=StreamingResponse)
def archive(request: Request, caller: Reader, name: str, version: int) -> StreamingResponse:
    """Download all files of a version as a tar file: the folder in it is a model directory."""
    path = app_state_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    folder = f"{name}-{version}"
    return StreamingResponse(
        archive_stream(path, folder),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(archive_size(path)),
            "Content-Disposition": f'attachment; filename="{folder}.tar"',
        },
    )


def _first_labels(names: Sequence[str]) -> FirstLabels:
    """Return the number of labels and the first names."""
    return FirstLabels(count=len(names), first=list(names[:MAX_NAMES]))
