"""How much one caller may ask: requests and instances a minute, requests at the same time; and how much all bodies may hold.

A caller is a key, or without keys an address (of IPv6 the network of 64 bits that a machine has to itself). Each process counts for
itself: with W processes a key may do up to W times as much. A bucket holds a minute's worth and fills evenly, so a burst is allowed
and the mean is kept. A request for more instances than are left is taken, and paid for by those that follow.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Any, Final

from xcray.errors import Unavailable
from xcray.service.http.auth import Caller
from xcray.service.settings import Settings

ACCOUNTS: Final = 10_000  # callers remembered; those that ask nothing are forgotten first
MINUTE: Final = 60.0


class Limited(Unavailable):
    """A caller asks too much; it is told when to come again."""

    code = "RATE_LIMIT"


class Bucket:
    """What is left of `per_minute`. Not for threads."""

    __slots__ = ("at", "level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.level = float(per_minute)
        self.at = now

    def take(self, n: int, now: float) -> float:
        """0 when `n` are taken; else the seconds until anything is left. As long as anything is, more than is left is taken."""
        self.level = min(
            float(self.per_minute), self.level + (now - self.at) * self.per_minute / MINUTE
        )
        self.at = now
        if self.level >= min(n, 1):
            self.level -= n
            return 0.0
        return (min(n, 1) - self.level) * MINUTE / self.per_minute if self.per_minute else MINUTE


class _Account:
    """What one caller has asked."""

    __slots__ = ("instances", "requests", "running")

    def __init__(self, requests: Bucket | None, instances: Bucket | None) -> None:
        self.requests = requests
        self.instances = instances
        self.running = 0


class Ticket:
    """One request under way. `close` gives back what it holds."""

    __slots__ = ("_account", "_held", "_room")

    def __init__(self, account: _Account, room: Limiter) -> None:
        self._account = account
        self._room = room
        self._held = 0
        account.running += 1

    def hold(self, n: int) -> None:
        """`n` more bytes of its body are in memory. Raises Unavailable when all bodies together would be too many."""
        self._room.hold(n)
        self._held += n

    def count(self, instances: int) -> None:
        """It asks for so many predictions. Raises Limited."""
        bucket = self._account.instances
        if bucket is not None and (wait := bucket.take(instances, self._room.now())):
            raise _limited("instances", bucket, wait)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What a caller with a limit of their own is told of it (draft-ietf-httpapi-ratelimit-headers)."""
        bucket = self._account.requests
        if bucket is None:
            return []
        left, reset = (
            max(0, int(bucket.level)),
            math.ceil((bucket.per_minute - bucket.level) * MINUTE / max(1, bucket.per_minute)),
        )
        policy = b'"requests";q=%d;w=60' % bucket.per_minute
        return [
            (b"ratelimit-policy", policy),
            (b"ratelimit", b'"requests";r=%d;t=%d' % (left, reset)),
        ]

    def close(self) -> None:
        """The request has ended."""
        self._account.running -= 1
        self._room.release(self._held)
        self._held = 0


class Limiter:
    """All limits of a process. Lives on the event loop."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._settings = settings
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of bodies in memory."""
        return self._held

    def admit(self, caller: Caller, address: str) -> Ticket:
        """A ticket for one request of a caller at an address. Raises Limited when it asks too often, or too much at once."""
        name = caller.key_id or network_of(address)
        account = self._accounts.get(name)
        if account is None or _changed(account.requests, caller.limits.requests_per_minute):
            account = self._open(name, caller, account)
        if account.running >= self._settings.requests_at_once:
            raise Limited(
                f"{account.running} requests of yours are being answered: wait for some of them",
                code="CONCURRENCY",
                retry_after=1,
            )
        if account.requests is not None and (wait := account.requests.take(1, self.now())):
            raise _limited("requests", account.requests, wait)
        return Ticket(account, self)

    def hold(self, n: int) -> None:
        """Count bytes of a body. Raises Unavailable, code BUSY."""
        if self._held + n > self._settings.bodies_bytes:
            raise Unavailable(
                "other requests fill the memory for bodies: send it again",
                code="BUSY",
                retry_after=1,
            )
        self._held += n

    def release(self, n: int) -> None:
        """Bytes of a body are no longer in memory."""
        self._held -= n

    def _open(self, name: str, caller: Caller, old: _Account | None) -> _Account:
        """The account of a caller who is new here, or whose limits have changed."""
        requests, instances = caller.limits.requests_per_minute, caller.limits.instances_per_minute
        account = old or _Account(None, None)
        account.requests = self._bucket(requests, self._settings.requests_per_minute)
        account.instances = self._bucket(instances, self._settings.instances_per_minute)
        self._accounts[name] = account
        if len(self._accounts) > ACCOUNTS:
            idle = next((each for each, found in self._accounts.items() if not found.running), None)
            if idle is not None:
                del self._accounts[idle]
        return account

    def _bucket(self, own: int | None, common: int) -> Bucket | None:
        """A key's own limit, of 0 too; else the common one, of which 0 is none."""
        per_minute = common if own is None else own
        return Bucket(per_minute, self.now()) if own is not None or common else None


def hold(scope: MutableMapping[str, Any], n: int) -> None:
    """Count bytes of a request's body, where somebody counts."""
    ticket: Ticket | None = scope.get("ticket")
    if ticket is not None:
        ticket.hold(n)


def count(scope: MutableMapping[str, Any], instances: int) -> None:
    """Count the instances that a request wants predicted, where somebody counts. Raises Limited."""
    ticket: Ticket | None = scope.get("ticket")
    if ticket is not None:
        ticket.count(instances)


@lru_cache(4096)
def network_of(address: str) -> str:
    """An address as one caller: IPv4 as it is, of IPv6 the first 64 bits."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _changed(bucket: Bucket | None, own: int | None) -> bool:
    """Whether a key was given another limit."""
    return own is not None and (bucket is None or bucket.per_minute != own)


def _limited(what: str, bucket: Bucket, wait: float) -> Limited:
    """The error for more than a bucket holds."""
    seconds = max(1, math.ceil(wait))
    message = f"{bucket.per_minute:,} {what} a minute are yours: come again in {seconds} s, or ask an operator for more"
    return Limited(message, retry_after=seconds, limit=bucket.per_minute)
