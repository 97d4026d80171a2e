"""Model versions in object storage: layout, upload, and download into a registry.

    FOLDER/NAME/3-SEAL/...            version 3 of NAME, its files as in a model directory,
                                      see `xcray.storage.objectstore.versions`

SEAL is the checksum of the manifest, which holds the checksum of every file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xcray.errors import Conflict, Corrupt, InputError, NotFound, excerpt
from xcray.model.aliases import check_alias
from xcray.model.manifest import MANIFEST, parse_manifest, read_manifest
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.storage.atomic import NAME_PATTERN, check_name, discard_directory
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.transfer import TransferStats, check_files
from xcray.storage.objectstore.versions import (
    STAGING_PREFIX,
    Pushed,
    RemoteVersion,
    SealedDirectory,
    check_pinned_hash,
    install_directory,
    push_version,
    resolve_versions,
    stage_files,
)
from xcray.system.file_lock import exclusive_lock


class Pulled(NamedTuple):
    """Result of a pull.

    The CLI prints the fields as JSON. path: the model directory; number: its version in the
    registry, None for a plain directory; moved: None if it was there already.
    """

    source: str
    path: Path
    name: str
    number: int | None
    sha256: str
    moved: TransferStats | None


def read_remote_manifest(remote: RemoteVersion) -> tuple[dict[str, Any], SealedDirectory]:
    """Return the validated manifest of a model, and what is to be transferred.

    Raises NotFound for an incomplete upload, Corrupt for an invalid or newer manifest.
    """
    raw = remote.read_manifest_bytes()
    manifest = parse_manifest(raw)
    files = check_files(manifest["files"], remote.path.uri)
    remote.check_seal(manifest["seal"])
    return manifest, SealedDirectory(files, raw, manifest["seal"])


def push(
    source: Path,
    home: StoragePath,
    number: int | None = None,
    *,
    resend_all: bool = False,
) -> Pushed:
    """Upload a model directory to the folder of its name, see `push_version`.

    Raises NotFound or Corrupt if it is not a complete model.
    """
    check_name(home.name, "model name")
    manifest = read_manifest(source)
    files = check_files(manifest["files"], source.name)
    sealed = SealedDirectory(files, (source / MANIFEST).read_bytes(), manifest["seal"])
    return push_version(source, sealed, home, number, resend_all=resend_all)


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
    local name, local aliases, and its sha256 or seal. Raises as `resolve_versions`, InputError if
    these are given for several models, Conflict if a number belongs to another local model.
    """
    versions = _versions_at(uri)
    if len(versions) > 1 and (name or alias or pinned):
        raise InputError(
            f"{excerpt(uri)} holds {len(versions)} models: a name, "
            "aliases and a hash need exactly one",
            code="USAGE",
        )
    for each in alias:
        check_alias(each)
    out = [_fetch_to_registry(registry, name or each.name, each, pinned) for each in versions]
    split = TrafficSplit.single(out[0].number or 0)
    for each in alias:
        if registry.aliases.find_split(out[0].name, each) != split:
            registry.aliases.set_split(out[0].name, each, split)
    return out


def pull_to_directory(target: Path, uri: str, pinned: str | None = None) -> Pulled:
    """Pull the one model of a URI into a directory, at its latest version.

    Raises as `pull_to_registry`.
    """
    versions = _versions_at(uri)
    if len(versions) > 1:
        raise InputError(
            f"{excerpt(uri)} holds {len(versions)} models: choose one of them", code="USAGE"
        )
    return _fetch_to_directory(versions[0], target, pinned)


def _versions_at(uri: str) -> list[RemoteVersion]:
    """Return the versions that a URI names; one in a folder without a valid name is "model"."""
    versions = resolve_versions(uri, "model")
    return [
        each if NAME_PATTERN.fullmatch(each.name) else each._replace(name="model")
        for each in versions
    ]


def _fetch_to_directory(
    remote: RemoteVersion,
    target: Path,
    pinned: str | None = None,
) -> Pulled:
    """Download a version to the directory `target`, see `install_directory`."""
    manifest, sealed = read_remote_manifest(remote)
    check_pinned_hash(sealed.seal, manifest["sha256"], pinned, remote.path.uri)
    moved = install_directory(remote, sealed, target, has_seal)
    return Pulled(remote.path.uri, target, remote.name, None, manifest["sha256"], moved)


def _fetch_to_registry(
    registry: Registry,
    name: str,
    remote: RemoteVersion,
    pinned: str | None = None,
) -> Pulled:
    """Download a version into a registry under its number, unless it is there already.

    Raises Conflict if the number belongs to another model.
    """
    manifest, sealed = read_remote_manifest(remote)
    check_pinned_hash(sealed.seal, manifest["sha256"], pinned, remote.path.uri)
    home = registry.root / check_name(name, "model name")
    with exclusive_lock(home / ".pull.lock"):
        number = _local_number(registry, name, remote.number, sealed.seal)
        moved = None
        if number is None:
            staged = home / f"{STAGING_PREFIX}{sealed.seal[:32]}.part"
            moved = stage_files(remote, sealed, staged)
            number = registry.publish(
                name, staged, number=remote.number, verified=True, source=remote.path.uri
            )
            # staging directories of abandoned downloads
            for leftover in home.glob(f"{STAGING_PREFIX}*.part"):
                discard_directory(leftover)
    path = registry.resolve(f"{name}:{number}")
    return Pulled(remote.path.uri, path, name, number, manifest["sha256"], moved)


def _local_number(registry: Registry, name: str, number: int | None, seal: str) -> int | None:
    """Return the number of a model in a registry; None if it is missing.

    Raises Conflict if its number belongs to another model.
    """
    existing = registry.versions(name)
    same = [each for each in existing if has_seal(registry.resolve(f"{name}:{each}"), seal)]
    if number is None or number in same:
        return number if number in same else next(iter(same), None)
    if number in existing:
        raise Conflict(
            f"{name}:{number} is another model here: pull it under another name (--name)",
            code="VERSION_TAKEN",
        )
    return None


def has_seal(path: Path, seal: str) -> bool:
    """Whether a directory is the model with this seal."""
    try:
        return bool(read_manifest(path)["seal"] == seal)
    except (NotFound, Corrupt):
        return False
