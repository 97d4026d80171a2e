"""What browsers are told: headers that keep a page of ours from harm, and which pages of other origins may ask (CORS: none).

No cookie ever says who asks, so a page of another origin has no borrowed rights; those that the operator lists must send a key.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from xcray.service.settings import Settings

Headers = list[tuple[bytes, bytes]]

SECURE: Final[Headers] = [
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
METHODS: Final = b"GET, POST, PUT, DELETE"
SENT: Final = b"authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, x-request-id"
SEEN: Final = b"etag, location, ratelimit, ratelimit-policy, retry-after, x-request-id"
VARY: Final = (b"vary", b"Origin")


class Browsers:
    """Answers for browsers, by the settings."""

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(settings.cors_origins)
        self.always = (
            [*SECURE, HSTS]
            if settings.tls_certfile is not None or settings.behind_proxy
            else SECURE
        )

    def admits(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may change things at `host`."""
        try:
            return origin in self._origins or urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:  # brackets that are no address
            return False

    def for_page(self, origin: str | None) -> Headers:
        """Headers of an answer to a page of another origin: that it may read it, when it is listed."""
        if not self._origins:
            return []
        if origin not in self._origins:
            return [VARY]
        assert origin is not None
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", SEEN),
            VARY,
        ]

    def preflight(self, origin: str | None) -> Headers | None:
        """The answer to a browser that asks before it asks; None when the origin is not listed: it is a request like others."""
        if origin is None or origin not in self._origins:
            return None
        asked = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", SENT),
        ]
        return [*self.for_page(origin), *asked, (b"access-control-max-age", b"600")]
