"""Traces of requests: a span for each, within the caller's trace when they send a traceparent; what it did below it.

Added to the app only when traces are on (see `xcray.telemetry.tracing`).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import XcrayError
from xcray.jobs.database.engine import Heard
from xcray.service.http.edge import QUIET
from xcray.service.http.problems import status_of
from xcray.service.observability.request_log import NO_REQUEST, REQUEST_ID, tell
from xcray.telemetry import tracing


class TracedRequests:
    """ASGI middleware within the guard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, inside a span that is named by the route's template: paths hold names."""
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        given = next(
            (value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"),
            None,
        )
        with tracing.span(
            scope["method"], parent=given, kind="SERVER", request_id=REQUEST_ID.get()
        ) as span:
            tell(trace=tracing.trace_id())
            try:
                await self._app(scope, receive, noting)
            except XcrayError as error:  # the guard answers it
                status = status_of(error)
                raise
            finally:
                route = getattr(scope.get("route"), "path_format", "unmatched")
                span.update_name(f"{scope['method']} {route}")
                span.set_attributes(
                    {
                        "http.request.method": scope["method"],
                        "http.route": route,
                        "http.response.status_code": status,
                    }
                )


def traced_store(heard: Heard) -> Heard:
    """`heard`, which also makes a transaction of the store a span of whatever is going on."""

    def told(door: str, seconds: float, answered: bool) -> None:
        heard(door, seconds, answered)
        if (
            REQUEST_ID.get() != NO_REQUEST
        ):  # those who look at the queue twice a second are no part of anything
            tracing.happened(f"store {door}", seconds, answered=answered)

    return told
