"""The Open Inference Protocol v2: health, metadata, inference; and the model repository extension."""

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
from xcray.service.app_state import Rooms, rooms_of
from xcray.service.http.auth import Asker, ModelReader, Submitter
from xcray.service.http.body import check_type, collect, described, header, parse
from xcray.service.http.limits import count
from xcray.service.inference_v2 import repository, telling
from xcray.service.inference_v2.asking import Asked, read
from xcray.service.models.cache import Wanted
from xcray.service.prediction.handler import TYPICAL, answered, wanted
from xcray.service.prediction.offload import heavily
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
INLINE: Final = 32_768  # bytes of a body that are read on the event loop
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": described(InferRequest)["requestBody"]["content"] | _BYTES,
    }
}
_REPLY: Final[dict[int | str, dict[str, Any]]] = {200: {"model": InferReply, "content": _BYTES}}
_UNREADY: Final[dict[int | str, dict[str, Any]]] = {503: {"model": ServerReady}}


def _optional(model: type[BaseModel]) -> dict[str, Any]:
    """A body that may be left out."""
    return {"requestBody": {**described(model)["requestBody"], "required": False}}


@router.get("")
async def server() -> ServerMetadata:
    """This server, and the extensions of the protocol that it knows."""
    return ServerMetadata(name="xcray", version=__version__, extensions=EXTENSIONS)


@router.get("/health/live")
async def live() -> ServerLive:
    """Alive."""
    return ServerLive(live=True)


@router.get("/health/ready", responses=_UNREADY)
async def ready(request: Request) -> Response:
    """Whether requests are welcome, as /readyz, which says why not."""
    welcome = (await readyz(request)).status_code == 200
    body = ServerReady(live=True, ready=welcome).model_dump()
    return JSONResponse(
        body, 200 if welcome else 503, headers=None if welcome else {"Retry-After": "5"}
    )


@router.get("/models/{name:modelname}")
async def metadata(request: Request, caller: ModelReader, name: str) -> ModelMetadata:
    """What the version that would answer takes and gives."""
    return await _metadata(rooms_of(request), caller.tenant, name, None)


@router.get("/models/{name:modelname}/versions/{version:int}")
async def version_metadata(
    request: Request, caller: ModelReader, name: str, version: int
) -> ModelMetadata:
    """What a version takes and gives."""
    return await _metadata(rooms_of(request), caller.tenant, name, version)


@router.get("/models/{name:modelname}/ready", responses={503: {"model": ModelReady}})
async def model_ready(request: Request, caller: ModelReader, name: str) -> Response:
    """Whether the model answers; loads it when it is not loaded."""
    return await _ready(rooms_of(request), caller.tenant, name, None)


@router.get(
    "/models/{name:modelname}/versions/{version:int}/ready", responses={503: {"model": ModelReady}}
)
async def version_ready(request: Request, caller: ModelReader, name: str, version: int) -> Response:
    """Whether the version answers; loads it when it is not loaded."""
    return await _ready(rooms_of(request), caller.tenant, name, version)


@router.post(
    "/models/{name:modelname}/infer", openapi_extra=_BODY, responses=_REPLY, response_class=Response
)
async def infer(request: Request, caller: Asker, name: str) -> Response:
    """The best labels of each row, as tensors; by the version that POST /v1/models/NAME:predict would ask."""
    return await _infer(request, caller.tenant, name, None)


@router.post(
    "/models/{name:modelname}/versions/{version:int}/infer",
    openapi_extra=_BODY,
    responses=_REPLY,
    response_class=Response,
)
async def version_infer(request: Request, caller: Asker, name: str, version: int) -> Response:
    """The same, by one version."""
    return await _infer(request, caller.tenant, name, version)


@router.post("/repository/index", openapi_extra=_optional(IndexRequest))
async def repository_index(request: Request, caller: ModelReader) -> list[IndexEntry]:
    """Every version of every model, and whether it is loaded."""
    asked = await _optional_body(request, IndexRequest)
    return await asyncio.to_thread(repository.index, rooms_of(request), caller.tenant, asked.ready)


@router.post(
    "/repository/models/{name:modelname}/load",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def load(request: Request, caller: Submitter, name: str) -> Response:
    """Map a version now, so that the first request need not wait for it."""
    version = _version(await _optional_body(request, RepositoryRequest))
    await asyncio.to_thread(repository.load, rooms_of(request), caller.tenant, name, version)
    return Response(status_code=200)


@router.post(
    "/repository/models/{name:modelname}/unload",
    openapi_extra=_optional(RepositoryRequest),
    response_class=Response,
)
async def unload(request: Request, caller: Submitter, name: str) -> Response:
    """Free the memory of a version, or of all of a model; the next request loads it again."""
    version = _version(await _optional_body(request, RepositoryRequest))
    await asyncio.to_thread(repository.unload, rooms_of(request), caller.tenant, name, version)
    return Response(status_code=200)


async def _infer(request: Request, tenant: str, name: str, version: int | None) -> Response:
    """Read, ask, write. Raises XcrayError."""
    begun = time.perf_counter()
    rooms = rooms_of(request)
    check_type(request, ("application/json", "application/octet-stream"))
    body = await collect(request, rooms.settings.predict_body_bytes, rooms.settings.body_seconds)
    reading = partial(read, body, _header_length(request), name, rooms.settings)
    asked: Asked = reading() if len(body) <= INLINE else await heavily(reading)
    asks = wanted(request, tenant, _reference(name, version))
    weight = asked.rows.n_rows + len(body) / TYPICAL
    count(request.scope, asked.rows.n_rows)
    told = await answered(
        rooms, asks, asked.ask, asked.rows.given, asked.rows.n_rows, weight, begun
    )
    content, json_length = telling.reply(told, asked)
    if json_length is None:
        return Response(content, media_type="application/json")
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"Inference-Header-Content-Length": str(json_length)},
    )


def _header_length(request: Request) -> int | None:
    """Where the JSON object ends, when bytes follow it. Raises InputError."""
    told = header(request, HEADER_LENGTH)
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 16):
        raise InputError(
            "Inference-Header-Content-Length is not a number of bytes", code="BAD_HEADER"
        )
    return int(told)


async def _metadata(rooms: Rooms, tenant: str, name: str, version: int | None) -> ModelMetadata:
    """Of one version; the model's other versions beside it."""
    loaded = await rooms.predictors.find(Wanted(tenant, _reference(name, version)))
    return telling.metadata(loaded.name, rooms.registry_of(tenant).versions(name), loaded.predictor)


async def _ready(rooms: Rooms, tenant: str, name: str, version: int | None) -> Response:
    """Whether a version can be asked. Raises NotFound when there is none."""
    try:
        await rooms.predictors.find(Wanted(tenant, _reference(name, version)))
        able = True
    except (NotFound, InputError):
        raise
    except XcrayError:
        able = False
    return JSONResponse(ModelReady(name=name, ready=able).model_dump(), 200 if able else 503)


def _reference(name: str, version: int | None) -> str:
    """A model, or one version of it, as the registry reads it."""
    return name if version is None else f"{name}:{version}"


def _version(asked: RepositoryRequest) -> int | None:
    """The version that a load or unload names."""
    return int(asked.parameters.version) if asked.parameters and asked.parameters.version else None


async def _optional_body(request: Request, model: type[M]) -> M:
    """A JSON body that may be left out. Raises InputError."""
    settings = rooms_of(request).settings
    body = await collect(request, settings.body_bytes, settings.body_seconds)
    if not body:
        return model()
    check_type(request, ("application/json",))
    return parse(model, body)
