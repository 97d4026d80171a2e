"""Who asks: a key in the Authorization header, and what it may do.

`Authorization: Bearer xck_ID_SECRET`. What the store says of a key is remembered for `FRESH` seconds, asked again behind the scenes
until `STALE`, and never believed longer than that: a key that is revoked is refused everywhere within five seconds. Only while the
store does not answer may a key that was good be good for `keys_grace_seconds` more, so that predictions outlive its restart.

A service whose store holds no key at all, on an address that only its own machine reaches, admits everybody as the only tenant.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol, TypeAlias

from fastapi import Depends, Request

from xcray.errors import Unavailable, XcrayError
from xcray.jobs.store import tokens
from xcray.jobs.store.keys import Key
from xcray.jobs.store.tokens import Limits
from xcray.service.observability.request_log import LOGGER

SCOPES: Final = frozenset(tokens.SCOPES)
NO_LIMITS: Final = Limits()
MODELS: Final = "models"  # what is needed to read models: read and predict both have it
IMPLIED: Final = {
    "admin": SCOPES | {MODELS},
    "submit": frozenset({"read", MODELS}),
    "read": frozenset({MODELS}),
    "predict": frozenset({MODELS}),
}
FRESH: Final = 2.0  # seconds an answer of the store is believed without a word
STALE: Final = 4.5  # seconds after which it is asked before anything else happens
TOUCH: Final = 60.0  # seconds between two notes that a key was used
REMEMBERED: Final = 4096  # keys
ASKED_AT_ONCE: Final = 64  # unknown keys the store is asked about at the same time


class Unauthorised(XcrayError):
    """Nobody knows who asks."""

    code = "UNAUTHORISED"


class Forbidden(XcrayError):
    """The caller is known, but not allowed to do this."""

    code = "FORBIDDEN"


@dataclass(frozen=True)
class Caller:
    """Who asks: the tenant whose things they see, what they may do, by which key (None: by none), and what limits it has."""

    tenant: str = "default"
    scopes: frozenset[str] = SCOPES
    key_id: str | None = None
    limits: Limits = NO_LIMITS

    def may(self, scope: str) -> bool:
        """Whether a scope, or one that implies it, is among theirs."""
        return scope in self.scopes or any(scope in IMPLIED[has] for has in self.scopes)


ANYBODY: Final = Caller()


async def anybody(request: Request) -> Caller:
    """The Authenticator of a service that knows no keys."""
    return ANYBODY


class Keys(Protocol):
    """What is needed of the store."""

    def find_key(self, digest: str) -> Key | None:
        """The key whose secret has this digest."""

    def has_keys(self) -> bool:
        """Whether there is any key, also revoked ones."""

    def touch_key(self, key_id: str) -> object:
        """Note that a key was used now."""


class _Seen:
    """What the store said of a key, and when it was asked (by a clock that never jumps)."""

    __slots__ = ("asked", "caller", "expires", "problem")

    def __init__(
        self, asked: float, caller: Caller | None, expires: float | None, problem: str
    ) -> None:
        self.asked = asked
        self.caller = caller
        self.expires = expires
        self.problem = problem


class Authenticator:
    """Finds the caller of a request. One to an event loop; all its methods but those of `keys` stay on that.

    keys: the store. admits_all: whether everybody is admitted while the store holds no key. grace: seconds for which a key, or the
    lack of any, is believed after `STALE` while the store does not answer. steady, now: seconds of a clock that never jumps, and of
    the world.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        admits_all: bool = True,
        grace: float = 60.0,
        steady: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._admits_all = admits_all
        self._grace = grace
        self._steady = steady
        self._now = now
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Seen]] = {}
        self._touched: dict[str, float] = {}
        self._keyless: float | None = None  # when the store last said that it holds no key
        self._keyed = not admits_all  # it holds one: that lasts

    async def __call__(self, request: Request) -> Caller:
        """The caller. Raises Unauthorised; Unavailable when the store can't be asked."""
        steady = self._steady()
        if not self._keyed:
            if self._keyless is not None and steady - self._keyless < FRESH:
                return ANYBODY
            if await self._look_for_keys(steady):
                return ANYBODY
        given = bearer(request)
        mark = hashlib.sha256(given).digest()
        seen = self._seen.get(mark)
        if seen is None or steady - seen.asked >= STALE:
            seen = await self._known(mark, given, seen)
        elif steady - seen.asked >= FRESH:
            self._ask(mark, given)
        if seen.caller is None:
            raise Unauthorised(seen.problem)
        if seen.expires is not None and self._now() >= seen.expires:
            raise Unauthorised(
                "this key has expired: ask an operator for another (`xcray keys create`)",
                reason="expired",
            )
        return seen.caller

    def peek(self, request: Request) -> Caller | None:
        """The caller of a request that anybody may make, as far as it is known without asking the store; None for a stranger."""
        steady = self._steady()
        if not self._keyed:
            return (
                ANYBODY
                if self._keyless is None or steady - self._keyless < STALE + self._grace
                else None
            )
        try:
            seen = self._seen.get(hashlib.sha256(bearer(request)).digest())
        except Unauthorised:
            return None
        live = (
            seen is not None
            and steady - seen.asked < STALE
            and (seen.expires is None or self._now() < seen.expires)
        )
        return seen.caller if seen is not None and live else None

    async def _look_for_keys(self, steady: float) -> bool:
        """Whether everybody is admitted, as the store says now."""
        try:
            self._keyed = await asyncio.to_thread(self._keys.has_keys)
        except Unavailable:
            if self._keyless is None or steady - self._keyless >= STALE + self._grace:
                raise
            return True
        self._keyless = None if self._keyed else steady
        return not self._keyed

    async def _known(self, mark: bytes, given: bytes, old: _Seen | None) -> _Seen:
        """What the store says of a key now; what it said, for a while, when it does not answer."""
        if mark not in self._asking and len(self._asking) >= ASKED_AT_ONCE:
            raise Unavailable(
                "too many unknown keys at once: try again in a second", code="BUSY", retry_after=1
            )
        try:
            return await asyncio.shield(self._ask(mark, given))
        except Unavailable:
            if (
                old is None
                or old.caller is None
                or self._steady() - old.asked >= STALE + self._grace
            ):
                raise
            return old

    def _ask(self, mark: bytes, given: bytes) -> asyncio.Task[_Seen]:
        """Ask the store in a thread, once at a time for each key; what it says is remembered."""
        task = self._asking.get(mark)
        if task is None:
            task = self._asking[mark] = asyncio.create_task(self._asked(mark, given), name="key")
            task.add_done_callback(lambda done: self._noted(mark, done))
        return task

    async def _asked(self, mark: bytes, given: bytes) -> _Seen:
        """The work of `_ask`."""
        seen = await asyncio.to_thread(self._look, given)
        self._seen[mark] = seen
        self._seen.move_to_end(mark)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def _noted(self, mark: bytes, done: asyncio.Task[_Seen]) -> None:
        """A question was answered, or not."""
        del self._asking[mark]
        if not done.cancelled() and (error := done.exception()) is not None:
            LOGGER.warning(
                "a key can't be looked up",
                extra={"detail": getattr(error, "message", type(error).__name__)},
            )

    def _look(self, given: bytes) -> _Seen:
        """What the store says of a key. In a thread."""
        asked = self._steady()
        token = tokens.read_token(given.decode("latin-1"))
        found = None if token is None else self._keys.find_key(token[1])
        if (
            token is None
            or found is None
            or found.id != token[0]
            or not hmac.compare_digest(found.digest, token[1])
        ):
            return _Seen(
                asked,
                None,
                None,
                "nobody knows this key: check that it is whole, or ask an operator for one",
            )
        if found.revoked is not None:
            return _Seen(
                asked,
                None,
                None,
                "this key was revoked: ask an operator for another (`xcray keys create`)",
            )
        self._touch(found.id, asked)
        limits = Limits(
            **{
                name: value
                for name, value in (found.limits or {}).items()
                if name in Limits._fields
            }
        )
        return _Seen(
            asked,
            Caller(found.tenant, frozenset(found.scopes), found.id, limits),
            found.expires,
            "",
        )

    def _touch(self, key_id: str, steady: float) -> None:
        """Note now and then that a key is in use; that it can't be noted now is no reason to refuse it."""
        if steady - self._touched.get(key_id, -TOUCH) < TOUCH:
            return
        self._touched[key_id] = steady
        try:
            self._keys.touch_key(key_id)
        except XcrayError as error:
            LOGGER.warning(
                "the use of a key can't be noted", extra={"key": key_id, "detail": error.message}
            )


