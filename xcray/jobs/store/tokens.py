"""API key tokens: `xck_ID_SECRET`, shown once. The store keeps the SHA-256 of the secret.

The secret has 256 random bits, so it cannot be guessed, and a plain digest reveals nothing of it.
It can be generated elsewhere from random letters and digits, for example in Helm: `printf
"xck_%s_%s" (randAlpha 20 | lower) (randAlphaNum 43)`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from xcray.errors import ParameterError, excerpt
from xcray.jobs.job import new_id

SCOPES: Final = ("read", "predict", "submit", "metrics", "admin")
TOKEN_PATTERN: Final = re.compile(r"xck_([a-z2-7]{20})_([A-Za-z0-9_-]{43})")
SECRET_BYTES: Final = 32
MAX_LIMIT: Final = 2**60
# Distinct characters: 43 random letters and digits have 31. Fewer than 16 occur once in 10^11.
MIN_DISTINCT_CHARS: Final = 16
# Equal steps between characters, as in abcdef or ababab. By chance 12 are even rarer.
EQUAL_STEPS_LIMIT: Final = 12


class KeyLimits(NamedTuple):
    """The limits of a key. None means the limit in the settings.

    max_running, max_queued: jobs of its tenant. requests_per_minute, instances_per_minute: of this
    key, per process. upload_bytes: of its tenant, received and not yet part of a data set.
    """

    max_running: int | None = None
    max_queued: int | None = None
    requests_per_minute: int | None = None
    instances_per_minute: int | None = None
    upload_bytes: int | None = None


class NewToken(NamedTuple):
    """A new key: its id, the token that its owner sees once, and the digest for the store."""

    key_id: str
    token: str
    digest: str


def create_token() -> NewToken:
    """Return a new random key."""
    key_id, secret = new_id("key"), secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(key_id, f"xck_{key_id.removeprefix('key_')}_{secret}", secret_digest(secret))


def import_token(text: str) -> NewToken:
    """Return a key that was generated elsewhere, read from text; outer whitespace is ignored.

    Raises ParameterError, code SECRET, if it is not a valid key or is evidently not random. The
    message reveals nothing of it. Randomness cannot be proven: use a generator for secrets.
    """
    token = text.strip()
    match = TOKEN_PATTERN.fullmatch(token)
    if match is None or not _looks_random(match[2]):
        problem = (
            "does not look random"
            if match
            else "is not a valid key: xck_, 20 of a-z and 2-7, _, 43 of A-Z, a-z, 0-9, - and _"
        )
        raise ParameterError(
            f"the secret {problem}; make one by `xcray keys secret`", code="SECRET"
        )
    return NewToken(f"key_{match[1]}", token, secret_digest(match[2]))


def _looks_random(secret: str) -> bool:
    """Return whether a secret has enough distinct characters and no repeated step."""
    codes = secret.encode()
    steps = (
        Counter(b - a for a, b in zip(codes, codes[lag:], strict=False)) for lag in range(1, 9)
    )
    return len(set(codes)) >= MIN_DISTINCT_CHARS and all(
        max(each.values()) < EQUAL_STEPS_LIMIT for each in steps
    )


def secret_digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal, as the store keeps it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_token(token: str) -> tuple[str, str] | None:
    """Return (id of the key, digest of the secret) of a token, or None if it is invalid."""
    match = TOKEN_PATTERN.fullmatch(token)
    return None if match is None else (f"key_{match[1]}", secret_digest(match[2]))


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """Return scopes without repeats, in the order of SCOPES. Raises ParameterError."""
    requested = set(scopes)
    unknown = sorted(requested - set(SCOPES))
    if unknown or not requested:
        problem = f"there is no scope {excerpt(unknown[0])!r}" if unknown else "a key needs a scope"
        raise ParameterError(f"{problem}: use {', '.join(SCOPES)}", code="SCOPE")
    return [scope for scope in SCOPES if scope in requested]


def check_limits(limits: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits of a key as the store keeps them. Raises ParameterError."""
    for name, value in limits.items():
        if name not in KeyLimits._fields:
            raise ParameterError(
                f"there is no limit {excerpt(str(name))!r}: use {', '.join(KeyLimits._fields)}",
                code="LIMIT",
            )
        if type(value) is not int or not 0 <= value <= MAX_LIMIT:
            raise ParameterError(
                f"limit {name} must be an integer from 0 to {MAX_LIMIT}", code="LIMIT"
            )
    return dict(limits)
