"""Access middleware: authentication, rate limits and the audit log, before any route runs.

A path is closed unless it is listed here, so a route without a scope check is still not public.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xcray.errors import InputError
from xcray.service import constants
from xcray.service.http.audit import READ_ONLY, SAFE_METHODS, Auditor, action_of
from xcray.service.http.auth import Authenticator, Caller, Forbidden, Unauthorised
from xcray.service.http.limits import FailedKeys, Limiter, Ticket
from xcray.service.observability.request_log import add_log_context
from xcray.service.settings import Settings
from xcray.storage.atomic import check_name

PUBLIC_PATHS: Final = frozenset(
    {"/", "/docs", "/v2", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}
)
OPERATOR_PAGES: Final = {"/openapi.json": "admin", "/metrics": "metrics"}  # their scopes
STATIC_PREFIX: Final = "/static/"


class AccessMiddleware:
    """ASGI middleware inside the edge middleware.

    It puts the caller (None for an anonymous caller of a public path) and a ticket into the scope.
    """

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
        self._failed_keys = FailedKeys(constants.FAILED_KEYS_PER_MINUTE)
        is_open = {"/openapi.json": settings.public_docs, "/metrics": settings.public_metrics}
        self._operator_pages = {
            path: scope for path, scope in OPERATOR_PAGES.items() if not is_open[path]
        }
        self._public_paths = PUBLIC_PATHS | (OPERATOR_PAGES.keys() - self._operator_pages.keys())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its caller has access.

        Raises Unauthorised, Forbidden, RateLimited or Unavailable.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path in self._public_paths or path.startswith(STATIC_PREFIX):
            scope["caller"] = self._peek_caller(scope)
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticate(Request(scope))
        except Unauthorised as error:
            await self._auditor.record_refusal(scope, error.message)
            self._failed_keys.count(_address_of(scope))
            raise
        needed = self._operator_pages.get(path)
        if needed is not None and caller.key_id is not None and not caller.has_scope(needed):
            raise Forbidden(f"this page needs a key with the scope {needed}", scope=needed)
        add_log_context(tenant=caller.tenant, key=caller.key_id)
        scope["caller"] = (
            caller if not scope["query_string"] else _with_requested_tenant(scope, caller)
        )
        ticket = scope["ticket"] = self._limits.admit(caller, _address_of(scope))
        if caller.limits.requests_per_minute is not None:
            send = _send_with_rate_limits(send, ticket)
        if scope["method"] not in SAFE_METHODS:
            send = self._send_audited(scope, scope["caller"], send)
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.close()

    def _send_audited(self, scope: Scope, caller: Caller, send: Send) -> Send:
        """Return a `send` that writes the audit entry of a change before the response goes out."""

        async def send_audited(message: Message) -> None:
            if message["type"] == "http.response.start" and action_of(scope) != READ_ONLY:
                location = next(
                    (
                        value.decode("latin-1")
                        for name, value in message.get("headers", ())
                        if name == b"location"
                    ),
                    None,
                )
                await self._auditor.record_change(scope, caller, message["status"], location)
            await send(message)

        return send_audited

    def _peek_caller(self, scope: Scope) -> Caller | None:
        """Return the caller of a public path if the cache has it; the store is not queried."""
        return (
            self._authenticate.peek(Request(scope))
            if isinstance(self._authenticate, Authenticator)
            else None
        )


def _address_of(scope: Scope) -> str:
    """Return the address of the connection: of the client, or of a proxy. Headers do not count."""
    client = scope.get("client")
    return client[0] if client else ""


def _with_requested_tenant(scope: Scope, caller: Caller) -> Caller:
    """Return the caller, for the scope admin with the tenant of the query parameter `tenant`.

    Raises Forbidden for other callers, InputError for an invalid parameter.
    """
    if b"tenant=" not in scope["query_string"]:
        return caller
    tenants = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get(
        "tenant", []
    )
    if len(tenants) > 1:
        raise InputError("there is more than one tenant in the query: name one", code="TENANT")
    if not tenants or tenants[0] == caller.tenant:
        return caller
    if not caller.has_scope("admin"):
        raise Forbidden("only a key with the scope admin can name a tenant", scope="admin")
    return replace(caller, tenant=check_name(tenants[0]))


def _send_with_rate_limits(send: Send, ticket: Ticket) -> Send:
    """Return a `send` that adds the rate limit headers to the response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *ticket.rate_limit_headers()]
        await send(message)

    return send_with_headers
