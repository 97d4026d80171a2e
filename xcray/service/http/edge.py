"""Edge middleware, outermost: request ids, host and origin checks, header limits, security headers.

It also writes one log line per request. Any web page that the user opens can reach a local service
through DNS rebinding and forms. Therefore the Host must be one of the configured ones, and changes
that a browser sends from another origin are rejected.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import InputError, XcrayError, excerpt
from xcray.service import constants
from xcray.service.http import problems
from xcray.service.http.cors import CorsPolicy, Headers
from xcray.service.http.path_prefix import PathPrefix, add_prefix
from xcray.service.http.problems import status_of
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import (
    LOGGER,
    begin_request,
    log_quickly,
    new_request_id,
)
from xcray.service.settings import Settings

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Polled every few seconds: logged at debug level.
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
MAX_HEADERS = 100
KEY_QUERY_PARAMETERS = frozenset({"token", "key", "api_key", "apikey", "access_token"})

_HOST: Final = re.compile(
    r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII
)


class EdgeMiddleware:
    """ASGI middleware around the whole app."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the middleware.

        draining: while it returns true, every response asks the client to close the connection.
        """
        self._app = app
        self._draining = draining
        self._hosts = settings.served_hosts
        self._metrics = metrics
        self._cors = CorsPolicy(settings)
        self._prefix = PathPrefix(settings.root_path, trusts_header=settings.behind_proxy)
        # counter and histogram by route, method and status: finding a series takes longer than
        # counting
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a valid request on; every response has the request id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = RequestHead.parse(scope["headers"])
        request_id = (
            head.request_id if REQUEST_ID_PATTERN.fullmatch(head.request_id) else new_request_id()
        )
        fields, response = (
            begin_request(request_id),
            _SendWithHeaders(send, request_id, self._cors, head.origin, self._draining),
        )
        started = time.perf_counter()
        self._metrics.requests_in_progress.inc()
        try:
            await self._handle(scope, head, receive, response)
        finally:
            self._metrics.requests_in_progress.dec()
            self._log_request(
                scope, response.status, time.perf_counter() - started, fields.get("code", "NONE")
            )

    async def _handle(
        self, scope: Scope, head: RequestHead, receive: Receive, response: _SendWithHeaders
    ) -> None:
        """Send the response of the app, or a problem document instead."""
        try:
            self._check_request(scope["method"], head, scope["query_string"])
            response.prefix = self._prefix.apply(scope, head.forwarded_prefix)
            if (
                scope["method"] == "OPTIONS"
                and (headers := self._cors.preflight_headers(head.origin)) is not None
            ):
                await response.send_empty(headers)
                return
            if response.prefix and scope["path"] == response.prefix:
                # The pages have relative addresses, which need the slash at the end.
                await RedirectResponse("/", 308)(scope, receive, response)
                return
            await self._app(scope, receive, response)
        except XcrayError as error:
            if status_of(error) >= 500:
                LOGGER.warning(
                    "request failed", extra={"code": error.code, "detail": error.message}
                )
            await problems.adapt_to_path(scope["path"], problems.problem_response(error))(
                scope, receive, response
            )
        except ClientDisconnect:
            response.status = response.status or 499  # the client is gone
        except Exception as error:
            if response.status:
                LOGGER.error("a response broke off", exc_info=error)
                raise
            await problems.internal_error(Request(scope), error)(scope, receive, response)

    def _check_request(self, method: str, head: RequestHead, query: bytes) -> None:
        """Raise InputError for a request that must not reach a route."""
        if head.header_count > MAX_HEADERS or head.size > constants.HEADER_BYTES:
            limits = f"{MAX_HEADERS} of {constants.HEADER_BYTES} bytes together"
            raise InputError(
                f"the headers are too large: send at most {limits}", code="HEADERS_TOO_LARGE"
            )
        if head.has_two_lengths:
            raise InputError(
                "Content-Length and Transfer-Encoding exclude each other: send one",
                code="BAD_HEADER",
            )
        if head.host_count > 1:
            raise InputError("there is more than one Host header: send one", code="BAD_HEADER")
        if "*" not in self._hosts and _host_name(head.host) not in self._hosts:
            hint = "the operator can add it: XCRAY_ALLOWED_HOSTS='[\"name\"]'"
            raise InputError(
                f"host {excerpt(head.host)!r} is not served here", code="HOST", hint=hint
            )
        if (
            method not in SAFE_METHODS
            and head.origin is not None
            and not self._cors.allows_origin(head.origin, head.host)
        ):
            hint = "the operator can allow its origin: XCRAY_CORS_ORIGINS='[\"https://name\"]'"
            raise InputError(
                "a page of another origin cannot make changes here", code="ORIGIN", hint=hint
            )
        if (
            query
            and KEY_QUERY_PARAMETERS
            & parse_qs(query.decode("latin-1"), keep_blank_values=True).keys()
        ):
            message = (
                "keys do not belong in URLs, because URLs are logged: "
                "send `Authorization: Bearer xck_...`"
            )
            raise InputError(
                message,
                code="KEY_IN_URL",
                hint="if it was a key, revoke it: `xcray keys revoke`",
            )

    def _log_request(self, scope: Scope, status: int, seconds: float, code: str) -> None:
        """Log and count one request by the template of its route, because paths contain names.

        code: of the problem document, if the response was one.
        """
        route = getattr(scope.get("route"), "path_format", "unmatched")
        method = scope["method"] if route != "unmatched" else "any"
        counter, histogram = self._series_of(route, method, status // 100)
        counter.inc()
        histogram.observe(seconds)
        self._metrics.count_rejection(status, code)
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        if LOGGER.isEnabledFor(level):
            ms = round(seconds * 1000, 2)
            log_quickly(
                level,
                "request",
                {"method": scope["method"], "path": scope["path"], "status": status, "ms": ms},
            )

    def _series_of(self, route: str, method: str, hundreds: int) -> tuple[Counter, Histogram]:
        """Return the counter and the histogram of requests of this kind."""
        key = (route, method, hundreds)
        if key not in self._series:
            self._series[key] = (
                self._metrics.requests.labels(route, method, f"{hundreds}xx"),
                self._metrics.request_seconds.labels(route),
            )
        return self._series[key]


class RequestHead(NamedTuple):
    """Header fields that the edge middleware checks, read in one pass."""

    header_count: int
    size: int
    host_count: int
    host: str
    origin: str | None
    request_id: str
    has_two_lengths: bool
    forwarded_prefix: bytes | None

    @classmethod
    def parse(cls, raw: list[tuple[bytes, bytes]]) -> RequestHead:
        """Return the fields. raw: (lower-case name, value) of each header."""
        size = hosts = 0
        host, origin, request_id, by_length, by_chunks = b"", None, b"", False, False
        prefix = None
        for name, value in raw:
            size += len(name) + len(value)
            if name == b"host":
                host = host if hosts else value
                hosts += 1
            elif name == b"origin":
                origin = value if origin is None else origin
            elif name == b"x-request-id":
                request_id = request_id or value
            elif name == b"x-forwarded-prefix":
                prefix = value
            elif name == b"content-length":
                by_length = True
            elif name == b"transfer-encoding":
                by_chunks = True
        origin_text = None if origin is None else origin.decode("latin-1")
        return cls(
            len(raw),
            size,
            hosts,
            host.decode("latin-1"),
            origin_text,
            request_id.decode("latin-1"),
            by_length and by_chunks,
            prefix,
        )


class _SendWithHeaders:
    """A `send` that adds the common headers and records the status."""

    def __init__(
        self,
        send: Send,
        request_id: str,
        cors: CorsPolicy,
        origin: str | None,
        closes_connection: Callable[[], bool],
    ) -> None:
        """Create it. closes_connection: whether the connection is closed after this response."""
        self._send = send
        self._closes_connection = closes_connection
        self._request_id = request_id
        self._cors = cors
        self._origin = origin
        self.prefix = ""
        self.status = 0

    async def send_empty(self, headers: Headers) -> None:
        """Send a response without a body."""
        self.status = 204
        await self._send(
            {
                "type": "http.response.start",
                "status": 204,
                "headers": [*self._cors.security_headers, *headers],
            }
        )
        await self._send({"type": "http.response.body"})

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            if self.prefix:
                headers = add_prefix(headers, self.prefix)
            headers += self._cors.missing_security_headers({name.lower() for name, _ in headers})
            headers += self._cors.response_headers(self._origin)
            headers.append((b"x-request-id", self._request_id.encode()))
            if self._closes_connection():
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)


@lru_cache(256)
def _host_name(host: str) -> str:
    """Return the host name in lower case, without port and without the brackets of IPv6.

    Returns an empty string if it is not a host with an optional port (RFC 9110, 7.2).
    """
    match = _HOST.fullmatch(host)
    return (match[1] or match[2]).lower() if match else ""
