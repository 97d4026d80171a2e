"""Model versions in object storage: layout, upload, and download into a registry.

    FOLDER/NAME/3-SEAL/...            version 3 of NAME, its files as in a model directory,
                                      see `xcray.storage.objectstore.versions`
    FOLDER/NAME/aliases.json          the aliases at the last synchronisation
    FOLDER/_tenants/TENANT/NAME/...   the same layout for tenants other than default

SEAL is the checksum of the manifest, which holds the checksum of every file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError
from xcray.model.manifest import MANIFEST, parse_manifest, read_manifest
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.storage.atomic import check_name, discard_directory
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.transfer import MAX_MANIFEST_BYTES, TransferStats, check_files
from xcray.storage.objectstore.versions import (
    STAGING_PREFIX,
    Pushed,
    RemoteVersion,
    SealedDirectory,
    check_pinned_hash,
    install_directory,
    list_names,
    push_version,
    stage_files,
)
from xcray.system.file_lock import exclusive_lock

ALIASES_FILE: Final = "aliases.json"
TENANTS_FOLDER: Final = "_tenants"


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


def tenant_names(folder: StoragePath) -> list[str]:
    """Return the tenants other than default that have models in a folder."""
    return list_names(folder / TENANTS_FOLDER)


def read_aliases(home: StoragePath) -> dict[str, TrafficSplit]:
    """Return the aliases at the last synchronisation. Raises Corrupt."""
    path = home / ALIASES_FILE
    return {} if path.size() is None else decode_aliases(path.read(MAX_MANIFEST_BYTES), path.uri)


def encode_aliases(routes: Mapping[str, TrafficSplit]) -> bytes:
    """Serialise aliases."""
    entries = {alias: route.as_dict() for alias, route in routes.items()}
    return (
        json.dumps({"schema_version": 1, "aliases": entries}, indent=2, sort_keys=True) + "\n"
    ).encode()


def decode_aliases(raw: bytes, shown: str) -> dict[str, TrafficSplit]:
    """Deserialise the aliases in an object. Raises Corrupt."""
    try:
        content = json.loads(raw)
        if content["schema_version"] != 1:
            raise Corrupt(
                f"{shown} has schema version {content['schema_version']}, "
                "this xcray reads 1: use a newer xcray"
            )
        return {
            check_name(alias, "alias"): TrafficSplit.from_dict(route)
            for alias, route in content["aliases"].items()
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        ParameterError,
        RecursionError,
    ) as error:
        raise Corrupt(
            f"{shown} does not hold aliases: {type(error).__name__}; "
            "the next synchronisation repairs it"
        ) from None


def push(
    source: Path,
    home: StoragePath,
    number: int | None = None,
    *,
    resend_all: bool = False,
    stop: threading.Event | None = None,
) -> Pushed:
    """Upload a model directory to the folder of its name, see `push_version`.

    Raises NotFound or Corrupt if it is not a complete model.
    """
    check_name(home.name, "model name")
    manifest = read_manifest(source)
    files = check_files(manifest["files"], source.name)
    sealed = SealedDirectory(files, (source / MANIFEST).read_bytes(), manifest["seal"])
    return push_version(source, sealed, home, number, resend_all=resend_all, stop=stop)


def fetch_to_directory(
    remote: RemoteVersion,
    target: Path,
    pinned: str | None = None,
) -> Pulled:
    """Download a version to the directory `target`, see `install_directory`."""
    manifest, sealed = read_remote_manifest(remote)
    check_pinned_hash(sealed.seal, manifest["sha256"], pinned, remote.path.uri)
    moved = install_directory(remote, sealed, target, has_seal)
    return Pulled(remote.path.uri, target, remote.name, None, manifest["sha256"], moved)


def fetch_to_registry(
    registry: Registry,
    name: str,
    remote: RemoteVersion,
    pinned: str | None = None,
    stop: threading.Event | None = None,
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
            moved = stage_files(remote, sealed, staged, stop)
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
