"""Routes of the Open Inference Protocol v2, including the model repository extension."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from xcray import __version__
from xcray.errors import InputError, NotFound, XcrayError
from xcray.service import constants
from xcray.service.app_state import AppState, app_state_of
from xcray.service.http.auth import ModelReader, PredictCaller, Submitter
from xcray.service.http.body import check_media_type, openapi_body, parse_body, read_body
from xcray.service.inference_v2.encode import model_metadata
from xcray.service.inference_v2.handler import BINARY_TYPE, handle_infer, to_reference
from xcray.service.models.cache import ModelTarget, VersionState
from xcray.service.prediction.fast_path import JSON_TYPE, FastRoute, Reply
from xcray.service.routes.health import readyz
from xcray.service.schemas.inference import (
    IndexEntry,
    IndexRequest,
    InferReply,
    InferRequest,
    ModelMetadata,
    ModelReady,
    RepositoryRequest,
    ServerLive,
    ServerMetadata,
    ServerReady,
)

router = APIRouter(prefix="/v2", tags=["open inference protocol"])

M = TypeVar("M", bound=BaseModel)
EXTENSIONS: Final = ["binary_tensor_data", "model_repository"]
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": openapi_body(InferRequest)["requestBody"]["content"] | _BYTES,
    }
}
_REPLY: Final[dict[int | str, dict[str, Any]]] = {200: {"model": InferReply, "content": _BYTES}}
_UNREADY: Final[dict[int | str, dict[str, Any]]] = {503: {"model": ServerReady}}


def _optional(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of an optional body."""
    return {"requestBody": {**openapi_body(model)["requestBody"], "required": False}}


@router.get("")
async def server() -> ServerMetadata:
    """Return the server's name, version and protocol extensions."""
    return ServerMetadata(name="xcray", version=__version__, extensions=EXTENSIONS)


@router.get("/health/live")
async def live() -> ServerLive:
    """Return that the server is alive."""
    return ServerLive(live=True)


@router.get("/health/ready", responses=_UNREADY)
async def ready(request: Request) -> Response:
    """Return whether the server accepts requests; GET /readyz returns the reasons."""
    is_ready = (await readyz(request)).status_code == 200
    body = ServerReady(live=True, ready=is_ready).model_dump()
    return JSONResponse(
        body, 200 if is_ready else 503, headers=None if is_ready else {"Retry-After": "5"}
    )


@router.get("/models/{name:modelname}")
async def metadata(request: Request, caller: ModelReader, name: str) -> ModelMetadata:
    """Return the input and output tensors of the version that currently answers."""
    return await _metadata(app_state_of(request), caller.tenant, name, None)


@router.get("/models/{name:modelname}/versions/{version:int}")
async def version_metadata(
    request: Request, caller: ModelReader, name: str, version: int
) -> ModelMetadata:
    """Return the input and output tensors of a version."""
    return await _metadata(app_state_of(request), caller.tenant, name, version)


@router.get("/models/{name:modelname}/ready", responses={503: {"model": ModelReady}})
async def model_ready(request: Request, caller: ModelReader, name: str) -> Response:
    """Return whether the model can answer; loads it if necessary."""
    return await _ready(app_state_of(request), caller.tenant, name, None)


@router.get(
    "/models/{name:modelname}/versions/{version:int}/ready", responses={503: {"model": ModelReady}}
)
async def version_ready(request: Request, caller: ModelReader, name: str, version: int) -> Response:
    """Return whether the version can answer; loads it if necessary."""
    return await _ready(app_state_of(request), caller.tenant, name, version)


@router.post(
    "/models/{name:modelname}/infer", openapi_extra=_BODY, responses=_REPLY, response_class=Response
)
async def infer(request: Request, caller: PredictCaller, name: str) -> Response:
    """Predict the best labels of each row, as tensors.

    The answering version is the one that POST /v1/models/NAME:predict uses.
    """
    return (await handle_infer(request, caller.tenant, name, None)).to_response()


@router.post(
    "/models/{name:modelname}/versions/{version:int}/infer",
    openapi_extra=_BODY,
    responses=_REPLY,
    response_class=Response,
)
async def version_infer(
    request: Request, caller: PredictCaller, name: str, version: int
) -> Response:
    """Predict the best labels of each row with one version, as tensors."""
    return (await handle_infer(request, caller.tenant, name, version)).to_response()


