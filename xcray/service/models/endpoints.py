"""Endpoints: the loaded versions that answer a reference, and the errors of its other versions.

An `Endpoint` is one reference of a tenant ("news", "news@prod", "news:3"). Its `active` versions
are replaced as a whole: a request that has read them is answered by one version of one route,
regardless of concurrent changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from xcray.errors import Corrupt, XcrayError
from xcray.model.aliases import LATEST
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit, VersionShare, hash_point, pick_version
from xcray.service.models.loading import LoadedModel, ModelKey

MAX_ENDPOINTS: Final = 1024  # references that are remembered


class ActiveVersions(NamedTuple):
    """The loaded versions of a route with their traffic weights, and the shadow if there is one."""

    route: TrafficSplit
    split: tuple[VersionShare, ...]
    members: tuple[LoadedModel, ...]
    shadow: LoadedModel | None = None

    @classmethod
    def of(cls, route: TrafficSplit, loaded: dict[int, LoadedModel]) -> Self:
        """Return the loaded versions of a route (at least one).

        The traffic of missing versions goes to the others.
        """
        split = tuple(share for share in route.shares if share.version in loaded)
        total = sum(share.weight for share in split)
        members = tuple(loaded[share.version] for share in split)
        shadow = None if route.shadow is None else loaded.get(route.shadow.version)
        return cls(
            route,
            tuple(VersionShare(share.version, share.weight / total) for share in split),
            members,
            shadow,
        )

    @classmethod
    def fallback(cls, route: TrafficSplit, loaded: LoadedModel) -> Self:
        """Return another version in place of a route of which no version can be loaded."""
        return cls(route, (VersionShare(loaded.version, 1.0),), (loaded,))

    @property
    def all_versions(self) -> tuple[LoadedModel, ...]:
        """Return all versions, including the shadow."""
        return self.members if self.shadow is None else (*self.members, self.shadow)

    def pick(self, salt: str, key: str) -> LoadedModel:
        """Return the version that answers a sticky key."""
        return (
            self.members[0]
            if len(self.members) == 1
            else self.members[pick_version(self.split, hash_point(salt, key))]
        )

    def pick_shadow(self, salt: str, key: str) -> LoadedModel | None:
        """Return the shadow if it gets a copy of the request with this key."""
        share = self.route.shadow
        if self.shadow is None or share is None:
            return None
        return (
            self.shadow
            if share.weight >= 1.0 or hash_point(f"shadow {salt}", key) < share.weight
            else None
        )


class Endpoint:
    """One reference of a tenant, its route, and the versions that answer it."""

    def __init__(
        self,
        tenant: str,
        reference: str,
        registry: Registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tenant = tenant
        self.reference = reference
        self.registry = registry
        self._clock = clock
        self.name = reference.partition(":")[0].partition("@")[0]
        self.alias = reference.partition("@")[2] or LATEST
        self.fixed = ":" in reference
        self.active: ActiveVersions | None = None
        self.stale_since: float | None = None  # time since which the route differs from `active`
        self.load_error: XcrayError | None = None  # why a version of the route can't be loaded
        self.registry_error: XcrayError | OSError | None = None  # why the route can't be read
        self.switching = False
        self.last_used = 0
        self._checked_at: float | None = None  # `now` of the last check that found no change
        self.unload_counts: dict[str, int] | None = None
        # (stamp, route): read together, so replaced together
        self._snapshot: tuple[tuple[int, ...] | None, TrafficSplit | None] = (
            None,
            None,
        )

    @property
    def stamp(self) -> tuple[int, ...] | None:
        """Return the registry's stamp from before the route was read; None if unreliable."""
        return self._snapshot[0]

    @property
    def route(self) -> TrafficSplit | None:
        """Return the route as last read."""
        return self._snapshot[1]

    def is_current(self, now: float | None = None) -> bool:
        """Return whether nothing has changed since `active` was set: two file system calls.

        now: time of the event loop, which uvloop counts in milliseconds; the requests of one
        millisecond share a check. None: check.
        """
        stamp = self._snapshot[0]
        if stamp is None or self.stale_since is not None:
            return False
        if now is not None and now == self._checked_at:
            return True
        try:
            current = self.registry.change_token(self.name) == stamp
        except OSError:  # `resolve_route` reports it
            return False
        if current:
            self._checked_at = now
        return current

    def resolve_route(self, force: bool = False) -> TrafficSplit:
        """Return the route, reading it again if it can have changed, or if `force`.

        Raises NotFound or ParameterError. While a version answers, an unreadable registry is not an
        error.
        """
        try:
            stamp = self.registry.change_token(self.name)
            if self.route is not None and stamp is not None and stamp == self.stamp and not force:
                return self.route
            _, route = self.registry.resolve_split(self.reference)
        except (Corrupt, OSError) as error:
            self.registry_error = error
            if self.active is None or self.route is None:
                raise Corrupt(
                    f"the registry of model {self.name} can't be read ({type(error).__name__})",
                    code="REGISTRY",
                ) from error
            return self.route
        self.registry_error, self._snapshot = None, (stamp, route)
        if self.active is None or self.active.route == route:
            self.stale_since = None
        elif self.stale_since is None:
            self.stale_since = self._clock()
        return route

    def activate(self, serving: ActiveVersions, load_error: XcrayError | None) -> bool:
        """Replace the active versions; return whether different versions answer than before."""
        previous, self.active, self.load_error = self.active, serving, load_error
        self.stale_since = None if serving.route == self.route else self._clock()
        return previous is not None and [loaded.key for loaded in previous.members] != [
            loaded.key for loaded in serving.members
        ]

    def is_overdue(self, seconds: float) -> bool:
        """Return whether old versions still answer more than `seconds` after a route change."""
        return self.stale_since is not None and self._clock() - self.stale_since > seconds

    def references(self) -> set[str]:
        """Return the references that unload it: its own, the bare name, and its active versions."""
        return {
            self.name,
            self.reference,
            *(f"{name}:{version}" for _, name, version in self.active_keys()),
        }

    def active_keys(self) -> set[ModelKey]:
        """Return the keys of the versions that answer."""
        return (
            {loaded.key for loaded in self.active.all_versions}
            if self.active is not None
            else set()
        )

    def target_keys(self) -> set[ModelKey]:
        """Return the keys of the versions of the route."""
        return (
            set()
            if self.route is None
            else {(self.tenant, self.name, version) for version in self.route.versions}
        )


