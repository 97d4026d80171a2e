"""Pulling models from object storage by URI.

s3://bucket/models             all models: the latest version and the versions of aliases
                               of each, with the aliases
s3://bucket/models/news        one of them
.../news:3  .../news@prod      one version of it
.../news/3-SEAL                exactly that version
any other folder               a plain copy of a model directory
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from xcray.errors import InputError, NotFound, excerpt
from xcray.model.aliases import LATEST
from xcray.model.objectstore.remote_registry import (
    Pulled,
    fetch_to_directory,
    fetch_to_registry,
    read_aliases,
)
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.storage.atomic import NAME_PATTERN
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import (
    VERSION_FOLDER,
    RemoteVersion,
    latest_version,
    list_names,
    parse_number,
    version_by_number,
    version_of_folder,
)


class PullPlan(NamedTuple):
    """Versions to pull, the primary one first, and the aliases that point to them."""

    versions: tuple[RemoteVersion, ...]
    aliases: dict[str, TrafficSplit]


def plan_model(home: StoragePath) -> PullPlan:
    """Plan the pull of a model: its latest version and the versions of its aliases.

    Raises NotFound, Corrupt, Conflict, Unavailable.
    """
    primary = latest_version(home)
    routes = read_aliases(home)
    needed = {version for route in routes.values() for version in route.versions} - {primary.number}
    return PullPlan(
        (primary, *(version_by_number(home, version) for version in sorted(needed))), routes
    )


def plan_uri(uri: str) -> list[PullPlan]:
    """Return the plans for the models of a URI.

    Raises NotFound if there is no model, ParameterError, Corrupt, Conflict, Unavailable.
    """
    path = StoragePath.parse(uri)
    for mark in (":", "@"):
        before, sign, after = path.name.rpartition(mark)
        if sign and NAME_PATTERN.fullmatch(before):
            return [_plan_reference(path.parent / before, mark, after)]
    if version := version_of_folder(path):
        name = version.name if NAME_PATTERN.fullmatch(version.name) else "model"
        return [PullPlan((version._replace(name=name),), {})]
    entries = path.list_entries()
    if any(VERSION_FOLDER.fullmatch(entry.name) for entry in entries if entry.n_bytes is None):
        return [plan_model(path)]
    plans = [plan_model(path / name) for name in list_names(path)]
    if not plans:
        raise NotFound(f"there is no model at {path.uri}: push one, or correct the URI")
    return plans


def pull_to_registry(
    registry: Registry,
    uri: str,
    *,
    name: str | None = None,
    alias: Sequence[str] = (),
    pinned: str | None = None,
) -> list[Pulled]:
    """Pull the models of a URI into a registry, with their aliases.

    Existing versions are kept and not transferred. name, alias, pinned: for one model, its
    local name, additional local aliases, and its sha256 or seal. Raises as `plan_uri`,
    InputError if these are given for several models, Conflict if a number belongs to another
    local model.
    """
    plans = plan_uri(uri)
    if len(plans) > 1 and (name or alias or pinned):
        raise InputError(
            f"{excerpt(uri)} holds {len(plans)} models: a name, "
            "aliases and a hash need exactly one",
            code="USAGE",
        )
    out: list[Pulled] = []
    for plan in plans:
        primary = plan.versions[0]
        local_name = name or primary.name
        pulled = [fetch_to_registry(registry, local_name, primary, pinned)]
        pulled += [fetch_to_registry(registry, local_name, each) for each in plan.versions[1:]]
        apply_aliases(
            registry,
            local_name,
            {
                **plan.aliases,
                **{each: TrafficSplit.single(pulled[0].number or 0) for each in alias},
            },
        )
        out += pulled
    return out


def pull_to_directory(target: Path, uri: str, pinned: str | None = None) -> Pulled:
    """Pull the one model of a URI into a directory, at its latest version.

    Raises as `pull_to_registry`.
    """
    plans = plan_uri(uri)
    if len(plans) > 1:
        raise InputError(
            f"{excerpt(uri)} holds {len(plans)} models: choose one of them", code="USAGE"
        )
    return fetch_to_directory(plans[0].versions[0], target, pinned)


def apply_aliases(registry: Registry, name: str, routes: dict[str, TrafficSplit]) -> None:
    """Set the aliases in a registry that differ from these."""
    current, splits = registry.aliases.of(name), registry.aliases.splits(name)
    for alias, route in routes.items():
        present = splits.get(alias) or (
            TrafficSplit.single(current[alias]) if alias in current else None
        )
        if alias != LATEST and present != route:
            registry.aliases.set_split(name, alias, route)


def _plan_reference(home: StoragePath, mark: str, after: str) -> PullPlan:
    """Return the plan for NAME:3 or NAME@prod."""
    if mark == ":":
        return PullPlan((version_by_number(home, parse_number(after, home.name)),), {})
    if after == LATEST:
        return PullPlan((latest_version(home),), {})
    routes = read_aliases(home)
    if after not in routes:
        raise NotFound(
            f"{home.uri} has no alias {excerpt(after)!r}; "
            f"it has {', '.join(sorted(routes)) or 'none'}"
        )
    route = routes[after]
    primary = version_by_number(home, route.primary)
    others = [
        version_by_number(home, version) for version in route.versions if version != route.primary
    ]
    return PullPlan((primary, *others), {after: route})
