"""Limits on running jobs per tenant, from the operator's setting and the tenant's own keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from xcray.jobs.store.keys import Key, KeyTable

REFRESH_SECONDS: Final = 5.0  # between two reads of the keys


class RunningQuota:
    """A mapping from tenant to its limit of running jobs, or None.

    A tenant's keys that can submit share its limit: the largest of theirs, and none if one of them
    has none. It never exceeds `max_running`, the operator's limit for every tenant. The keys are
    read every few seconds of the clock `monotonic`.
    """

    def __init__(
        self,
        keys: KeyTable,
        max_running: int | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._max_running = max_running
        self._monotonic = monotonic
        self._limits: dict[str, int | None] = {}
        self._refreshed_at = -float("inf")

    def refresh(self) -> None:
        """Read the keys if due. Raises Unavailable. Not for use inside a transaction."""
        if self._monotonic() - self._refreshed_at >= REFRESH_SECONDS:
            by_tenant: dict[str, list[Key]] = {}
            for key in self._keys.list_all():
                by_tenant.setdefault(key.tenant, []).append(key)
            self._limits = {tenant: _tenant_limit(keys) for tenant, keys in by_tenant.items()}
            self._refreshed_at = self._monotonic()

    def __call__(self, tenant: str) -> int | None:
        """Return the limit of a tenant as of the last refresh."""
        limits = [
            limit for limit in (self._limits.get(tenant), self._max_running) if limit is not None
        ]
        return min(limits, default=None)


def _tenant_limit(keys: Sequence[Key]) -> int | None:
    """Return the limit that a tenant's keys give together."""
    now = time.time()
    limits = [
        key.limits.get("max_running")
        for key in keys
        if key.is_valid(now) and {"submit", "admin"} & set(key.scopes)
    ]
    if not limits or None in limits:
        return None
    return max(int(limit) for limit in limits if limit is not None)
