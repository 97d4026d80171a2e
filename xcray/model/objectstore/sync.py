"""Registries and object storage kept alike: `Mirror` copies what is published there, `Follower` brings what is there here.

Neither remembers anything that it could not find out again: a version is in the storage when its manifest is, and here when its
directory is. So a kill at any time costs the transfer that was under way, which goes on where it was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from xcray.errors import Conflict, NotFound, Stopped, XcrayError
from xcray.model.objectstore.client import Place
from xcray.model.objectstore.pull import follow_aliases, wanted_of
from xcray.model.objectstore.remote_registry import (
    ALIASES,
    NO_VERSION,
    TENANTS,
    Remote,
    aliases,
    aliases_text,
    fetch_to,
    holds,
    names,
    push,
    tenants,
    versions,
)
from xcray.model.registry import LATEST, Registry
from xcray.model.traffic_split import Route

LOG: Final = logging.getLogger(__name__)


class Shelf(NamedTuple):
    """The models of a tenant. tenant: None for default, whose models lie at the top of a storage."""

    tenant: str | None
    registry: Registry

    def place(self, root: Place) -> Place:
        """Where they lie in a storage."""
        return root if self.tenant is None else root / TENANTS / self.tenant


class Turn(NamedTuple):
    """How a turn went. moved: versions that came or went; behind: versions that did not; trouble: why the first of them did not."""

    moved: int
    behind: int
    trouble: XcrayError | OSError | None


class Mirror:
    """Copies each published version, and where aliases lead, to a storage. Nothing is ever deleted or overwritten there."""

    def __init__(
        self,
        shelves: Callable[[], Iterable[Shelf]],
        root: Place,
        tell: Callable[[int], None] = lambda behind: None,
    ) -> None:
        """tell: hears how many versions are not there yet, whenever that changes."""
        self._shelves = shelves
        self._root = root
        self._tell = tell
        self._there: set[tuple[str | None, str, int]] = set()
        self._led: dict[tuple[str | None, str], dict[str, Route]] = {}

    def turn(self, stop: threading.Event | None = None) -> Turn:
        """Copy what is missing. One version that can't be copied does not hold up others; all are tried again next time."""
        shelves = list(self._shelves())
        missing = [
            (shelf, name, number) for shelf in shelves for name, number in self._missing(shelf)
        ]
        moved, trouble = 0, None
        self._tell(len(missing))
        for shelf, name, number in missing:
            try:
                self._push(shelf, name, number, stop)
                moved += 1
                self._tell(len(missing) - moved)
            except Stopped:
                raise
            except (XcrayError, OSError) as error:
                LOG.warning(
                    "a model was not mirrored",
                    extra={"model": f"{name}:{number}", "detail": str(error)},
                )
                trouble = trouble or error
        for shelf in shelves:
            try:
                self._lead(shelf)
            except (XcrayError, OSError) as error:
                trouble = trouble or error
        return Turn(moved, len(missing) - moved, trouble)

    def _missing(self, shelf: Shelf) -> list[tuple[str, int]]:
        """Versions of a tenant of which it is not known that they are there."""
        found = [
            (name, number)
            for name in shelf.registry.names()
            for number in shelf.registry.versions(name)
        ]
        return [each for each in found if (shelf.tenant, *each) not in self._there]

    def _push(self, shelf: Shelf, name: str, number: int, stop: threading.Event | None) -> None:
        """Copy one version, unless it is there or was deleted meanwhile."""
        try:
            path = shelf.registry.resolve(f"{name}:{number}")
        except NotFound:
            return
        pushed = push(path, shelf.place(self._root) / name, number, stop=stop)
        self._there.add((shelf.tenant, name, number))
        if pushed.moved.sent:
            LOG.info(
                "a model was mirrored",
                extra={
                    "model": f"{name}:{number}",
                    "place": pushed.shown,
                    "bytes": pushed.moved.sent,
                },
            )

    def _lead(self, shelf: Shelf) -> None:
        """Tell where aliases lead, of those whose versions are there."""
        for name in shelf.registry.names():
            splits = shelf.registry.routes(name)
            here = {
                alias: splits.get(alias) or Route.to(number)
                for alias, number in shelf.registry.aliases(name).items()
            }
            del here[LATEST]
            there = {
                number for tenant, of, number in self._there if (tenant, of) == (shelf.tenant, name)
            }
            routes = {
                alias: route for alias, route in here.items() if there.issuperset(route.versions)
            }
            place, key = shelf.place(self._root) / name, (shelf.tenant, name)
            if key not in self._led:
                self._led[key] = aliases(place)
            if self._led[key] != routes:
                (place / ALIASES).write(aliases_text(routes))
                self._led[key] = routes


