"""Fast path of predict and inference requests, which bypasses FastAPI.

Routing a request, resolving the dependencies of its handler and encoding its reply take FastAPI
longer than the prediction takes. `PredictFastPath` therefore handles these requests before they
reach FastAPI. The routes in `xcray.service.routes` do the same and are the documented ones.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from fastapi import Request, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from xcray.service.http import auth
from xcray.service.prediction.batcher import Batcher

JSON_TYPE: Final = "application/json"
_require_caller: Final = auth.require_scope("predict")


class Reply(NamedTuple):
    """A successful reply. headers: further ones, with lower-case names."""

    body: bytes
    media_type: str = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def to_response(self) -> Response:
        """Return the reply of a FastAPI route."""
        response = Response(self.body, media_type=self.media_type)
        response.raw_headers.extend(self.headers)
        return response


class FastRoute(NamedTuple):
    """A route whose POST requests are handled before FastAPI.

    path: of the route, as a whole; route: the FastAPI route, for metrics and logs; handle: called
    with the request, the tenant and the groups of the path.
    """

    path: re.Pattern[str]
    route: BaseRoute
    handle: Callable[..., Awaitable[Reply]]


class PredictFastPath:
    """ASGI middleware that answers requests of some routes and passes all others on."""

    def __init__(self, app: ASGIApp, routes: Sequence[FastRoute], batcher: Batcher) -> None:
        """Wrap an app. routes: those to handle here; batcher: counts the other requests."""
        self._app = app
        self._routes = routes
        self._batcher = batcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises XcrayError, which the edge middleware converts to a reply."""
        # Query parameters are rare, and FastAPI's routes check them.
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["query_string"]:
            for fast in self._routes:
                match = fast.path.fullmatch(scope["path"])
                if match is not None:
                    await _answer(fast, match, scope, receive, send)
                    return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._batcher.other_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._batcher.other_requests -= 1


async def _answer(
    fast: FastRoute, match: re.Match[str], scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request. Raises XcrayError."""
    request = Request(scope, receive)
    scope["route"] = fast.route  # read by the metrics of the edge middleware
    caller = await _require_caller(request)
    reply = await fast.handle(request, caller.tenant, *match.groups())
    headers = [
        (b"content-type", reply.media_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
