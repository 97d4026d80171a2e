"""What a key is: `xck_ID_SECRET`, shown once; the store keeps the SHA-256 of the secret, its scopes, its end and its limits.

The secret has 256 random bits, so nobody finds one by trying, and a plain digest tells nothing of it. It may be made
elsewhere, by what draws letters and digits at random: in Helm `printf "xck_%s_%s" (randAlpha 20 | lower) (randAlphaNum 43)`.
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

SCOPES: Final = ("read", "predict", "submit", "admin")
TOKEN: Final = re.compile(r"xck_([a-z2-7]{20})_([A-Za-z0-9_-]{43})")
SECRET_BYTES: Final = 32
SPAN: Final = re.compile(r"([1-9][0-9]{0,6})([smhdw])")
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_LIMIT: Final = 2**60
FEWEST_CHARACTERS: Final = (
    16  # different ones: 43 random letters and digits have 31, and fewer than these once in 10^11
)
MOST_STEPS: Final = 12  # equal steps from a character to a later one, as in abcdef or ababab; by chance 12 are rarer than that


class Limits(NamedTuple):
    """What a key may have at most; None: what the settings say.

    max_running, max_queued: jobs of its tenant. requests_per_minute, instances_per_minute: of this key, by each process.
    upload_bytes: of its tenant, received and not yet part of a data set.
    """

    max_running: int | None = None
    max_queued: int | None = None
    requests_per_minute: int | None = None
    instances_per_minute: int | None = None
    upload_bytes: int | None = None


class NewToken(NamedTuple):
    """A key just made: the id its record has, what its owner is shown once, and what the store keeps."""

    key_id: str
    token: str
    digest: str


def new_token() -> NewToken:
    """A key that nobody has."""
    key_id, secret = new_id("key"), secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(key_id, f"xck_{key_id.removeprefix('key_')}_{secret}", digest_of(secret))


def given_token(text: str) -> NewToken:
    """A key that was made elsewhere, as read from a file: blanks and line ends around it do not count.

    Raises ParameterError, code SECRET, which tells nothing of it, when it is no key or its secret was plainly not drawn at
    random. That it is random nobody can check: use a generator made for secrets.
    """
    token = text.strip()
    found = TOKEN.fullmatch(token)
    if found is None or not _looks_random(found[2]):
        problem = (
            "does not look random"
            if found
            else "is no key: xck_, 20 of a-z and 2-7, _, 43 of A-Z, a-z, 0-9, - and _"
        )
        raise ParameterError(
            f"the secret {problem}; make one by `xcray keys secret`", code="SECRET"
        )
    return NewToken(f"key_{found[1]}", token, digest_of(found[2]))


def _looks_random(secret: str) -> bool:
    """Whether a secret has neither few characters nor the same step again and again."""
    codes = secret.encode()
    steps = (
        Counter(b - a for a, b in zip(codes, codes[lag:], strict=False)) for lag in range(1, 9)
    )
    return len(set(codes)) >= FEWEST_CHARACTERS and all(
        max(each.values()) < MOST_STEPS for each in steps
    )


def digest_of(secret: str) -> str:
    """What the store keeps of a secret: SHA-256, in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_token(token: str) -> tuple[str, str] | None:
    """(id of the key, digest of the secret) of what somebody sent; None when it is no key."""
    found = TOKEN.fullmatch(token)
    return None if found is None else (f"key_{found[1]}", digest_of(found[2]))


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """Scopes without repeats, in the order of SCOPES. Raises ParameterError for none, or one that does not exist."""
    asked = set(scopes)
    unknown = sorted(asked - set(SCOPES))
    if unknown or not asked:
        problem = f"there is no scope {excerpt(unknown[0])!r}" if unknown else "a key needs a scope"
        raise ParameterError(f"{problem}: use {', '.join(SCOPES)}", code="SCOPE")
    return [scope for scope in SCOPES if scope in asked]


def check_limits(limits: Mapping[str, Any]) -> dict[str, int]:
    """Limits of a key as the store keeps them. Raises ParameterError for an unknown name or a number below 0."""
    for name, value in limits.items():
        if name not in Limits._fields:
            raise ParameterError(
                f"there is no limit {excerpt(str(name))!r}: use {', '.join(Limits._fields)}",
                code="LIMIT",
            )
        if type(value) is not int or not 0 <= value <= MOST_LIMIT:
            raise ParameterError(
                f"limit {name} must be an integer from 0 to {MOST_LIMIT}", code="LIMIT"
            )
    return dict(limits)


def read_span(text: str) -> float:
    """Seconds of `90d`, `12h`, `30m`, `10s` or `2w`. Raises ParameterError."""
    found = SPAN.fullmatch(text.strip())
    if found is None:
        raise ParameterError(
            f"{excerpt(text)!r} is not a span of time: write one like 90d, 12h or 30m", code="SPAN"
        )
    return float(int(found[1]) * SECONDS[found[2]])
