"""Operations: liveness, readiness, metrics, the console, and the API documentation page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from xcray import __version__
from xcray.api.job_replies import Ready
from xcray.service.app_state import app_state_of
from xcray.service.http.etags import reply
from xcray.service.http.path_prefix import prefix_of
from xcray.service.schemas.operations import Health

router = APIRouter(tags=["operations"])
pages = APIRouter(include_in_schema=False)
STATIC: Final = Path(__file__).parent.parent / "static"
PAGES: Final = {"/": "console.html", "/docs": "docs.html"}
ASSET_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SWAGGER: Final = ("swagger-ui-bundle.js", "swagger-ui.css")


def _swagger_files() -> dict[str, Path]:
    """Return the files of Swagger UI by the names of assets, from the package fastapi-offline.

    They are empty without the package: /docs then links to the description only.
    """
    found = find_spec("fastapi_offline")
    folders = [] if found is None else found.submodule_search_locations or []
    return {f"swagger/{name}": Path(each) / "static" / name for each in folders for name in SWAGGER}


ASSETS: Final = {
    path.relative_to(STATIC).as_posix(): path
    for path in sorted(STATIC.rglob("*"))
    if path.suffix in ASSET_TYPES
} | _swagger_files()
# The modules of the console are loaded at once, not one after the import of the other.
_MODULES: Final = "".join(
    f'<link rel="modulepreload" href="static/{name}">\n'
    for name in ASSETS
    if name.endswith(".js") and name.startswith(("console/", "session", "vendor/htm"))
)
CONSOLE: Final = (STATIC / PAGES["/"]).read_text().replace("</head>", f"{_MODULES}</head>")
# The folders of vendored files contain their version, so a file never changes. Others are kept by
# browsers, too, which ask at each use whether they are current.
VENDOR_CACHE: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
OWN_CACHE: Final = {"Cache-Control": "no-cache"}
VIEWER_POLICY: Final = (  # Swagger UI has pictures as data URIs
    "default-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


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
        body,
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
def console() -> HTMLResponse:
    """Return the console."""
    return HTMLResponse(CONSOLE)


@pages.get("/docs")
def viewer() -> FileResponse:
    """Return the page of Swagger UI; its script fetches /openapi.json with the key."""
    return FileResponse(
        STATIC / PAGES["/docs"],
        media_type="text/html",
        headers={"Content-Security-Policy": VIEWER_POLICY},
    )


@pages.get("/openapi.json")
def description(request: Request) -> JSONResponse:
    """Return the OpenAPI description, with the path prefix of this request as server."""
    servers = [{"url": prefix_of(request) or "/"}]
    return JSONResponse(request.app.openapi() | {"servers": servers})


@pages.get("/static/{name:path}")
def asset(request: Request, name: str) -> Response:
    """Return a script, style sheet or icon of these pages; 304 if the browser has it already."""
    path = ASSETS.get(name)
    if path is None:
        return Response(status_code=404)
    headers = VENDOR_CACHE if name.startswith("vendor/") else OWN_CACHE
    return reply(request, path.read_bytes(), media_type=ASSET_TYPES[path.suffix], headers=headers)