def bearer(request: Request) -> bytes:
    """The key that a request bears. Raises Unauthorised when it bears none, or more than one."""
    found: bytes | None = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            if found is not None:
                raise Unauthorised("there is more than one Authorization header: send one")
            found = value
    if found is None:
        raise Unauthorised(
            "this needs a key: send it as `Authorization: Bearer xck_...`; an operator makes one by `xcray keys create`"
        )
    kind, _, given = found.partition(b" ")
    if kind.lower() != b"bearer" or len(given) > 256:
        raise Unauthorised(
            "the Authorization header holds no key: send `Authorization: Bearer xck_...`"
        )
    return given.strip()


def needs(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller that the gate found, when they have the scope. Raises Forbidden."""
    if scope not in SCOPES and scope != MODELS:
        raise ValueError(f"there is no scope {scope!r}; there are {', '.join(sorted(SCOPES))}")

    async def caller(request: Request) -> Caller:
        found: Caller = request.scope["caller"]
        if not found.may(scope):
            wanted = "read or predict" if scope == MODELS else scope
            raise Forbidden(f"this needs a key with the scope {wanted}", scope=scope)
        return found

    return caller


Reader: TypeAlias = Annotated[Caller, Depends(needs("read"))]
ModelReader: TypeAlias = Annotated[Caller, Depends(needs(MODELS))]
Asker: TypeAlias = Annotated[Caller, Depends(needs("predict"))]
Submitter: TypeAlias = Annotated[Caller, Depends(needs("submit"))]
Admin: TypeAlias = Annotated[Caller, Depends(needs("admin"))]
