"""Keyset pages: a token says after which row to go on, so pages stay right while rows come and go."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from xcray.errors import ParameterError

MOST = 1000  # rows a page


def page_start(page_token: str | None, limit: int) -> int | None:
    """The number a page begins below, or None for the first. ParameterError for a foreign token or a limit outside 1..1000."""
    if not 1 <= limit <= MOST:
        raise ParameterError(f"limit is {limit}: use 1 to {MOST}")
    if page_token is None:
        return None
    try:
        start = int(
            base64.urlsafe_b64decode(page_token[:64].encode()).decode().removeprefix("before:")
        )
    except (binascii.Error, ValueError):
        start = 0
    if not 0 < start < 1 << 62:
        raise ParameterError("page_token is not one that a list gave: leave it out to begin anew")
    return start


def page_token_after(rows: Sequence[Any], limit: int) -> str | None:
    """The token of the next page when one row more than `limit` was found."""
    return (
        base64.urlsafe_b64encode(f"before:{rows[limit - 1]['seq']}".encode()).decode()
        if len(rows) > limit
        else None
    )
