"""ETags: whoever has the newest state of a thing is told so (304), and whoever changes it may say which state they mean (412).

An ETag is a counter of the store where there is one, else a hash of the reply; it belongs to this version of xcray, because another
may spell the same thing differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import Header, Request, Response
from pydantic import BaseModel

from xcray import __version__
from xcray.errors import Conflict
from xcray.service.http.body import header
from xcray.service.http.problems import STATUS_OF_CODE

IfNoneMatch: TypeAlias = Annotated[
    str | None,
    Header(max_length=1000, description="ETags you have: 304 when one of them is still right."),
]
IfMatch: TypeAlias = Annotated[
    str | None,
    Header(max_length=1000, description="ETag of what you mean: 412 when it has changed."),
]
NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "What you have is still right."}
}
_ENCODER: Final = msgspec.json.Encoder()


class Changed(Conflict):
    """The thing is not as the caller believes it is."""

    code = "PRECONDITION"


STATUS_OF_CODE[Changed.code] = 412


def tag(counter: int) -> str:
    """The ETag of a counted state."""
    return f'"{counter}-{__version__}"'


def tag_of(content: bytes) -> str:
    """The ETag of a reply that nothing counts."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def written(view: BaseModel | Mapping[str, Any]) -> bytes:
    """A view, or its members, as JSON; numbers that are not finite become null."""
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
    """A view, or ready bytes, with its ETag; 304 without a body to a GET whose If-None-Match names it."""
    content = view if isinstance(view, bytes) else None
    if etag is None:
        content = written(view) if content is None else content  # type: ignore[arg-type]
        etag = tag_of(content)
    if request.method in ("GET", "HEAD") and _named(
        header(request, b"if-none-match"), etag, weak=True
    ):
        return Response(status_code=304, headers={"ETag": etag})
    body = written(view) if content is None else content  # type: ignore[arg-type]
    return Response(body, status, media_type=media_type, headers={"ETag": etag, **(headers or {})})


def expect(request: Request, etag: str, *, part: str | None = None) -> None:
    """Raise Changed when the request's If-Match names another state than this one. part: compare ETags up to that character."""
    given = header(request, b"if-match")
    if given is not None and part is not None:
        given, etag = (
            ",".join(each.partition(part)[0] for each in text.split(",")) for text in (given, etag)
        )
    if given is not None and not _named(given, etag, weak=False):
        raise Changed(
            "it has changed since you read it: read it again, and decide again", etag=etag
        )


def _named(given: str | None, etag: str, *, weak: bool) -> bool:
    """Whether a list of ETags holds one; `*` is any. weak: weak ones are good too."""
    if given is None:
        return False
    listed = [part.strip() for part in given.split(",")]
    return "*" in listed or etag in (part.removeprefix("W/") if weak else part for part in listed)
