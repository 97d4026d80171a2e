"""Models from object storage by URI: a folder of models, a model, a version, or a plain copy of a model directory.

s3://bucket/models             all models there: of each its latest version and what its aliases lead to, with the aliases
s3://bucket/models/news        one of them
.../news:3  .../news@prod      one version of it
.../news/3-SEAL                the same, exactly that one
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from xcray.errors import InputError, NotFound, ParameterError, excerpt
from xcray.model.directory import MANIFEST
from xcray.model.objectstore.client import Place
from xcray.model.objectstore.remote_registry import (
    VERSION,
    Pulled,
    Remote,
    aliases,
    fetch_into,
    fetch_to,
    latest,
    names,
    numbered,
)
from xcray.model.registry import LATEST, Registry
from xcray.model.traffic_split import Route
from xcray.storage.atomic import NAME


class Wanted(NamedTuple):
    """Versions to be had, the chief one first, and the aliases that lead to them."""

    remotes: tuple[Remote, ...]
    aliases: dict[str, Route]


def wanted_of(home: Place) -> Wanted:
    """Of a model: its latest version, and those that its aliases lead to. Raises NotFound, Corrupt, Conflict, Unavailable."""
    chief = latest(home)
    routes = aliases(home)
    needed = {version for route in routes.values() for version in route.versions} - {chief.number}
    return Wanted((chief, *(numbered(home, version) for version in sorted(needed))), routes)


def found_at(uri: str) -> list[Wanted]:
    """What a URI names. Raises NotFound when there is no model, ParameterError, Corrupt, Conflict, Unavailable."""
    place = Place.at(uri)
    for mark in (":", "@"):
        before, sign, after = place.name.rpartition(mark)
        if sign and NAME.fullmatch(before):
            return [_referred(place.parent / before, mark, after)]
    if version := VERSION.fullmatch(place.name):
        return [
            Wanted((Remote(place, place.parent.name, int(version.group(1)), version.group(2)),), {})
        ]
    entries = place.entries()
    if any(entry.name == MANIFEST and entry.size is not None for entry in entries):
        return [
            Wanted(
                (Remote(place, place.name if NAME.fullmatch(place.name) else "model", None, None),),
                {},
            )
        ]
    if any(VERSION.fullmatch(entry.name) for entry in entries if entry.size is None):
        return [wanted_of(place)]
    found = [wanted_of(place / name) for name in names(place)]
    if not found:
        raise NotFound(f"there is no model at {place.shown}: push one, or mend the URI")
    return found


def pull_to(
    registry: Registry,
    uri: str,
    *,
    name: str | None = None,
    alias: Sequence[str] = (),
    pinned: str | None = None,
    stop: threading.Event | None = None,
) -> list[Pulled]:
    """Bring what a URI names into a registry, with its aliases. What is there already stays, and costs a look.

    name, alias, pinned: for one model: another name here, aliases of ours for it, its sha256 or seal. Raises as `found_at`, and
    InputError when these are given for several models, Conflict when a number is another model here.
    """
    found = found_at(uri)
    if len(found) > 1 and (name or alias or pinned):
        raise InputError(
            f"{excerpt(uri)} holds {len(found)} models: a name, aliases and a hash are for one",
            code="USAGE",
        )
    out: list[Pulled] = []
    for wanted in found:
        chief = wanted.remotes[0]
        called = name or chief.name
        pulled = [fetch_to(registry, called, chief, pinned, stop)]
        pulled += [fetch_to(registry, called, each, None, stop) for each in wanted.remotes[1:]]
        follow_aliases(
            registry,
            called,
            {**wanted.aliases, **{each: Route.to(pulled[0].number or 0) for each in alias}},
        )
        out += pulled
    return out


def pull_into(
    target: Path, uri: str, pinned: str | None = None, stop: threading.Event | None = None
) -> Pulled:
    """Bring the one model that a URI names into a directory, its latest version. Raises as `pull_to`."""
    found = found_at(uri)
    if len(found) > 1:
        raise InputError(
            f"{excerpt(uri)} holds {len(found)} models: name one of them", code="USAGE"
        )
    return fetch_into(found[0].remotes[0], target, pinned, stop)


def follow_aliases(registry: Registry, name: str, routes: dict[str, Route]) -> None:
    """Lead aliases where these do, those that lead elsewhere now."""
    here, splits = registry.aliases(name), registry.routes(name)
    for alias, route in routes.items():
        present = splits.get(alias) or (Route.to(here[alias]) if alias in here else None)
        if alias != LATEST and present != route:
            registry.set_route(name, alias, route)


def _referred(home: Place, mark: str, after: str) -> Wanted:
    """NAME:3 or NAME@prod."""
    if mark == ":":
        if not (after.isascii() and after.isdecimal() and len(after) <= 9):
            raise ParameterError(f"version {excerpt(after)!r} is not a number; write {home.name}:1")
        return Wanted((numbered(home, int(after)),), {})
    if after == LATEST:
        return Wanted((latest(home),), {})
    routes = aliases(home)
    if after not in routes:
        raise NotFound(
            f"{home.shown} has no alias {excerpt(after)!r}; it has {', '.join(sorted(routes)) or 'none'}"
        )
    route = routes[after]
    chief = numbered(home, route.primary)
    others = [numbered(home, version) for version in route.versions if version != route.primary]
    return Wanted((chief, *others), {after: route})
