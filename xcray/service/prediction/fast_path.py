"""Fast path of predict requests, which bypasses FastAPI.

Routing a request, resolving the dependencies of its handler and encoding its reply take FastAPI
longer than the prediction takes. `PredictFastPath` therefore handles predict requests before they
reach FastAPI. The route in `xcray.service.routes.predict` does the same and is the documented one.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from xcray.service.app_state import app_state_of
from xcray.service.http import auth
from xcray.service.prediction.handler import handle_predict, model_target

_PATH: Final = re.compile(r"/v1/models/([^/:@]+(?:@[^/:@]+|:[0-9]+)?):predict")
_require_caller: Final = auth.require_scope("predict")


class PredictFastPath:
    """ASGI middleware that answers predict requests and passes all others on."""

    def __init__(self, app: ASGIApp, route: BaseRoute) -> None:
        """Wrap an app. route: the FastAPI route of predict requests, for metrics and logs."""
        self._app = app
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises XcrayError, which the edge middleware converts to a reply."""
        match = (
            _PATH.fullmatch(scope["path"])
            if scope["type"] == "http" and scope["method"] == "POST"
            else None
        )
        if match is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope["route"] = self._route  # read by the metrics of the edge middleware
        caller = await _require_caller(request)
        body = await handle_predict(
            request, app_state_of(request), model_target(request, caller.tenant, match[1])
        )
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
