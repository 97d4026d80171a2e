"""How many jobs of a tenant may run at once: what the operator set for all, and what the tenant's own keys say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from xcray.jobs.store.keys import Key

LOOK_SECONDS: Final = 5.0  # between two looks at the keys


class Keys(Protocol):
    """What is needed of the store."""

    def list_keys(self, tenant: str | None = None) -> list[Key]:
        """All keys."""


class RunningQuota:
    """tenant -> most jobs that run at once, None for no bound.

    A tenant's keys that may submit share its bound: the largest of theirs, none when one of them has none; never more than
    `most`, the operator's for every tenant. Looks at the keys every few seconds; `steady` gives seconds that never jump.
    """

    def __init__(
        self, store: Keys, most: int | None, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._most = most
        self._steady = steady
        self._bounds: dict[str, int | None] = {}
        self._looked = -float("inf")

    def look(self) -> None:
        """Read the keys, when it is time to. Raises Unavailable. Not within a transaction of the store."""
        if self._steady() - self._looked >= LOOK_SECONDS:
            by_tenant: dict[str, list[Key]] = {}
            for key in self._store.list_keys():
                by_tenant.setdefault(key.tenant, []).append(key)
            self._bounds = {tenant: _bound(keys) for tenant, keys in by_tenant.items()}
            self._looked = self._steady()

    def __call__(self, tenant: str) -> int | None:
        """The bound of a tenant, as it was at the last look."""
        bounds = [bound for bound in (self._bounds.get(tenant), self._most) if bound is not None]
        return min(bounds, default=None)


def _bound(keys: Sequence[Key]) -> int | None:
    """The bound that a tenant's keys give together."""
    now = time.time()
    bounds = [
        key.limits.get("max_running")
        for key in keys
        if key.valid(now) and {"submit", "admin"} & set(key.scopes)
    ]
    if not bounds or None in bounds:
        return None
    return max(int(bound) for bound in bounds if bound is not None)
