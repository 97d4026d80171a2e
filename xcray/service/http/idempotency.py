"""Idempotency keys: repeating a request that creates a resource returns the existing resource.

A key belongs to its tenant and to the resource, and lives as long as the resource. After a deletion
it can be used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Header, Request, Response

from xcray.service.http.etags import reply

IdempotencyKey: TypeAlias = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes the request safe to repeat: the same key and body return the same "
        "resource while it exists.",
    ),
]
REPLAYED_HEADER_SCHEMA: Final = {
    "Idempotency-Replayed": {"$ref": "#/components/headers/Idempotency-Replayed"}
}


def creation_reply(
    request: Request, view: Mapping[str, Any], etag: str, location: str, *, created: bool
) -> Response:
    """Return the reply to a creation: 201, or 200 if the idempotency key was used before."""
    replayed = {} if created else {"Idempotency-Replayed": "true"}
    return reply(
        request,
        view,
        etag,
        status=201 if created else 200,
        headers={"Location": location, **replayed},
    )


def replay_response(model: Any) -> dict[int | str, dict[str, Any]]:
    """Return the description of the reply to a key that was used before."""
    return {
        200: {
            "model": model,
            "description": "The key was used before: the resource created then.",
            "headers": REPLAYED_HEADER_SCHEMA,
        }
    }
