"""Rate limits per caller, and the memory limit of all request bodies.

Limits per caller: requests per minute, instances per minute and concurrent requests. A caller is a
key, or without keys an address (for IPv6 the /64 network of a machine). Each process counts on its
own: with W processes a key can use up to W times its limit. A bucket holds the amount of one minute
and fills evenly, so bursts are allowed and the mean is kept. A request for more instances than are
left is accepted; the following requests pay for it.
"""

from __future__ import annotations

import asyncio
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

MAX_ACCOUNTS: Final = 10_000  # callers; idle ones are removed first
MINUTE_SECONDS: Final = 60.0
SMALL_BODY_BYTES: Final = 32_768  # a body whose decoded objects are not counted
ELEMENT_BYTES: Final = 48  # per element of decoded JSON: a number, its place, and its array entry


class RateLimited(Unavailable):
    """A caller exceeds its rate limit; the error has the seconds to wait."""

    code = "RATE_LIMIT"


class TokenBucket:
    """Token bucket that refills with `per_minute`. Not thread-safe."""

    __slots__ = ("per_minute", "tokens", "updated_at")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.tokens = float(per_minute)
        self.updated_at = now

    def take(self, n: int, now: float) -> float:
        """Return 0 if `n` tokens were taken, otherwise the seconds until a token is available.

        If any token is left, more than is left can be taken.
        """
        self.tokens = min(
            float(self.per_minute),
            self.tokens + (now - self.updated_at) * self.per_minute / MINUTE_SECONDS,
        )
        self.updated_at = now
        if self.tokens >= min(n, 1):
            self.tokens -= n
            return 0.0
        return (
            (min(n, 1) - self.tokens) * MINUTE_SECONDS / self.per_minute
            if self.per_minute
            else MINUTE_SECONDS
        )


class FailedKeys:
    """Limit of failed authentications per address, for IPv6 per /64 network; in bounded memory.

    Only failures count and only failures are refused, so that a valid key from an address shared
    by many callers (NAT, proxy) is never locked out by the others. per_minute: failures answered
    with 401, with bursts of the same size; 0: unlimited. now: monotonic seconds.
    """

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._now = now
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def count(self, address: str) -> None:
        """Count a failure of an address. Raises RateLimited with code FAILED_KEYS."""
        if not self._per_minute:
            return
        name = network_of(address)
        bucket = self._buckets.setdefault(name, TokenBucket(self._per_minute, self._now()))
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_ACCOUNTS:
            self._buckets.popitem(last=False)
        if wait := bucket.take(1, self._now()):
            raise RateLimited(
                "too many requests without a valid key from this address: check the key",
                code="FAILED_KEYS",
                retry_after=max(1, math.ceil(wait)),
            )


class _Account:
    """Buckets and running requests of one caller."""

    __slots__ = ("instances", "requests", "running")

    def __init__(self, requests: TokenBucket | None, instances: TokenBucket | None) -> None:
        self.requests = requests
        self.instances = instances
        self.running = 0


