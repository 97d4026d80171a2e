"""The FastAPI app of the service, entered through its edge middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from xcray.service.http.edge import EdgeMiddleware


class ServiceApp(FastAPI):
    """A FastAPI app whose outermost middleware is the edge middleware.

    FastAPI puts middleware around those of an app: for errors, which the edge middleware answers,
    for limits of bodies (`body.read_body`) and for traces (`request_tracing`). They take 10 us per
    request and are left out.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Return the edge middleware with all that is inside it."""
        stack = super().build_middleware_stack()
        inner: Any = stack
        while inner is not None and not isinstance(inner, EdgeMiddleware):
            inner = getattr(inner, "app", None)
        return stack if inner is None else inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or the lifespan."""
        if scope["type"] == "http":
            await Starlette.__call__(self, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
