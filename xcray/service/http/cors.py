"""Browser policy: security headers of responses, and the origins that can use the API (CORS).

No origin is admitted by default. The service uses no cookies, so a page of another origin has no
implicit credentials; pages of the listed origins must send a key.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from xcray.service.settings import Settings

Headers = list[tuple[bytes, bytes]]

SECURITY_HEADERS: Final[Headers] = [
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
ALLOWED_METHODS: Final = b"GET, POST, PUT, DELETE"
ALLOWED_HEADERS: Final = (
    b"authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, "
    b"x-request-id"
)
EXPOSED_HEADERS: Final = b"etag, location, ratelimit, ratelimit-policy, retry-after, x-request-id"
VARY: Final = (b"vary", b"Origin")


class CorsPolicy:
    """Headers for browsers, based on the settings."""

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(settings.cors_origins)
        self.security_headers = (
            [*SECURITY_HEADERS, HSTS]
            if settings.tls_certfile is not None or settings.behind_proxy
            else SECURITY_HEADERS
        )
        self._security_names = frozenset(name for name, _ in self.security_headers)

    def missing_security_headers(self, present: set[bytes]) -> Headers:
        """Return the security headers that are not among the names of the present ones."""
        if self._security_names.isdisjoint(present):
            return self.security_headers
        return [pair for pair in self.security_headers if pair[0] not in present]

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether a page of `origin` can send changes to `host`."""
        try:
            return origin in self._origins or urlsplit(origin).netloc.lower() == host.lower()
        # Brackets that do not enclose an address.
        except ValueError:
            return False

    def response_headers(self, origin: str | None) -> Headers:
        """Return the CORS headers of a response to a page of `origin`."""
        if not self._origins:
            return []
        if origin not in self._origins:
            return [VARY]
        assert origin is not None
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            VARY,
        ]

    def preflight_headers(self, origin: str | None) -> Headers | None:
        """Return the headers of a preflight response.

        None if the origin is not listed; the request is then handled like any other.
        """
        if origin is None or origin not in self._origins:
            return None
        allowed = [
            (b"access-control-allow-methods", ALLOWED_METHODS),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
        ]
        return [*self.response_headers(origin), *allowed, (b"access-control-max-age", b"600")]
