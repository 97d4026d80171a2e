"""Path prefix of a service behind a proxy, like /ml in https://host/ml/v1/models.

Routes know nothing of it. The edge middleware removes it from paths, if the proxy has not done so,
and adds it to `Location`. The pages use relative addresses.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.types import Scope

from xcray.errors import InputError, excerpt
from xcray.service.settings import ROOT_PATH

_SCOPE_KEY: Final = "path_prefix"
_Headers = list[tuple[bytes, bytes]]


class PathPrefix:
    """The prefix of requests: that of the setting, or that of a proxy that is trusted."""

    def __init__(self, root_path: str, *, trusts_header: bool) -> None:
        """Create it. trusts_header: whether `X-Forwarded-Prefix` replaces the setting."""
        self._root_path = root_path
        self._trusts_header = trusts_header

    def apply(self, scope: Scope, forwarded: bytes | None) -> str:
        """Return the prefix of a request, and remove it from its path.

        forwarded: the value of `X-Forwarded-Prefix`. Raises InputError BAD_HEADER.
        """
        prefix = self._root_path
        if forwarded is not None and self._trusts_header:
            prefix = _checked(forwarded.decode("latin-1").rstrip("/"))
        if prefix:
            scope[_SCOPE_KEY] = prefix
            if scope["path"].startswith(prefix + "/"):
                scope["path"] = scope["path"][len(prefix) :]
        return prefix


def prefix_of(request: Request) -> str:
    """Return the path prefix of a request; empty without one."""
    prefix: str = request.scope.get(_SCOPE_KEY, "")
    return prefix


def add_prefix(headers: _Headers, prefix: str) -> _Headers:
    """Return response headers whose `Location` has the prefix."""
    return [
        (name, prefix.encode() + value if name.lower() == b"location" else value)
        for name, value in headers
    ]


def _checked(prefix: str) -> str:
    """Return a prefix of a header. Raises InputError."""
    if prefix and not ROOT_PATH.fullmatch(prefix):
        raise InputError(
            f"X-Forwarded-Prefix {excerpt(prefix)!r} is not a path prefix: send one like /ml",
            code="BAD_HEADER",
        )
    return prefix
