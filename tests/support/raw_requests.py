"""Requests to an app as raw bytes: no client normalises paths, headers or bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from xcray.service.http.audit import template_of


class RawResponse(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of a problem document; empty for other responses."""
        try:
            return str(json.loads(self.body)["code"])
        except (ValueError, KeyError, TypeError):
            return ""


async def ask(
    app: FastAPI,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    query: str = "",
    headers: dict[str, str] | None = None,
    raw: list[tuple[bytes, bytes]] | None = None,
) -> RawResponse:
    """Send one request. path: as decoded by a server; raw: headers besides the usual ones."""
    fields = {"host": "127.0.0.1", "content-type": "application/json", **(headers or {})}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query.encode("utf-8", "surrogatepass"),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        + (raw or []),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    messages: list[Any] = []
    given_once = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        message = next(given_once, None)
        return message if message is not None else await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    head = next(message for message in messages if message["type"] == "http.response.start")
    report = b"".join(
        message.get("body", b"") for message in messages if message["type"] == "http.response.body"
    )
    return RawResponse(
        head["status"],
        {name.decode().lower(): value.decode() for name, value in head["headers"]},
        report,
    )


def operations(app: FastAPI) -> set[tuple[str, str]]:
    """Return (method, path template) of each operation of an app."""
    return {
        (method, template_of(route))
        for route in _routes(app.routes)
        for method in route.methods or ()
        if method != "HEAD"
    }


def _routes(result: Any) -> list[Route | APIRoute]:
    """Return all routes, including those of nested routers."""
    out: list[Route | APIRoute] = []
    for route in result:
        inner = getattr(getattr(route, "original_router", route), "routes", None)
        if inner is not None:
            out += _routes(inner)
        else:
            assert isinstance(route, Route), f"an unknown kind of route: {route}"
            out.append(route)
    return out
