"""The inner wall: who asks is found out, counted and, of changes, written down before any route sees a request.

A path is closed unless it is named here, so a route that forgets to ask for a scope is still not open to strangers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import InputError
from xcray.service.http.audit import SAFE, Auditor
from xcray.service.http.auth import Authenticator, Caller, Forbidden, Unauthorised
from xcray.service.http.limits import Limiter, Ticket
from xcray.service.observability.request_log import tell
from xcray.service.settings import Settings
from xcray.storage.atomic import check_name

OPEN: Final = frozenset({"/", "/v2", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
OPEN_FOLDER: Final = "/static/"


class Gate:
    """ASGI middleware within the guard. Leaves the caller (None: a stranger at an open path) and a ticket in the scope."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        authenticate: Callable[[Request], Awaitable[Caller]],
        limits: Limiter,
        auditor: Auditor,
    ) -> None:
        self._app = app
        self._auditor = auditor
        self._authenticate = authenticate
        self._limits = limits
        closed = {
            "/docs": settings.open_docs,
            "/openapi.json": settings.open_docs,
            "/metrics": settings.metrics_open,
        }
        self._pages = frozenset(path for path, is_open in closed.items() if not is_open)
        self._open = OPEN | (frozenset(closed) - self._pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when its caller may be here. Raises Unauthorised, Forbidden, Limited, Unavailable."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path in self._open or path.startswith(OPEN_FOLDER):
            scope["caller"] = self._known(scope)
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticate(Request(scope))
        except Unauthorised as error:
            await self._auditor.refused(scope, error.message)
            raise
        if path in self._pages and caller.key_id is not None and not caller.may("admin"):
            raise Forbidden("this page needs a key with the scope admin", scope="admin")
        tell(tenant=caller.tenant, key=caller.key_id)
        scope["caller"] = caller if not scope["query_string"] else _as_asked(scope, caller)
        client = scope.get("client")
        ticket = scope["ticket"] = self._limits.admit(caller, client[0] if client else "")
        if caller.limits.requests_per_minute is not None:
            send = _telling(send, ticket)
        if scope["method"] not in SAFE:
            send = self._auditing(scope, scope["caller"], send)
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.close()

    def _auditing(self, scope: Scope, caller: Caller, send: Send) -> Send:
        """`send` that has a change written down before its answer goes out."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                location = next(
                    (
                        value.decode("latin-1")
                        for name, value in message.get("headers", ())
                        if name == b"location"
                    ),
                    None,
                )
                await self._auditor.changed(scope, caller, message["status"], location)
            await send(message)

        return noted

    def _known(self, scope: Scope) -> Caller | None:
        """Who asks at an open path, as far as that costs nothing."""
        return (
            self._authenticate.peek(Request(scope))
            if isinstance(self._authenticate, Authenticator)
            else None
        )


def _as_asked(scope: Scope, caller: Caller) -> Caller:
    """The caller, for admin with the tenant that `?tenant=` names. Raises Forbidden for others, InputError."""
    if b"tenant=" not in scope["query_string"]:
        return caller
    asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get(
        "tenant", []
    )
    if len(asked) > 1:
        raise InputError("there is more than one tenant in the query: name one", code="TENANT")
    if not asked or asked[0] == caller.tenant:
        return caller
    if not caller.may("admin"):
        raise Forbidden("only a key with the scope admin may name a tenant", scope="admin")
    return replace(caller, tenant=check_name(asked[0]))


def _telling(send: Send, ticket: Ticket) -> Send:
    """`send` that tells a caller how much is left."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *ticket.headers()]
        await send(message)

    return told
