"""For operators and people: liveness, readiness, figures, the console, the page of all paths."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from xcray import __version__
from xcray.service.app_state import rooms_of
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
    """Alive. Asks nobody: neither Ray nor the store can make this fail. Strangers are not told the version."""
    return Health(status="ok", version=None if request.scope["caller"] is None else __version__)


@router.get("/readyz", responses={503: {"model": Ready}})
async def readyz(request: Request) -> Response:
    """Whether requests are welcome: DRAINING, STORE, SCHEMA, DISK, MODELS, WORKERS are reasons why not. `degraded` names what only
    trainings or some models miss: RUNNER, RAY, MODEL, BUILDER, WORKERS; and STORE or SCHEMA while predictions are still answered
    without, by keys that were known. Answers at once, whatever hangs.

    Strangers hear yes or no."""
    reasons, degraded = await rooms_of(request).readiness.look()
    told = request.scope["caller"] is not None
    body = Ready(
        ready=not reasons, reasons=reasons if told else [], degraded=degraded if told else []
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
    """Figures for Prometheus."""
    return Response(rooms_of(request).gauges.text(), media_type=CONTENT_TYPE_LATEST)


@pages.get("/")
@pages.get("/docs")
def page(request: Request) -> FileResponse:
    """A page of plain HTML; it loads nothing from other hosts."""
    return FileResponse(STATIC / PAGES[request.url.path], media_type="text/html")


@pages.get("/static/{name}")
def asset(name: str) -> Response:
    """A script or style of these pages."""
    if name not in ASSETS:
        return Response(status_code=404)
    return FileResponse(STATIC / name, media_type=ASSETS[name])
