"""Who asks. Every route under /v1 asks this room; today everybody is the only tenant, with all scopes.

Keys come here later: an Authenticator that reads the Authorization header and raises Unauthorised. Routes stay as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Request

from xcray.errors import XcrayError

SCOPES: Final = frozenset({"read", "predict", "submit", "admin"})


class Forbidden(XcrayError):
    """The caller is known, but not allowed to do this."""

    code = "FORBIDDEN"


@dataclass(frozen=True)
class Caller:
    """Who asks: the tenant whose things they see, and what they may do."""

    tenant: str = "default"
    scopes: frozenset[str] = SCOPES


async def anybody(request: Request) -> Caller:
    """The Authenticator of a service that only its own machine reaches."""
    return Caller()


def needs(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, when they have the scope. Raises Forbidden."""
    if scope not in SCOPES:
        raise ValueError(f"there is no scope {scope!r}; there are {', '.join(sorted(SCOPES))}")

    async def caller(request: Request) -> Caller:
        found: Caller = await request.app.state.authenticate(request)
        if scope not in found.scopes:
            raise Forbidden(f"this needs a key with the scope {scope!r}", scope=scope)
        return found

    return caller


Reader: TypeAlias = Annotated[Caller, Depends(needs("read"))]
Asker: TypeAlias = Annotated[Caller, Depends(needs("predict"))]
Submitter: TypeAlias = Annotated[Caller, Depends(needs("submit"))]
