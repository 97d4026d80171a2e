"""The outer wall, before any route: request ids, hosts, origins, header limits, secure headers, one log line a request.

Local services are reached by every web page that the user opens, by name tricks (DNS rebinding) and by forms. So the Host must
be one of ours, and a change that a browser sends from another origin is refused.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import InputError, XcrayError, excerpt
from xcray.service.http import problems
from xcray.service.http.cors import Browsers, Headers
from xcray.service.http.problems import status_of
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER, begin_request, new_request_id, note
from xcray.service.settings import Settings

GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
QUIET = frozenset(
    {"/healthz", "/readyz", "/metrics"}
)  # asked every few seconds: logged at debug level
MAX_HEADERS = 100
KEY_WORDS = frozenset({"token", "key", "api_key", "apikey", "access_token"})


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        gauges: Gauges,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """draining: while it says so, every answer asks its client to close the connection and to come back elsewhere."""
        self._app = app
        self._draining = draining
        self._hosts = settings.hosts
        self._header_bytes = settings.header_bytes
        self._gauges = gauges
        self._browsers = Browsers(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it may, and see to it that every answer bears its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = _Head.of(scope["headers"])
        request_id = head.request_id if GIVEN_ID.fullmatch(head.request_id) else new_request_id()
        about, answer = (
            begin_request(request_id),
            _Answer(send, request_id, self._browsers, head.origin, self._draining),
        )
        started = time.perf_counter()
        self._gauges.under_way.inc()
        try:
            await self._checked(scope, head, receive, answer)
        finally:
            self._gauges.under_way.dec()
            self._note(
                scope, answer.status, time.perf_counter() - started, about.get("code", "NONE")
            )

    async def _checked(self, scope: Scope, head: _Head, receive: Receive, answer: _Answer) -> None:
        """The app's answer, or a problem document in its place."""
        try:
            self._check(scope["method"], head, scope["query_string"])
            if (
                scope["method"] == "OPTIONS"
                and (told := self._browsers.preflight(head.origin)) is not None
            ):
                await answer.empty(told)
                return
            await self._app(scope, receive, answer)
        except XcrayError as error:
            if status_of(error) >= 500:
                LOGGER.warning(
                    "request failed", extra={"code": error.code, "detail": error.message}
                )
            await problems.for_path(scope["path"], problems.response(error))(scope, receive, answer)
        except ClientDisconnect:
            answer.status = answer.status or 499  # nobody is there to answer
        except Exception as error:
            if answer.status:
                LOGGER.error("an answer broke off", exc_info=error)
                raise
            await problems.unexpected(Request(scope), error)(scope, receive, answer)

    def _check(self, method: str, head: _Head, query: bytes) -> None:
        """Raise InputError for what no route should see."""
        if head.headers > MAX_HEADERS or head.size > self._header_bytes:
            limits = f"{MAX_HEADERS} of {self._header_bytes} bytes together"
            raise InputError(
                f"the headers are too large: send at most {limits}", code="HEADERS_TOO_LARGE"
            )
        if head.framed_twice:
            raise InputError(
                "Content-Length and Transfer-Encoding exclude each other: send one",
                code="BAD_HEADER",
            )
        if head.hosts > 1:
            raise InputError("there is more than one Host header: send one", code="BAD_HEADER")
        if "*" not in self._hosts and _hostname(head.host) not in self._hosts:
            hint = "the operator can add it: XCRAY_ALLOWED_HOSTS='[\"name\"]'"
            raise InputError(
                f"host {excerpt(head.host)!r} is not served here", code="HOST", hint=hint
            )
        if (
            method not in SAFE
            and head.origin is not None
            and not self._browsers.admits(head.origin, head.host)
        ):
            hint = "the operator can admit its origin: XCRAY_CORS_ORIGINS='[\"https://name\"]'"
            raise InputError(
                "a page of another origin may not change things here", code="ORIGIN", hint=hint
            )
        if query and KEY_WORDS & parse_qs(query.decode("latin-1"), keep_blank_values=True).keys():
            message = "keys do not belong in URLs, which are written down everywhere: send `Authorization: Bearer xck_...`"
            raise InputError(
                message,
                code="KEY_IN_URL",
                hint="if it was a key, have it revoked: `xcray keys revoke`",
            )

    def _note(self, scope: Scope, status: int, seconds: float, code: str) -> None:
        """One log line, one count, by the route's template: paths hold names. code: of the problem, where the answer was one."""
        route = getattr(scope.get("route"), "path_format", "unmatched")
        self._gauges.requests.labels(
            route, scope["method"] if route != "unmatched" else "any", f"{status // 100}xx"
        ).inc()
        self._gauges.seconds.labels(route).observe(seconds)
        self._gauges.refused(status, code)
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        if LOGGER.isEnabledFor(level):
            ms = round(seconds * 1000, 2)
            note(
                level,
                "request",
                {"method": scope["method"], "path": scope["path"], "status": status, "ms": ms},
            )


class _Head(NamedTuple):
    """What the guard looks at, read in one pass over the headers."""

    headers: int
    size: int
    hosts: int
    host: str
    origin: str | None
    request_id: str
    framed_twice: bool

    @classmethod
    def of(cls, raw: list[tuple[bytes, bytes]]) -> _Head:
        """raw: (lower-case name, value) of each header."""
        size = hosts = 0
        host, origin, request_id, by_length, by_chunks = b"", None, b"", False, False
        for name, value in raw:
            size += len(name) + len(value)
            if name == b"host":
                host = host if hosts else value
                hosts += 1
            elif name == b"origin":
                origin = value if origin is None else origin
            elif name == b"x-request-id":
                request_id = request_id or value
            elif name == b"content-length":
                by_length = True
            elif name == b"transfer-encoding":
                by_chunks = True
        told = None if origin is None else origin.decode("latin-1")
        return cls(
            len(raw),
            size,
            hosts,
            host.decode("latin-1"),
            told,
            request_id.decode("latin-1"),
            by_length and by_chunks,
        )


class _Answer:
    """`send`, with the headers that every answer bears; remembers the status."""

    def __init__(
        self,
        send: Send,
        request_id: str,
        browsers: Browsers,
        origin: str | None,
        last: Callable[[], bool],
    ) -> None:
        """last: whether the connection shall close after this answer."""
        self._send = send
        self._last = last
        self._request_id = request_id
        self._browsers = browsers
        self._origin = origin
        self.status = 0

    async def empty(self, headers: Headers) -> None:
        """Answer with headers alone."""
        self.status = 204
        await self._send(
            {
                "type": "http.response.start",
                "status": 204,
                "headers": [*self._browsers.always, *headers],
            }
        )
        await self._send({"type": "http.response.body"})

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            given = {name.lower() for name, _ in headers}
            headers += [pair for pair in self._browsers.always if pair[0] not in given]
            headers += self._browsers.for_page(self._origin)
            headers.append((b"x-request-id", self._request_id.encode()))
            if self._last():
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)


@lru_cache(256)
def _hostname(host: str) -> str:
    """Host header -> name without port, lower case; an IPv6 address without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
