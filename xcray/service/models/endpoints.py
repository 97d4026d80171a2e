"""Who answers a reference now: the versions of its route that are loaded, and what is wrong with the rest.

A `Place` is one reference of a tenant ("news", "news@prod", "news:3"). Its `serving` changes as a whole: a request that has taken
it is answered by one version of one route, whatever happens meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Self

from xcray.errors import Corrupt, XcrayError
from xcray.model.registry import LATEST, Registry
from xcray.model.traffic_split import Route, Share, chosen, point
from xcray.service.models.loading import Key, Loaded


class Serving(NamedTuple):
    """The loaded versions of a route, with the weights they answer by; a shadow and its share when it has one."""

    route: Route
    split: tuple[Share, ...]
    members: tuple[Loaded, ...]
    shadow: Loaded | None = None

    @classmethod
    def of(cls, route: Route, found: dict[int, Loaded]) -> Self:
        """Those of a route that are there (at least one); what the missing ones would have answered goes to the others."""
        split = tuple(share for share in route.split if share.version in found)
        total = sum(share.weight for share in split)
        members = tuple(found[share.version] for share in split)
        shadow = None if route.shadow is None else found.get(route.shadow.version)
        return cls(
            route,
            tuple(Share(share.version, share.weight / total) for share in split),
            members,
            shadow,
        )

    @classmethod
    def instead(cls, route: Route, loaded: Loaded) -> Self:
        """Another version, in place of a route none of whose versions can be had."""
        return cls(route, (Share(loaded.version, 1.0),), (loaded,))

    @property
    def held(self) -> tuple[Loaded, ...]:
        """All versions that it holds."""
        return self.members if self.shadow is None else (*self.members, self.shadow)

    def pick(self, salt: str, key: str) -> Loaded:
        """The version that answers a key."""
        return (
            self.members[0]
            if len(self.members) == 1
            else self.members[chosen(self.split, point(salt, key))]
        )

    def copies(self, salt: str, key: str) -> Loaded | None:
        """The shadow, when it gets a copy of what has this key."""
        share = self.route.shadow
        if self.shadow is None or share is None:
            return None
        return (
            self.shadow
            if share.weight >= 1.0 or point(f"shadow {salt}", key) < share.weight
            else None
        )


class Place:
    """One reference of a tenant, where it leads, and who answers it."""

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
        self.serving: Serving | None = None
        self.changed: float | None = None  # since when it leads elsewhere than it is answered from
        self.trouble: XcrayError | None = None  # why not all of its route answers
        self.hindered: XcrayError | OSError | None = None  # why its route can't be read
        self.swapping = False
        self.used = 0
        self.unloads: dict[str, int] | None = None
        self._seen: tuple[tuple[int, ...] | None, Route | None] = (
            None,
            None,
        )  # read together, so replaced together

    @property
    def stamp(self) -> tuple[int, ...] | None:
        """What the registry's stamp was before the route was read; None when that can't be trusted."""
        return self._seen[0]

    @property
    def route(self) -> Route | None:
        """Where it leads, as read last."""
        return self._seen[1]

    def settled(self) -> bool:
        """Whether nothing has changed since `serving` was made: two questions to the file system."""
        stamp = self._seen[0]
        try:
            return (
                stamp is not None
                and self.changed is None
                and self.registry.stamp(self.name) == stamp
            )
        except OSError:  # `relocate` says what that means
            return False

    def relocate(self, again: bool = False) -> Route:
        """Read where it leads, if that may have changed, or `again`. Raises NotFound, ParameterError.

        While somebody answers, a registry that can't be read hinders nobody.
        """
        try:
            stamp = self.registry.stamp(self.name)
            if self.route is not None and stamp is not None and stamp == self.stamp and not again:
                return self.route
            _, route = self.registry.route(self.reference)
        except (Corrupt, OSError) as error:
            self.hindered = error
            if self.serving is None or self.route is None:
                raise Corrupt(
                    f"the registry of model {self.name} can't be read ({type(error).__name__})",
                    code="REGISTRY",
                ) from error
            return self.route
        self.hindered, self._seen = None, (stamp, route)
        if self.serving is None or self.serving.route == route:
            self.changed = None
        elif self.changed is None:
            self.changed = self._clock()
        return route

    def serve(self, serving: Serving, trouble: XcrayError | None) -> bool:
        """Have requests answered from here on; whether the versions that answer are others than before."""
        before, self.serving, self.trouble = self.serving, serving, trouble
        self.changed = None if serving.route == self.route else self._clock()
        return before is not None and [one.key for one in before.members] != [
            one.key for one in serving.members
        ]

    def overdue(self, seconds: float) -> bool:
        """Whether the old versions have answered so long that requests had better wait for the new one."""
        return self.changed is not None and self._clock() - self.changed > seconds

    def stands_for(self) -> set[str]:
        """The references by which it may be asked to go: its own, the bare name, and those of the versions that answer."""
        return {
            self.name,
            self.reference,
            *(f"{name}:{version}" for _, name, version in self.holds()),
        }

    def holds(self) -> set[Key]:
        """The versions that answer here."""
        return {loaded.key for loaded in self.serving.held} if self.serving is not None else set()

    def leads(self) -> set[Key]:
        """The versions that should."""
        return (
            set()
            if self.route is None
            else {(self.tenant, self.name, version) for version in self.route.versions}
        )