class Ticket:
    """One running request. `close` releases its resources."""

    __slots__ = ("_account", "_decoded", "_held", "_limiter")

    def __init__(self, account: _Account, limiter: Limiter) -> None:
        self._account = account
        self._limiter = limiter
        self._held = self._decoded = 0
        account.running += 1

    def hold_bytes(self, n: int) -> None:
        """Count `n` more bytes of the body in memory.

        Raises Unavailable if all bodies together exceed the limit.
        """
        self._limiter.hold_bytes(n)
        self._held += n

    async def hold_decoded_bytes(self, n: int) -> None:
        """Wait until a body can be decoded to `n` bytes, and count them."""
        await self._limiter.hold_decoded_bytes(n)
        self._decoded += n

    def count_instances(self, instances: int) -> None:
        """Count predictions of the request. Raises RateLimited."""
        bucket = self._account.instances
        if bucket is not None and (wait := bucket.take(instances, self._limiter.now())):
            raise _rate_limited("instances", bucket, wait)

    def rate_limit_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the rate limit headers for a caller with its own limit.

        They follow draft-ietf-httpapi-ratelimit-headers.
        """
        bucket = self._account.requests
        if bucket is None:
            return []
        left, reset = (
            max(0, int(bucket.tokens)),
            math.ceil(
                (bucket.per_minute - bucket.tokens) * MINUTE_SECONDS / max(1, bucket.per_minute)
            ),
        )
        policy = b'"requests";q=%d;w=60' % bucket.per_minute
        return [
            (b"ratelimit-policy", policy),
            (b"ratelimit", b'"requests";r=%d;t=%d' % (left, reset)),
        ]

    def close(self) -> None:
        """End the request and release its memory."""
        self._account.running -= 1
        self._limiter.release_bytes(self._held, self._decoded)
        self._held = self._decoded = 0


class Limiter:
    """All limits of a process. Used on the event loop only."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._settings = settings
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._held = self._decoded = 0
        self._turn = asyncio.Lock()  # held by the first of the bodies that wait to be decoded
        self._released = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of bodies in memory, as received and decoded."""
        return self._held + self._decoded

    def admit(self, caller: Caller, address: str) -> Ticket:
        """Return a ticket for one request of a caller at an address.

        Raises RateLimited above the rate limit or the limit of concurrent requests.
        """
        name = caller.key_id or network_of(address)
        account = self._accounts.get(name)
        if account is None or _limit_changed(account.requests, caller.limits.requests_per_minute):
            account = self._open_account(name, caller, account)
        if account.running >= self._settings.max_concurrent_requests:
            raise RateLimited(
                f"{account.running} of your requests are running: wait until some of them end",
                code="CONCURRENCY",
                retry_after=1,
            )
        if account.requests is not None and (wait := account.requests.take(1, self.now())):
            raise _rate_limited("requests", account.requests, wait)
        return Ticket(account, self)

    def hold_bytes(self, n: int) -> None:
        """Count bytes of a body. Raises Unavailable with code BUSY."""
        if self.held_bytes + n > self._settings.max_body_memory_bytes:
            raise Unavailable(
                "other requests fill the memory for bodies: send the request again",
                code="BUSY",
                retry_after=1,
            )
        self._held += n

    async def hold_decoded_bytes(self, n: int) -> None:
        """Count bytes of decoded objects; wait for room, in order of arrival.

        One body can always be decoded. Together, bodies exceed the limit by at most this one.
        """
        async with self._turn:
            while self._decoded and self.held_bytes + n > self._settings.max_body_memory_bytes:
                self._released.clear()
                await self._released.wait()
            self._decoded += n

    def release_bytes(self, n: int, decoded: int = 0) -> None:
        """Count bytes of a body, and of its decoded objects, that left memory."""
        self._held -= n
        self._decoded -= decoded
        self._released.set()

    def _open_account(self, name: str, caller: Caller, existing: _Account | None) -> _Account:
        """Return the account of a caller that is new here or has new limits."""
        requests, instances = caller.limits.requests_per_minute, caller.limits.instances_per_minute
        account = existing or _Account(None, None)
        account.requests = self._make_bucket(requests, self._settings.requests_per_minute)
        account.instances = self._make_bucket(instances, self._settings.instances_per_minute)
        self._accounts[name] = account
        if len(self._accounts) > MAX_ACCOUNTS:
            idle = next((each for each, other in self._accounts.items() if not other.running), None)
            if idle is not None:
                del self._accounts[idle]
        return account

    def _make_bucket(self, own: int | None, common: int) -> TokenBucket | None:
        """Return a bucket for the limit of a key (0 counts), else the common one (0: no limit)."""
        per_minute = common if own is None else own
        return TokenBucket(per_minute, self.now()) if own is not None or common else None


def hold_body_bytes(scope: MutableMapping[str, Any], n: int) -> None:
    """Count bytes of a request body if the request has a ticket."""
    ticket: Ticket | None = scope.get("ticket")
    if ticket is not None:
        ticket.hold_bytes(n)


async def hold_decoded_bytes(scope: MutableMapping[str, Any], body: bytes) -> None:
    """Wait until a body can be decoded, if the request has a ticket; small bodies do not wait.

    Decoded JSON takes up to ten times the memory of the text: ELEMENT_BYTES per comma.
    """
    ticket: Ticket | None = scope.get("ticket")
    if ticket is not None and len(body) > SMALL_BODY_BYTES:
        await ticket.hold_decoded_bytes(len(body) + ELEMENT_BYTES * body.count(b","))


def count_instances(scope: MutableMapping[str, Any], instances: int) -> None:
    """Count the instances of a request if it has a ticket. Raises RateLimited."""
    ticket: Ticket | None = scope.get("ticket")
    if ticket is not None:
        ticket.count_instances(instances)


@lru_cache(4096)
def network_of(address: str) -> str:
    """Return the caller name of an address: IPv4 as it is, IPv6 by its first 64 bits."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _limit_changed(bucket: TokenBucket | None, own: int | None) -> bool:
    """Return whether the limit of a key has changed."""
    return own is not None and (bucket is None or bucket.per_minute != own)


def _rate_limited(what: str, bucket: TokenBucket, wait: float) -> RateLimited:
    """Return the error for an empty bucket."""
    seconds = max(1, math.ceil(wait))
    message = (
        f"the limit is {bucket.per_minute:,} {what} per minute: retry in {seconds} s, "
        "or ask an operator for more"
    )
    return RateLimited(message, retry_after=seconds, limit=bucket.per_minute)
