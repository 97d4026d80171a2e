"""The outer wall, before any route: request ids, hosts, origins, header limits, secure headers, one log line a request.

Local services are reached by every web page that the user opens, by name tricks (DNS rebinding) and by forms. So the Host must
be one of ours, and a change that a browser sends from another origin is refused.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import InputError, XcrayError, excerpt
from xcray.service import problems
from xcray.service.gauges import Gauges
from xcray.service.logs import LOGGER, REQUEST_ID, new_request_id
from xcray.service.settings import Settings

GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds: logged at debug level
MAX_HEADERS = 100
SECURE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, gauges: Gauges) -> None:
        self._app = app
        self._hosts = settings.hosts
        self._header_bytes = settings.header_bytes
        self._gauges = gauges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it may, and see to it that every answer bears its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if GIVEN_ID.fullmatch(given) else new_request_id()
        REQUEST_ID.set(request_id)
        answer = _Answer(send, request_id)
        started = time.perf_counter()
        try:
            await self._checked(scope, headers, receive, answer)
        finally:
            self._note(scope, answer.status, time.perf_counter() - started)

    async def _checked(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        """The app's answer, or a problem document in its place."""
        try:
            self._check(scope, headers)
            await self._app(scope, receive, answer)
        except XcrayError as error:
            await problems.response(error)(scope, receive, answer)
        except ClientDisconnect:
            answer.status = answer.status or 499  # nobody is there to answer
        except Exception as error:
            if answer.status:
                LOGGER.error("an answer broke off", exc_info=error)
                raise
            await problems.unexpected(Request(scope), error)(scope, receive, answer)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise InputError for what no route should see."""
        raw = scope["headers"]
        if len(raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > self._header_bytes:
            limits = f"{MAX_HEADERS} of {self._header_bytes} bytes together"
            raise InputError(f"the headers are too large: send at most {limits}", code="HEADERS_TOO_LARGE")
        if "content-length" in headers and "transfer-encoding" in headers:
            raise InputError("Content-Length and Transfer-Encoding exclude each other: send one", code="BAD_HEADER")
        host = headers.get("host", "")
        if "*" not in self._hosts and _hostname(host) not in self._hosts:
            hint = "the operator can add it: XCRAY_ALLOWED_HOSTS='[\"name\"]'"
            raise InputError(f"host {excerpt(host)!r} is not served here", code="HOST", hint=hint)
        origin = headers.get("origin")
        if scope["method"] not in SAFE and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise InputError("a page of another origin may not change things here", code="ORIGIN")

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """One log line, one count, by the route's template: paths hold names."""
        route = getattr(scope.get("route"), "path_format", "unmatched")
        self._gauges.requests.labels(route, scope["method"] if route != "unmatched" else "any", f"{status // 100}xx").inc()
        self._gauges.seconds.labels(route).observe(seconds)
        facts: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 2)}
        LOGGER.log(logging.DEBUG if scope["path"] in QUIET else logging.INFO, "request", extra=facts)


class _Answer:
    """`send`, with the headers that every answer bears; remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            for name, value in SECURE.items():
                headers.setdefault(name, value)
        await self._send(message)


def _hostname(host: str) -> str:
    """Host header -> name without port, lower case; an IPv6 address without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