class EndpointTable:
    """The endpoints that requests have used lately, by tenant and reference. Thread-safe.

    `lock` guards changes of several endpoints at once. `pinned` holds the (tenant, reference) pairs
    that stay loaded, with or without an endpoint.
    """

    def __init__(self, registry_of: Callable[[str], Registry], clock: Callable[[], float]) -> None:
        self.lock = threading.Lock()
        self.pinned: set[tuple[str, str]] = set()
        self._registry_of = registry_of
        self._clock = clock
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._use_count = 0

    def find(self, tenant: str, reference: str) -> Endpoint | None:
        """Return the endpoint of a reference, or None. Does no I/O."""
        return self._endpoints.get((tenant, reference))

    def of(self, tenant: str, reference: str) -> Endpoint:
        """Return the endpoint of a reference, creating it if necessary."""
        endpoint = self.find(tenant, reference)
        if endpoint is None:
            with self.lock:
                endpoint = self._endpoints.setdefault(
                    (tenant, reference),
                    Endpoint(tenant, reference, self._registry_of(tenant), self._clock),
                )
                self.touch(endpoint)
                while len(self._endpoints) > MAX_ENDPOINTS:
                    self.pop(min(self._endpoints.values(), key=lambda each: each.last_used))
        return endpoint

    def touch(self, endpoint: Endpoint) -> None:
        """Record a use of an endpoint."""
        self._use_count += 1
        endpoint.last_used = self._use_count

    def all(self) -> list[Endpoint]:
        """Return all endpoints."""
        return list(self._endpoints.values())

    def of_name(self, tenant: str, name: str) -> list[Endpoint]:
        """Return the endpoints of a name."""
        return [each for each in self.all() if (each.tenant, each.name) == (tenant, name)]

    def remove(self, endpoint: Endpoint) -> None:
        """Remove an endpoint, but not another one of the same reference."""
        with self.lock:
            if self.find(endpoint.tenant, endpoint.reference) is endpoint:
                self.pop(endpoint)

    def pop(self, endpoint: Endpoint) -> None:
        """Remove the endpoint of a reference; the caller holds the lock."""
        self._endpoints.pop((endpoint.tenant, endpoint.reference), None)

    def clear(self) -> None:
        """Remove all endpoints."""
        self._endpoints.clear()
