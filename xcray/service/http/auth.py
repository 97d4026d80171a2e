"""Authentication: a key in the Authorization header, and its scopes.

`Authorization: Bearer xck_ID_SECRET`. Key lookups are cached for `REFRESH_SECONDS`, refreshed in
the background, and expire after `EXPIRY_SECONDS`, so a revoked key is refused everywhere within
five seconds. Only while the store does not answer, a key that was valid stays valid for
`grace_seconds` more, so that predictions survive a restart of the store.

A service whose store has no keys, listening on a loopback address, admits every caller as the
default tenant.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Request

from xcray.errors import Unavailable, XcrayError
from xcray.jobs.store import tokens
from xcray.jobs.store.keys import KeyTable
from xcray.jobs.store.tokens import KeyLimits
from xcray.service.observability.request_log import LOGGER

SCOPES: Final = frozenset(tokens.SCOPES)
NO_LIMITS: Final = KeyLimits()
MODELS_SCOPE: Final = "models"  # implied scope to read models: read and predict both have it
IMPLIED_SCOPES: Final = {
    "admin": SCOPES | {MODELS_SCOPE},
    "submit": frozenset({"read", MODELS_SCOPE}),
    "read": frozenset({MODELS_SCOPE}),
    "predict": frozenset({MODELS_SCOPE}),
    "metrics": frozenset(),
}
REFRESH_SECONDS: Final = 2.0  # a younger lookup is used as it is
EXPIRY_SECONDS: Final = 4.5  # an older lookup is repeated before the request goes on
TOUCH_SECONDS: Final = 60.0  # between two records that a key is in use
MAX_CACHED_KEYS: Final = 4096
MAX_CONCURRENT_LOOKUPS: Final = 64  # of keys that are not cached


class Unauthorised(XcrayError):
    """The caller cannot be identified."""

    code = "UNAUTHORISED"


class Forbidden(XcrayError):
    """The caller is known, but lacks the permission."""

    code = "FORBIDDEN"


@dataclass(frozen=True)
class Caller:
    """The caller of a request: tenant, scopes, key id (None without a key) and rate limits."""

    tenant: str = "default"
    scopes: frozenset[str] = SCOPES
    key_id: str | None = None
    limits: KeyLimits = NO_LIMITS

    def has_scope(self, scope: str) -> bool:
        """Return whether the caller has the scope, or one that implies it."""
        return scope in self.scopes or any(scope in IMPLIED_SCOPES[has] for has in self.scopes)


ANONYMOUS: Final = Caller()


class _KeyLookup:
    """Result of a key lookup in the store, and its time on the monotonic clock."""

    __slots__ = ("caller", "expires", "looked_up_at", "rejection")

    def __init__(
        self, looked_up_at: float, caller: Caller | None, expires: float | None, rejection: str
    ) -> None:
        self.looked_up_at = looked_up_at
        self.caller = caller
        self.expires = expires
        self.rejection = rejection


class Authenticator:
    """Authenticator of requests by key. One per event loop; only calls of `keys` leave the loop.

    keys: the store's keys. admits_everyone: whether callers without a key are admitted while the
    store has no keys. grace_seconds: how long a cached result is valid after `EXPIRY_SECONDS` while
    the store does not answer. clock: monotonic seconds. wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: KeyTable,
        *,
        admits_everyone: bool = True,
        grace_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._admits_everyone = admits_everyone
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._lookups: OrderedDict[bytes, _KeyLookup] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[_KeyLookup]] = {}
        self._touched_at: dict[str, float] = {}
        self._keyless_at: float | None = None  # last time the store had no keys
        self._has_keys = not admits_everyone  # stays true once the store has a key

    async def __call__(self, request: Request) -> Caller:
        """Return the caller. Raises Unauthorised, or Unavailable if the store does not answer."""
        now = self._clock()
        if not self._has_keys:
            if self._keyless_at is not None and now - self._keyless_at < REFRESH_SECONDS:
                return ANONYMOUS
            if await self._admits_without_key(now):
                return ANONYMOUS
        token = bearer_token(request)
        digest = hashlib.sha256(token).digest()
        lookup = self._lookups.get(digest)
        if lookup is None or now - lookup.looked_up_at >= EXPIRY_SECONDS:
            lookup = await self._look_up(digest, token, lookup)
        elif now - lookup.looked_up_at >= REFRESH_SECONDS:
            self._start_lookup(digest, token)
        if lookup.caller is None:
            raise Unauthorised(lookup.rejection)
        if lookup.expires is not None and self._wall_clock() >= lookup.expires:
            raise Unauthorised(
                "this key has expired: ask an operator for another (`xcray keys create`)",
                reason="expired",
            )
        return lookup.caller

    def note_key(self) -> None:
        """Refuse requests without a key from now on: this process has stored one."""
        self._has_keys = True

    def peek(self, request: Request) -> Caller | None:
        """Return the caller of a public path from the cache, without querying the store.

        None if the caller is not known.
        """
        now = self._clock()
        if not self._has_keys:
            return (
                ANONYMOUS
                if self._keyless_at is None
                or now - self._keyless_at < EXPIRY_SECONDS + self._grace_seconds
                else None
            )
        try:
            lookup = self._lookups.get(hashlib.sha256(bearer_token(request)).digest())
        except Unauthorised:
            return None
        live = (
            lookup is not None
            and now - lookup.looked_up_at < EXPIRY_SECONDS
            and (lookup.expires is None or self._wall_clock() < lookup.expires)
        )
        return lookup.caller if lookup is not None and live else None

    async def _admits_without_key(self, now: float) -> bool:
        """Return whether callers without a key are admitted, after a query of the store."""
        try:
            self._has_keys = await asyncio.to_thread(self._keys.has_any)
        except Unavailable:
            if (
                self._keyless_at is None
                or now - self._keyless_at >= EXPIRY_SECONDS + self._grace_seconds
            ):
                raise
            return True
        self._keyless_at = None if self._has_keys else now
        return not self._has_keys

    async def _look_up(
        self, digest: bytes, token: bytes, previous: _KeyLookup | None
    ) -> _KeyLookup:
        """Return the result of a lookup in the store.

        While the store does not answer, return the previous result within the grace period. Raises
        Unavailable.
        """
        if digest not in self._pending and len(self._pending) >= MAX_CONCURRENT_LOOKUPS:
            raise Unavailable(
                "too many unknown keys at once: try again in a second", code="BUSY", retry_after=1
            )
        try:
            return await asyncio.shield(self._start_lookup(digest, token))
        except Unavailable:
            if (
                previous is None
                or previous.caller is None
                or self._clock() - previous.looked_up_at >= EXPIRY_SECONDS + self._grace_seconds
            ):
                raise
            return previous

    def _start_lookup(self, digest: bytes, token: bytes) -> asyncio.Task[_KeyLookup]:
        """Return the lookup task of a key, and start one if needed; the result is cached."""
        task = self._pending.get(digest)
        if task is None:
            task = self._pending[digest] = asyncio.create_task(
                self._run_lookup(digest, token), name="key"
            )
            task.add_done_callback(lambda done: self._finish_lookup(digest, done))
        return task

    async def _run_lookup(self, digest: bytes, token: bytes) -> _KeyLookup:
        """Look a key up in a thread and cache the result.

        A full cache takes no further refused keys, so that they do not displace valid ones.
        """
        lookup = await asyncio.to_thread(self._read_key, token)
        is_full = len(self._lookups) >= MAX_CACHED_KEYS
        if lookup.caller is None and is_full and digest not in self._lookups:
            return lookup
        self._lookups[digest] = lookup
        self._lookups.move_to_end(digest)
        while len(self._lookups) > MAX_CACHED_KEYS:
            self._lookups.popitem(last=False)
        return lookup

    def _finish_lookup(self, digest: bytes, done: asyncio.Task[_KeyLookup]) -> None:
        """Remove a finished lookup from the pending ones; log its error."""
        del self._pending[digest]
        if not done.cancelled() and (error := done.exception()) is not None:
            LOGGER.warning(
                "cannot look up a key",
                extra={"detail": getattr(error, "message", type(error).__name__)},
            )

    def _read_key(self, bearer: bytes) -> _KeyLookup:
        """Return the result of a key lookup. Runs in a thread."""
        looked_up_at = self._clock()
        token = tokens.parse_token(bearer.decode("latin-1"))
        key = None if token is None else self._keys.find(token[1])
        if (
            token is None
            or key is None
            or key.id != token[0]
            or not hmac.compare_digest(key.digest, token[1])
        ):
            return _KeyLookup(
                looked_up_at,
                None,
                None,
                "unknown key: check that it is complete, or ask an operator for one",
            )
        if key.revoked is not None:
            return _KeyLookup(
                looked_up_at,
                None,
                None,
                "this key was revoked: ask an operator for another (`xcray keys create`)",
            )
        self._touch_key(key.id, looked_up_at)
        limits = KeyLimits(
            **{
                name: value
                for name, value in (key.limits or {}).items()
                if name in KeyLimits._fields
            }
        )
        return _KeyLookup(
            looked_up_at,
            Caller(key.tenant, frozenset(key.scopes), key.id, limits),
            key.expires,
            "",
        )

    def _touch_key(self, key_id: str, now: float) -> None:
        """Record from time to time that a key is in use. A failure does not refuse the key."""
        if now - self._touched_at.get(key_id, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        self._touched_at[key_id] = now
        try:
            self._keys.touch(key_id)
        except XcrayError as error:
            LOGGER.warning(
                "cannot record the use of a key", extra={"key": key_id, "detail": error.message}
            )


def bearer_token(request: Request) -> bytes:
    """Return the key of a request. Raises Unauthorised unless there is exactly one."""
    header: bytes | None = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            if header is not None:
                raise Unauthorised("there is more than one Authorization header: send one")
            header = value
    if header is None:
        raise Unauthorised(
            "this needs a key: send it as `Authorization: Bearer xck_...`; "
            "an operator creates one with `xcray keys create`"
        )
    kind, _, token = header.partition(b" ")
    if kind.lower() != b"bearer" or len(token) > 256:
        raise Unauthorised(
            "the Authorization header holds no key: send `Authorization: Bearer xck_...`"
        )
    return token.strip()


def require_scope(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that returns the caller if it has the scope.

    The dependency raises Forbidden otherwise.
    """
    if scope not in SCOPES and scope != MODELS_SCOPE:
        raise ValueError(f"unknown scope {scope!r}; choose one of {', '.join(sorted(SCOPES))}")

    async def caller(request: Request) -> Caller:
        current: Caller = request.scope["caller"]
        if not current.has_scope(scope):
            names = "read or predict" if scope == MODELS_SCOPE else scope
            raise Forbidden(f"this needs a key with the scope {names}", scope=scope)
        return current

    return caller


Reader: TypeAlias = Annotated[Caller, Depends(require_scope("read"))]
ModelReader: TypeAlias = Annotated[Caller, Depends(require_scope(MODELS_SCOPE))]
PredictCaller: TypeAlias = Annotated[Caller, Depends(require_scope("predict"))]
Submitter: TypeAlias = Annotated[Caller, Depends(require_scope("submit"))]
Admin: TypeAlias = Annotated[Caller, Depends(require_scope("admin"))]
