"""The JSON body of a request: type, encoding and size are checked before it is read, strictness while it is parsed.

FastAPI's own body parsing is not used: it takes NaN, "1.5" for 1.5, duplicate keys and bodies of any size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Message

from xcray.errors import InputError, excerpt
from xcray.service.http.limits import hold
from xcray.service.http.problems import from_validation
from xcray.service.http.strict_json import loads
from xcray.service.prediction.offload import heavily
from xcray.service.settings import Settings

M = TypeVar("M", bound=BaseModel)
Check: TypeAlias = Callable[[Settings, dict[str, Any]], None]
INLINE = 32_768  # bytes that are parsed on the event loop; more go to a thread
DESCRIBED: dict[str, type[BaseModel]] = {}  # models of bodies that routes described, by name


def json_body(
    model: type[M], limit: str = "body_bytes", check: Check | None = None
) -> Callable[[Request], Awaitable[M]]:
    """A dependency that reads the body as `model`.

    limit: names the setting of its largest size; check: raises for what is cheaper to refuse before all of it is looked at.
    """

    async def read(request: Request) -> M:
        check_type(request, ("application/json",))
        settings: Settings = request.app.state.settings
        body = await collect(request, getattr(settings, limit), settings.body_seconds)
        early = partial(check, settings) if check is not None else None
        if len(body) <= INLINE:
            return parse(model, body, early)
        return await heavily(partial(parse, model, body, early))

    return read


def described(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of such a body; `openapi` adds the schema to the components."""
    DESCRIBED[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def parse(model: type[M], body: bytes, check: Callable[[dict[str, Any]], None] | None = None) -> M:
    """A body as a model, after `check` saw its value. Raises BadJSON, or InputError with what does not fit."""
    value = loads(body)
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null", bool: "true or false"}.get(
            type(value), "a number"
        )
        raise InputError(f"the body is {kind}, a JSON object was expected", code="BODY_TYPE")
    if check is not None:
        check(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise from_validation(found) from None


def check_type(request: Request, allowed: tuple[str, ...]) -> str:
    """The media type of a request, when it is one of `allowed`. Raises InputError CONTENT_TYPE or CONTENT_ENCODING."""
    encoding = (header(request, b"content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise InputError(
            f"Content-Encoding {excerpt(encoding)!r} is not accepted: send the body as it is",
            code="CONTENT_ENCODING",
        )
    kind, _, parameters = (header(request, b"content-type") or "").partition(";")
    kind = kind.strip().lower()
    if kind not in allowed:
        found = f"Content-Type is {excerpt(kind)!r}" if kind else "there is no Content-Type"
        raise InputError(f"{found}: send {' or '.join(allowed)}", code="CONTENT_TYPE")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind == "application/json" and charset not in ("", "utf-8", "utf8"):
        raise InputError(
            f"charset {excerpt(charset)!r} is not accepted: send JSON as UTF-8", code="CONTENT_TYPE"
        )
    return kind


def header(request: Request, name: bytes) -> str | None:
    """The first header of a name in lower case; None when there is none."""
    for found, value in request.scope["headers"]:
        if found == name:
            return str(value, "latin-1")
    return None


async def collect(request: Request, limit: int, pause: float) -> bytes:
    """The whole body. Raises InputError BODY_TOO_LARGE above `limit` bytes, SLOW_BODY after `pause` seconds of silence;
    Unavailable BUSY while other requests hold too much."""
    if declared_length(request) > limit:
        await _drain(request, limit)
        raise too_large(limit)
    parts, size = [], 0
    async for chunk in chunks(request, pause):
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        hold(request.scope, len(chunk))
        parts.append(chunk)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def chunks(request: Request, pause: float) -> AsyncIterator[bytes]:
    """The pieces of a body as they come, none later than `pause` seconds after the one before. Raises ClientDisconnect."""
    more = True
    while more:
        message = await _received(request, pause)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        if chunk := message.get("body", b""):
            yield chunk


async def _received(request: Request, pause: float) -> Message:
    """The next message, when it comes in time. As asyncio.timeout, which takes 10 us where this takes 2."""
    task = asyncio.current_task()
    assert task is not None
    late = False

    def fire() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(pause, fire)
    try:
        return await request.receive()
    except asyncio.CancelledError:
        if not late or task.uncancel() > 0:  # another's wish
            raise
        raise InputError(f"no byte of the body came for {pause:g} s", code="SLOW_BODY") from None
    finally:
        timer.cancel()


def declared_length(request: Request) -> int:
    """Content-Length, or 0 when it is not told."""
    told = header(request, b"content-length") or ""
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 19 else 0


def too_large(limit: int) -> InputError:
    """The error for a body above its limit."""
    return InputError(
        f"the body is larger than {limit:,} bytes: send less at once",
        code="BODY_TOO_LARGE",
        limit=limit,
    )


async def _drain(request: Request, limit: int) -> None:
    """Read a little of what will be refused: a client that is still writing hears the answer instead of a broken pipe."""
    left = limit + 1_000_000
    async for chunk in chunks(request, 2.0):
        left -= len(chunk)
        if left < 0:
            return