class Follower:
    """Brings the latest versions, and those that aliases lead to, from a storage; the registry's readers swap as ever.

    Beside these one version before the latest stays; older ones that came from the storage are deleted here.
    """

    def __init__(
        self,
        shelf: Callable[[str | None], Registry],
        root: Place,
        tell: Callable[[int], None] = lambda behind: None,
    ) -> None:
        """shelf: the registry of a tenant, None for default; tell: hears how many models are behind, whenever that changes."""
        self._shelf = shelf
        self._root = root
        self._tell = tell
        self._here: set[tuple[str | None, str, int | None, str | None]] = set()
        self._led: dict[tuple[str | None, str], set[str]] = {}

    def turn(self, stop: threading.Event | None = None) -> Turn:
        """Look once at all models there. One that can't be had does not hold up others. Raises when there is no such storage."""
        moved, behind, trouble = 0, 0, None
        for tenant in (None, *tenants(self._root)):
            shelf = Shelf(tenant, self._shelf(tenant))
            for name in names(shelf.place(self._root)):
                try:
                    moved += self._follow(shelf, name, stop)
                except Stopped:
                    raise
                except (XcrayError, OSError) as error:
                    LOG.warning(
                        "a model was not followed", extra={"model": name, "detail": str(error)}
                    )
                    behind, trouble = behind + 1, trouble or error
                    self._tell(behind)
        self._tell(behind)
        return Turn(moved, behind, trouble)

    def _follow(self, shelf: Shelf, name: str, stop: threading.Event | None) -> int:
        """One model: how many versions came."""
        home, came = shelf.place(self._root) / name, 0
        try:
            wanted = wanted_of(home)
        except NotFound as error:
            if error.code != NO_VERSION:
                raise
            return 0  # its first version is on its way
        for remote in wanted.remotes:
            key = (shelf.tenant, name, remote.number, remote.seal)
            if key not in self._here or remote.number not in shelf.registry.versions(name):
                came += fetch_to(shelf.registry, name, remote, stop=stop).moved is not None
                self._here.add(key)
        follow_aliases(shelf.registry, name, wanted.aliases)
        for alias in self._led.get((shelf.tenant, name), set()) - set(wanted.aliases):
            if alias in shelf.registry.aliases(name):
                shelf.registry.delete_alias(name, alias)
        self._led[shelf.tenant, name] = set(wanted.aliases)
        if came:
            LOG.info(
                "a model was followed",
                extra={"model": name, "versions": [remote.number for remote in wanted.remotes]},
            )
            self._prune(shelf, name, wanted.remotes)
        return came

    def _prune(self, shelf: Shelf, name: str, wanted: tuple[Remote, ...]) -> None:
        """Delete versions that came from there and that nothing leads to, but the one before the latest."""
        registry, kept = shelf.registry, {remote.number for remote in wanted}
        seals = {remote.number: remote.seal for remote in versions(wanted[0].place.parent)}
        others = [
            number for number in registry.versions(name) if number not in kept and number in seals
        ]
        older = [
            number
            for number in others
            if holds(registry.resolve(f"{name}:{number}"), seals[number] or "")
        ]
        for number in older[:-1]:
            try:
                registry.delete(name, number)
            except Conflict as error:  # an alias leads to it since a moment
                LOG.info(
                    "a version stays", extra={"model": f"{name}:{number}", "detail": str(error)}
                )
