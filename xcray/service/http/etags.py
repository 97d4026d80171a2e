"""ETags: 304 for a client that has the current state, 412 for a change based on an outdated state.

An ETag is a counter of the store if there is one, otherwise a hash of the reply. It contains the
version of xcray, because another version may encode the same content differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel

from xcray import __version__
from xcray.errors import Conflict
from xcray.service.http.body import first_header
from xcray.service.http.problems import STATUS_OF_CODE

NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "Not modified."}}
_ENCODER: Final = msgspec.json.Encoder()


class PreconditionFailed(Conflict):
    """The resource has changed since the caller read it."""

    code = "PRECONDITION"


STATUS_OF_CODE[PreconditionFailed.code] = 412


def counter_etag(counter: int) -> str:
    """Return the ETag of a counted state."""
    return f'"{counter}-{__version__}"'


def content_etag(content: bytes) -> str:
    """Return the ETag of content without a counter."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def to_json(view: BaseModel | Mapping[str, Any]) -> bytes:
    """Return a view or a mapping as JSON; numbers that are not finite become null."""
    return view.model_dump_json().encode() if isinstance(view, BaseModel) else _ENCODER.encode(view)


def reply(
    request: Request,
    view: BaseModel | Mapping[str, Any] | bytes,
    etag: str | None = None,
    *,
    media_type: str = "application/json",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a view, or encoded bytes, with its ETag.

    The response is 304 without a body to a GET whose If-None-Match contains the ETag.
    """
    content = view if isinstance(view, bytes) else None
    if etag is None:
        content = to_json(view) if content is None else content  # type: ignore[arg-type]
        etag = content_etag(content)
    if request.method in ("GET", "HEAD") and _matches(
        first_header(request, b"if-none-match"), etag, weak=True
    ):
        return Response(status_code=304, headers={"ETag": etag, **(headers or {})})
    body = to_json(view) if content is None else content  # type: ignore[arg-type]
    return Response(body, status, media_type=media_type, headers={"ETag": etag, **(headers or {})})


def check_if_match(request: Request, etag: str, *, separator: str | None = None) -> None:
    """Raise PreconditionFailed if the request's If-Match does not contain this ETag.

    separator: compare ETags only up to this character.
    """
    header = first_header(request, b"if-match")
    if header is not None and separator is not None:
        header, etag = (
            ",".join(each.partition(separator)[0] for each in text.split(","))
            for text in (header, etag)
        )
    if header is not None and not _matches(header, etag, weak=False):
        raise PreconditionFailed(
            "it has changed since you read it: read it again before you change it", etag=etag
        )


def _matches(header: str | None, etag: str, *, weak: bool) -> bool:
    """Return whether a list of ETags contains one; `*` is any. weak: weak ETags match, too."""
    if header is None:
        return False
    listed = [part.strip() for part in header.split(",")]
    return "*" in listed or etag in (part.removeprefix("W/") if weak else part for part in listed)
