"""Request traces: one span per request, a child of `traceparent` if the client sent one.

The middleware is added only if tracing is on (see `xcray.telemetry.tracing`).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import XcrayError
from xcray.jobs.database.engine import TransactionObserver
from xcray.service.http.edge import QUIET_PATHS
from xcray.service.http.problems import status_of
from xcray.service.observability.request_log import NO_REQUEST, REQUEST_ID, add_log_context
from xcray.telemetry import tracing


class TracingMiddleware:
    """ASGI middleware inside the edge middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request in a span named by the route's template, because paths contain names."""
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_with_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent = next(
            (value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"),
            None,
        )
        with tracing.span(
            scope["method"], parent=parent, kind="SERVER", request_id=REQUEST_ID.get()
        ) as span:
            add_log_context(trace=tracing.current_trace_id())
            try:
                await self._app(scope, receive, send_with_status)
            # The edge middleware sends the response.
            except XcrayError as error:
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


def trace_transactions(observer: TransactionObserver) -> TransactionObserver:
    """Return an observer that also records transactions of the store as spans."""

    def observe(door: str, seconds: float, answered: bool) -> None:
        observer(door, seconds, answered)
        # Polls of the queue, twice per second, belong to no request.
        if REQUEST_ID.get() != NO_REQUEST:
            tracing.record_span(f"store {door}", seconds, answered=answered)

    return observe
