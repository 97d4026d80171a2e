"""Idempotency keys: sending a request again that makes something gives what was made, not a second one.

A key belongs to its tenant and to what it made, and lives as long as that: after a deletion it may be used anew.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from fastapi import Header

IdempotencyKey: TypeAlias = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes it safe to send this again: the same key and body give the same thing, as long as that exists.",
    ),
]
REPLAYED: Final = {"Idempotency-Replayed": "true"}
HEADER: Final = {"Idempotency-Replayed": {"$ref": "#/components/headers/Idempotency-Replayed"}}


def replayed(model: Any) -> dict[int | str, dict[str, Any]]:
    """The description of the reply to a key that was used before."""
    return {
        200: {
            "model": model,
            "description": "The key was used before: what was made then.",
            "headers": HEADER,
        }
    }