async def _answer(request: Request, tenant: str, name: str, version: str = "") -> Reply:
    """Answer an inference request of the fast path; version: digits, empty for none."""
    return await handle_infer(request, tenant, name, int(version) if version else None)


_FAST_PATHS: Final = {
    "infer": re.compile(r"/v2/models/([^/:@]+)/infer"),
    "version_infer": re.compile(r"/v2/models/([^/:@]+)/versions/([0-9]+)/infer"),
}
FAST_ROUTES: Final = tuple(
    FastRoute(_FAST_PATHS[route.endpoint.__name__], route, _answer)
    for route in router.routes
    if isinstance(route, APIRoute) and route.endpoint in (infer, version_infer)
)


@router.post("/repository/index", openapi_extra=_optional(IndexRequest))
async def repository_index(request: Request, caller: ModelReader) -> list[IndexEntry]:
    """List all model versions and whether they are loaded."""
    options = await _optional_body(request, IndexRequest)
    states = await asyncio.to_thread(
        app_state_of(request).prediction.model_cache.index, caller.tenant
    )
    return [_index_entry(state) for state in states if state.state == "LOADED" or not options.ready]


@router.post(
    "/repository/models/{name:modelname}/load",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def load(request: Request, caller: Submitter, name: str) -> Response:
    """Load and pin a version, so that the first request need not wait for it."""
    version = _requested_version(await _optional_body(request, RepositoryRequest))
    app_state, reference = app_state_of(request), to_reference(name, version)
    await app_state.loads.run(
        caller.tenant, lambda: app_state.prediction.model_cache.load(caller.tenant, reference)
    )
    return Response(status_code=200)


@router.post(
    "/repository/models/{name:modelname}/unload",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def unload(request: Request, caller: Submitter, name: str) -> Response:
    """Unload a version, or all versions of a model; the next request loads it again."""
    version = _requested_version(await _optional_body(request, RepositoryRequest))
    model_cache = app_state_of(request).prediction.model_cache
    await asyncio.to_thread(model_cache.unload, caller.tenant, to_reference(name, version))
    return Response(status_code=200)


async def _metadata(
    app_state: AppState, tenant: str, name: str, version: int | None
) -> ModelMetadata:
    """Return the metadata of one version, with the numbers of all versions of the model."""
    loaded = await app_state.prediction.model_cache.find(
        ModelTarget(tenant, to_reference(name, version))
    )
    return model_metadata(
        loaded.name, app_state.registry_of(tenant).versions(name), loaded.predictor
    )


async def _ready(app_state: AppState, tenant: str, name: str, version: int | None) -> Response:
    """Return whether a version can answer. Raises NotFound if it does not exist."""
    try:
        await app_state.prediction.model_cache.find(
            ModelTarget(tenant, to_reference(name, version))
        )
        can_answer = True
    except (NotFound, InputError):
        raise
    except XcrayError:
        can_answer = False
    return JSONResponse(
        ModelReady(name=name, ready=can_answer).model_dump(), 200 if can_answer else 503
    )


def _index_entry(state: VersionState) -> IndexEntry:
    """Return a version as the protocol lists it."""
    if state.state == "LOADED":
        return IndexEntry(name=state.name, version=str(state.version), state="READY", reason="")
    reason = state.reason or "not loaded: the first request loads it"
    return IndexEntry(
        name=state.name, version=str(state.version), state="UNAVAILABLE", reason=reason
    )


def _requested_version(body: RepositoryRequest) -> int | None:
    """Return the version of a load or unload request; None if not set."""
    return int(body.parameters.version) if body.parameters and body.parameters.version else None


async def _optional_body(request: Request, model: type[M]) -> M:
    """Return an optional JSON body, with defaults if it is empty. Raises InputError."""
    body = await read_body(request, constants.JSON_BODY_BYTES)
    if not body:
        return model()
    # Triton's clients send JSON to the repository without a type, or as binary data.
    check_media_type(request, (JSON_TYPE, BINARY_TYPE), default=JSON_TYPE)
    return parse_body(model, body)
