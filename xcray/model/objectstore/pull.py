"""Pulling models from object storage by URI.

s3://bucket/models         the latest version of every model
s3://bucket/models/news    that of one of them
.../news:3                 one version of it
.../news/3-SEAL            exactly that version
any other folder           a plain copy of a model directory
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xcray.errors import InputError, NotFound, excerpt
from xcray.model.objectstore.remote_registry import Pulled, fetch_to_directory, fetch_to_registry
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


def versions_at(uri: str) -> list[RemoteVersion]:
    """Return the versions that a URI names: one, or the latest of each model in a folder.

    Raises NotFound if there is no model, ParameterError, Corrupt, Conflict, Unavailable.
    """
    path = StoragePath.parse(uri)
    before, sign, number = path.name.rpartition(":")
    if sign and NAME_PATTERN.fullmatch(before):
        return [version_by_number(path.parent / before, parse_number(number, before))]
    if version := version_of_folder(path):
        name = version.name if NAME_PATTERN.fullmatch(version.name) else "model"
        return [version._replace(name=name)]
    entries = path.list_entries()
    if any(VERSION_FOLDER.fullmatch(entry.name) for entry in entries if entry.n_bytes is None):
        return [latest_version(path)]
    versions = [latest_version(path / name) for name in list_names(path)]
    if not versions:
        raise NotFound(f"there is no model at {path.uri}: push one, or correct the URI")
    return versions


def pull_to_registry(
    registry: Registry,
    uri: str,
    *,
    name: str | None = None,
    alias: Sequence[str] = (),
    pinned: str | None = None,
) -> list[Pulled]:
    """Pull the models of a URI into a registry.

    Existing versions are kept and not transferred. name, alias, pinned: for one model, its
    local name, local aliases, and its sha256 or seal. Raises as `versions_at`, InputError if
    these are given for several models, Conflict if a number belongs to another local model.
    """
    versions = versions_at(uri)
    if len(versions) > 1 and (name or alias or pinned):
        raise InputError(
            f"{excerpt(uri)} holds {len(versions)} models: a name, "
            "aliases and a hash need exactly one",
            code="USAGE",
        )
    out = [fetch_to_registry(registry, name or each.name, each, pinned) for each in versions]
    split = TrafficSplit.single(out[0].number or 0)
    for each in alias:
        if registry.aliases.find_split(out[0].name, each) != split:
            registry.aliases.set_split(out[0].name, each, split)
    return out


def pull_to_directory(target: Path, uri: str, pinned: str | None = None) -> Pulled:
    """Pull the one model of a URI into a directory, at its latest version.

    Raises as `pull_to_registry`.
    """
    versions = versions_at(uri)
    if len(versions) > 1:
        raise InputError(
            f"{excerpt(uri)} holds {len(versions)} models: choose one of them", code="USAGE"
        )
    return fetch_to_directory(versions[0], target, pinned)
