"""Token that a Ray cluster requires from its clients."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

TOKEN_HEADER: Final = "Authorization"


def auth_environment(token_path: Path | str) -> dict[str, str]:
    """Return settings that make Ray require and send the token of a file.

    The token itself is never in the environment.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def write_token(path: Path) -> None:
    """Write a token of 256 random bits to a file that only its owner can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(secrets.token_hex(32))


def auth_header(token_path: Path) -> dict[str, str]:
    """Return the HTTP header with the token of a file, for Ray's dashboard."""
    return {TOKEN_HEADER: f"Bearer {token_path.read_text().strip()}"}
