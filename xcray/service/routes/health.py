"""Operations: liveness, readiness, metrics, the console, and the API documentation page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from xcray import __version__
from xcray.service.app_state import app_state_of
from xcray.service.schemas import Health, Ready

router = APIRouter(tags=["operations"])
pages = APIRouter(include_in_schema=False)
STATIC: Final = Path(__file__).parent.parent / "static"
PAGES: Final = {"/": "console.html", "/docs": "docs.html"}
ASSETS: Final = {
    "console.js": "text/javascript",
    "docs.js": "text/javascript",
    "style.css": "text/css",
}


@router.get("/healthz")
async def healthz(request: Request) -> Health:
    """Return that the service is alive; independent of Ray and the store.

    The version is shown to authenticated callers only.
    """
    return Health(status="ok", version=None if request.scope["caller"] is None else __version__)


@router.get("/readyz", responses={503: {"model": Ready}})
async def readyz(request: Request) -> Response:
    """Return whether the service accepts requests, and the reasons if it does not.

    Reasons: DRAINING, STORE, SCHEMA, DISK, MODELS, WORKERS. `degraded` lists problems that affect
    only trainings or some models: RUNNER, RAY, MODEL, BUILDER, WORKERS; and STORE or SCHEMA while
    predictions are still answered for keys that are cached. The reply is immediate even if a
    dependency hangs. Callers without a key receive only `ready`.
    """
    reasons, degraded = await app_state_of(request).readiness.refresh()
    show_details = request.scope["caller"] is not None
    body = Ready(
        ready=not reasons,
        reasons=reasons if show_details else [],
        degraded=degraded if show_details else [],
    )
    return JSONResponse(
        body.model_dump(),
        503 if reasons else 200,
        headers={"Retry-After": "5"} if reasons else None,
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Return metrics in the Prometheus text format."""
    return Response(app_state_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


@pages.get("/")
@pages.get("/docs")
def page(request: Request) -> FileResponse:
    """Return a plain HTML page that loads nothing from other hosts."""
    return FileResponse(STATIC / PAGES[request.url.path], media_type="text/html")


@pages.get("/static/{name}")
def asset(name: str) -> Response:
    """Return a script or style sheet of these pages."""
    if name not in ASSETS:
        return Response(status_code=404)
    return FileResponse(STATIC / name, media_type=ASSETS[name])
