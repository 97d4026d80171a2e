"""Model versions in object storage: layout, upload, and download into a registry.

    FOLDER/NAME/3-SEAL/...            version 3 of NAME, its files as in a model directory,
                                      manifest.json last
    FOLDER/NAME/aliases.json          the aliases at the last synchronisation
    FOLDER/_tenants/TENANT/NAME/...   the same layout for tenants other than default

SEAL is the checksum of the manifest, which holds the checksum of every file. A folder can therefore
hold only one model. Concurrent pushes overwrite nothing, and no lock is needed. A folder without
its manifest is not yet a version.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, excerpt
from xcray.model.directory import MANIFEST, parse_manifest, read_manifest
from xcray.model.objectstore.client import NO_BUCKET, StoragePath
from xcray.model.objectstore.transfer import (
    MAX_MANIFEST_BYTES,
    TransferStats,
    check_files,
    download_files,
    upload_files,
)
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.storage.atomic import (
    NAME_PATTERN,
    check_name,
    discard_directory,
    publish_directory,
    write_bytes,
)
from xcray.system.file_lock import exclusive_lock

ALIASES_FILE: Final = "aliases.json"
NO_VERSION: Final = "NO_VERSION"
TENANTS_FOLDER: Final = "_tenants"
VERSION_FOLDER: Final = re.compile(r"([1-9]\d{0,8})-([0-9a-f]{64})")
STAGING_PREFIX: Final = ".pull-"
SHA256: Final = re.compile(r"[0-9a-f]{64}")


class RemoteVersion(NamedTuple):
    """A version in a storage. number and seal: None if its folder name does not contain them."""

    path: StoragePath
    name: str
    number: int | None
    seal: str | None

    def read_manifest(self) -> tuple[dict[str, Any], bytes]:
        """Return the validated manifest and its raw bytes.

        Raises NotFound for an incomplete upload, Corrupt for an invalid or newer manifest.
        """
        try:
            raw = (self.path / MANIFEST).read(MAX_MANIFEST_BYTES)
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            raise NotFound(
                f"there is no complete model at {self.path.uri}: it has no {MANIFEST}, "
                "which is uploaded last; push it again",
                code="HALF_PUSHED",
            ) from None
        manifest = parse_manifest(raw)
        check_files(manifest["files"], self.path.uri)
        if self.seal is not None and manifest["seal"] != self.seal:
            raise Corrupt(
                f"{self.path.uri} holds a different model than its name: restore it or push again",
                file=MANIFEST,
            )
        return manifest, raw


class Pushed(NamedTuple):
    """Result of a push: where the model is. moved.sent is 0 if it was there already."""

    uri: str
    name: str
    number: int
    seal: str
    moved: TransferStats


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


def model_names(folder: StoragePath) -> list[str]:
    """Return the names of the models in a folder."""
    return [
        entry.name
        for entry in folder.list_entries()
        if entry.n_bytes is None and NAME_PATTERN.fullmatch(entry.name)
    ]


def tenant_names(folder: StoragePath) -> list[str]:
    """Return the tenants other than default that have models in a folder."""
    return model_names(folder / TENANTS_FOLDER)


def list_versions(home: StoragePath) -> list[RemoteVersion]:
    """Return the versions in a model's folder by number, including incomplete uploads.

    Raises NotFound (bucket), Unavailable.
    """
    matches = [
        VERSION_FOLDER.fullmatch(entry.name)
        for entry in home.list_entries()
        if entry.n_bytes is None
    ]
    remotes = [
        RemoteVersion(home / each.group(0), home.name, int(each.group(1)), each.group(2))
        for each in matches
        if each
    ]
    return sorted(remotes, key=lambda remote: (remote.number, remote.seal))


def is_complete(remote: RemoteVersion) -> bool:
    """Whether the upload of a version is complete."""
    return (remote.path / MANIFEST).size() is not None


def latest_version(home: StoragePath) -> RemoteVersion:
    """Return the complete version with the highest number.

    Raises NotFound, and Conflict if two models claim that number.
    """
    complete: list[RemoteVersion] = []
    for remote in reversed(list_versions(home)):
        if complete and remote.number != complete[0].number:
            break
        if is_complete(remote):
            complete.append(remote)
    if not complete:
        raise NotFound(f"there is no complete model at {home.uri}: push one", code=NO_VERSION)
    return _require_one(complete)


def version_by_number(home: StoragePath, number: int) -> RemoteVersion:
    """Return a version by number. Raises NotFound, and Conflict if two models claim it."""
    complete = [
        remote for remote in list_versions(home) if remote.number == number and is_complete(remote)
    ]
    if not complete:
        raise NotFound(f"there is no complete version {number} at {home.uri}")
    return _require_one(complete)


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
    """Upload a model directory to the folder of its name.

    number: version number; by default the next one, unless the model is there already.
    resend_all: upload all files, see `upload_files`. Raises NotFound or Corrupt (not a complete
    model), ParameterError (invalid name), Conflict (another model has the number), Unavailable,
    Stopped.
    """
    check_name(home.name, "model name")
    manifest = read_manifest(source)
    check_files(manifest["files"], source.name)
    seal, existing = manifest["seal"], list_versions(home)
    if number is None:
        same = [
            remote.number
            for remote in existing
            if remote.seal == seal and remote.number is not None
        ]
        number = (
            same[-1] if same else max((remote.number or 0 for remote in existing), default=0) + 1
        )
    for remote in existing:
        if remote.number == number and remote.seal != seal and is_complete(remote):
            raise Conflict(
                f"{home.uri} has another model as version {number}: "
                "push under another name, or pull that one first",
                code="VERSION_TAKEN",
            )
    target = home / f"{number}-{seal}"
    if not resend_all and (target / MANIFEST).size() is not None:
        return Pushed(
            target.uri,
            home.name,
            number,
            seal,
            TransferStats(0, sum(entry["bytes"] for entry in manifest["files"].values())),
        )
    moved = upload_files(
        source,
        manifest["files"],
        (source / MANIFEST).read_bytes(),
        target,
        resend_all=resend_all,
        stop=stop,
    )
    return Pushed(target.uri, home.name, number, seal, moved)


def fetch_to_directory(
    remote: RemoteVersion,
    target: Path,
    pinned: str | None = None,
    stop: threading.Event | None = None,
) -> Pulled:
    """Download a version to the directory `target` by one rename, unless it is there already.

    Raises Conflict if `target` holds something else.
    """
    manifest, raw = remote.read_manifest()
    check_pinned_hash(manifest, pinned, remote.path.uri)
    facts = (remote.path.uri, target, remote.name, None, manifest["sha256"])
    with exclusive_lock(target.parent / f".{target.name}.pull.lock"):
        if target.exists():
            if has_seal(target, manifest["seal"]):
                return Pulled(*facts, None)
            raise Conflict(
                f"{target} exists already and is not this model: "
                "choose another directory, or remove it"
            )
        staged, moved = _stage_files(remote, manifest, raw, target.parent, stop)
        publish_directory(staged, target)
    return Pulled(*facts, moved)


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
    manifest, raw = remote.read_manifest()
    check_pinned_hash(manifest, pinned, remote.path.uri)
    home = registry.root / check_name(name, "model name")
    with exclusive_lock(home / ".pull.lock"):
        number = _local_number(registry, name, remote.number, manifest["seal"])
        moved = None
        if number is None:
            staged, moved = _stage_files(remote, manifest, raw, home, stop)
            number = registry.publish(
                name, staged, number=remote.number, verified=True, source=remote.path.uri
            )
            # staging directories of abandoned downloads
            for leftover in home.glob(f"{STAGING_PREFIX}*.part"):
                discard_directory(leftover)
    return Pulled(
        remote.path.uri,
        registry.resolve(f"{name}:{number}"),
        name,
        number,
        manifest["sha256"],
        moved,
    )


def check_pinned_hash(manifest: Mapping[str, Any], pinned: str | None, shown: str) -> None:
    """Raise Corrupt unless a manifest has the pinned seal or sha256.

    Raises ParameterError if `pinned` is not a hash.
    """
    if pinned is None:
        return
    if not SHA256.fullmatch(pinned.lower()):
        raise ParameterError(
            f"{excerpt(pinned)!r} is not a SHA-256: write its 64 hexadecimal digits", code="HASH"
        )
    if pinned.lower() not in (manifest["seal"], manifest["sha256"]):
        raise Corrupt(
            f"{shown} is not the requested model: its sha256 is {manifest['sha256']}, "
            f"its seal {manifest['seal']}"
        )


def _require_one(complete: list[RemoteVersion]) -> RemoteVersion:
    """Return the only candidate. Raises Conflict if there are several."""
    if len(complete) > 1:
        claims = ", ".join(remote.path.uri for remote in complete)
        raise Conflict(
            f"two models claim to be the same version: {claims}; name one of them, or remove one",
            code="VERSION_TAKEN",
        )
    return complete[0]


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


def _stage_files(
    remote: RemoteVersion,
    manifest: Mapping[str, Any],
    raw: bytes,
    parent: Path,
    stop: threading.Event | None,
) -> tuple[Path, TransferStats]:
    """Download a version into a directory that the next attempt finds again.

    Its manifest is written last.
    """
    staged = parent / f"{STAGING_PREFIX}{manifest['seal'][:32]}.part"
    _discard_if_foreign(staged, manifest["files"])
    moved = download_files(remote.path, manifest["files"], staged, stop)
    write_bytes(staged / MANIFEST, raw)
    return staged, moved


def _discard_if_foreign(staged: Path, files: Mapping[str, Any]) -> None:
    """Discard the staging directory if it has files that no earlier attempt can have written."""
    known = {MANIFEST, *files}
    if staged.is_dir() and any(
        path.relative_to(staged).as_posix() not in known
        for path in staged.rglob("*")
        if path.is_file()
    ):
        discard_directory(staged)
