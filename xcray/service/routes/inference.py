"""Routes of the Open Inference Protocol v2, including the model repository extension."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from xcray import __version__
from xcray.errors import InputError, NotFound, XcrayError
from xcray.service.app_state import AppState, app_state_of
from xcray.service.http.auth import ModelReader, PredictCaller, Submitter
from xcray.service.http.body import (
    check_media_type,
    first_header,
    openapi_body,
    parse_body,
    read_body,
)
from xcray.service.http.limits import count_instances
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.inference_v2 import repository
from xcray.service.inference_v2.decode import decode_request
from xcray.service.inference_v2.encode import encode_reply, model_metadata
from xcray.service.models.cache import ModelTarget
from xcray.service.prediction.handler import BODY_BYTES_PER_ROW, model_target, run_inference
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
HEADER_LENGTH: Final = b"inference-header-content-length"
INLINE_BODY_BYTES: Final = 32_768  # larger bodies are decoded in a thread
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
    return await _infer(request, caller.tenant, name, None)


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
    return await _infer(request, caller.tenant, name, version)


@router.post("/repository/index", openapi_extra=_optional(IndexRequest))
async def repository_index(request: Request, caller: ModelReader) -> list[IndexEntry]:
    """List all model versions and whether they are loaded."""
    options = await _optional_body(request, IndexRequest)
    return await asyncio.to_thread(
        repository.list_versions, app_state_of(request), caller.tenant, options.ready
    )


@router.post(
    "/repository/models/{name:modelname}/load",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def load(request: Request, caller: Submitter, name: str) -> Response:
    """Load and pin a version, so that the first request need not wait for it."""
    version = _requested_version(await _optional_body(request, RepositoryRequest))
    await asyncio.to_thread(repository.load, app_state_of(request), caller.tenant, name, version)
    return Response(status_code=200)


@router.post(
    "/repository/models/{name:modelname}/unload",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def unload(request: Request, caller: Submitter, name: str) -> Response:
    """Unload a version, or all versions of a model; the next request loads it again."""
    version = _requested_version(await _optional_body(request, RepositoryRequest))
    await asyncio.to_thread(repository.unload, app_state_of(request), caller.tenant, name, version)
    return Response(status_code=200)


async def _infer(request: Request, tenant: str, name: str, version: int | None) -> Response:
    """Decode the request, run the inference, encode the reply. Raises XcrayError."""
    started = time.perf_counter()
    app_state = app_state_of(request)
    settings = app_state.settings
    check_media_type(request, ("application/json", "application/octet-stream"))
    body = await read_body(request, settings.predict_body_bytes, settings.body_idle_timeout_seconds)
    decode = partial(decode_request, body, _header_length(request), name, settings)
    if len(body) <= INLINE_BODY_BYTES:
        decoded = decode()
    else:
        decoded = await run_in_heavy_thread(decode)
    target = model_target(request, tenant, _reference(name, version))
    n_rows = decoded.rows.n_rows
    weight = n_rows + len(body) / BODY_BYTES_PER_ROW
    count_instances(request.scope, n_rows)
    result = await run_inference(
        app_state, target, decoded.query, decoded.rows.to_rows, n_rows, weight, started
    )
    content, json_length = encode_reply(result, decoded)
    if json_length is None:
        return Response(content, media_type="application/json")
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"Inference-Header-Content-Length": str(json_length)},
    )


def _header_length(request: Request) -> int | None:
    """Return the length of the JSON object if binary tensors follow it. Raises InputError."""
    value = first_header(request, HEADER_LENGTH)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 16):
        raise InputError(
            "Inference-Header-Content-Length is not a valid number of bytes", code="BAD_HEADER"
        )
    return int(value)


async def _metadata(
    app_state: AppState, tenant: str, name: str, version: int | None
) -> ModelMetadata:
    """Return the metadata of one version, with the numbers of all versions of the model."""
    loaded = await app_state.model_cache.find(ModelTarget(tenant, _reference(name, version)))
    return model_metadata(
        loaded.name, app_state.registry_of(tenant).versions(name), loaded.predictor
    )


async def _ready(app_state: AppState, tenant: str, name: str, version: int | None) -> Response:
    """Return whether a version can answer. Raises NotFound if it does not exist."""
    try:
        await app_state.model_cache.find(ModelTarget(tenant, _reference(name, version)))
        can_answer = True
    except (NotFound, InputError):
        raise
    except XcrayError:
        can_answer = False
    return JSONResponse(
        ModelReady(name=name, ready=can_answer).model_dump(), 200 if can_answer else 503
    )


def _reference(name: str, version: int | None) -> str:
    """Return the registry reference of a model or of one version."""
    return name if version is None else f"{name}:{version}"


def _requested_version(body: RepositoryRequest) -> int | None:
    """Return the version of a load or unload request; None if not set."""
    return int(body.parameters.version) if body.parameters and body.parameters.version else None


async def _optional_body(request: Request, model: type[M]) -> M:
    """Return an optional JSON body, with defaults if it is empty. Raises InputError."""
    settings = app_state_of(request).settings
    body = await read_body(request, settings.body_bytes, settings.body_idle_timeout_seconds)
    if not body:
        return model()
    check_media_type(request, ("application/json",))
    return parse_body(model, body)
