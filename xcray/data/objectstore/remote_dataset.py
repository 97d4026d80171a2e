"""Versions of data sets in object storage.

    FOLDER/NAME/3-SEAL/...    version 3 of NAME: the files of a data set directory with its metric
                              forest, manifest.json last; URIs: see `resolve_versions`

SEAL is the SHA-256 of manifest.json and of the manifest of the metric forest, if there is one. They
hold the checksum of every file. A data set with another forest is therefore another version.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from xcray.data.dataset import FOREST, MANIFEST, Dataset, check_manifest
from xcray.errors import Corrupt, InputError, NotFound, XcrayError, excerpt
from xcray.storage.objectstore.client import NO_BUCKET, StoragePath
from xcray.storage.objectstore.transfer import (
    MAX_MANIFEST_BYTES,
    ReportBytes,
    TransferStats,
    check_files,
)
from xcray.storage.objectstore.versions import (
    Pushed,
    RemoteVersion,
    SealedDirectory,
    install_directory,
    push_version,
    resolve_versions,
)
from xcray.system.user_directories import cache_directory

FOREST_MANIFEST = f"{FOREST}/{MANIFEST}"


class RemoteDataset(NamedTuple):
    """A data set in a storage: its version, checked manifest, and what can be transferred."""

    version: RemoteVersion
    manifest: dict[str, Any]
    sealed: SealedDirectory


def push_dataset(source: Path, home: StoragePath, *, resend_all: bool = False) -> Pushed:
    """Upload a data set directory, with its metric forest, to the folder of its name.

    See `push_version`. Raises NotFound or Corrupt if it is not a complete data set.
    """
    Dataset.open(source)
    sealed = seal_directory(source)
    check_files(sealed.files, source.name)
    return push_version(source, sealed, home, resend_all=resend_all)


def seal_directory(path: Path) -> SealedDirectory:
    """Return what a push of a data set directory transfers. Raises NotFound or Corrupt."""
    raw, forest = (
        (path / name).read_bytes() if (path / name).exists() else b""
        for name in (MANIFEST, FOREST_MANIFEST)
    )
    return _seal(_parse(raw, path.name), raw, forest, path.name)


def read_remote_dataset(version: RemoteVersion) -> RemoteDataset:
    """Return a data set in a storage after checking its manifests.

    Raises NotFound for an incomplete upload, Corrupt for an invalid manifest, InputError for a
    model.
    """
    raw, forest, shown = version.read_manifest_bytes(), b"", version.path.uri
    try:
        forest = (version.path / FOREST / MANIFEST).read(MAX_MANIFEST_BYTES)
    except NotFound as error:
        if error.code == NO_BUCKET:
            raise
    manifest = check_manifest(_parse(raw, shown), shown)
    sealed = _seal(manifest, raw, forest, shown)
    check_files(sealed.files, shown)
    version.check_seal(sealed.seal)
    return RemoteDataset(version, manifest, sealed)


def resolve_dataset(uri: str) -> RemoteVersion:
    """Return the version that a URI names. Raises as `resolve_versions`, InputError for several."""
    versions = resolve_versions(uri, "data set")
    if len(versions) > 1:
        place = excerpt(uri)
        raise InputError(
            f"{place} holds {len(versions)} data sets, such as {versions[0].name}: "
            f"choose one, like {place}/{versions[0].name}",
            code="USAGE",
        )
    return versions[0]


class CopyPlan(NamedTuple):
    """A copy to make. uri: of exactly this version."""

    remote: RemoteDataset
    uri: str

    @property
    def cached(self) -> Path:
        """Its directory in the cache, named by its seal: it is made once, and never changed."""
        return cache_directory() / "datasets" / self.remote.sealed.seal

    def fetch(
        self,
        target: Path,
        stop: threading.Event | None = None,
        report: ReportBytes = lambda done, total: None,
    ) -> TransferStats | None:
        """Make the copy, unless it is there already, see `install_directory`."""
        remote = self.remote
        return install_directory(remote.version, remote.sealed, target, has_seal, stop, report)


def plan_copy(uri: str) -> CopyPlan:
    """Return how to copy the data set of a URI.

    Raises as `resolve_dataset` and `read_remote_dataset`.
    """
    remote = read_remote_dataset(resolve_dataset(uri))
    query = urlsplit(uri).query
    return CopyPlan(remote, remote.version.path.uri + (f"?{query}" if query else ""))


def has_seal(path: Path, seal: str) -> bool:
    """Whether a directory is the data set with this seal."""
    try:
        return seal_directory(path).seal == seal
    except (XcrayError, OSError):
        return False


def _parse(raw: bytes, shown: str) -> dict[str, Any]:
    """Return a manifest. Raises Corrupt."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise Corrupt(f"{shown}: {MANIFEST} is not readable JSON", file=MANIFEST) from None
    if not isinstance(content, dict):
        raise Corrupt(f"{shown}: {MANIFEST} is not that of a data set", file=MANIFEST)
    return content


def _seal(manifest: Mapping[str, Any], raw: bytes, forest: bytes, shown: str) -> SealedDirectory:
    """Return what is transferred. raw, forest: the manifests as bytes; forest can be empty."""
    files = dict(_files_of(manifest, shown))
    if forest:
        entry = {"bytes": len(forest), "sha256": hashlib.sha256(forest).hexdigest()}
        parts = _files_of(_parse(forest, f"{shown}/{FOREST}"), f"{shown}/{FOREST}")
        files |= {f"{FOREST}/{name}": each for name, each in parts.items()}
        files[FOREST_MANIFEST] = entry
    return SealedDirectory(files, raw, hashlib.sha256(raw + forest).hexdigest())


def _files_of(manifest: Mapping[str, Any], shown: str) -> Mapping[str, Any]:
    """Return the files of a manifest. Raises Corrupt."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise Corrupt(f"the manifest of {shown} lists no files", file=MANIFEST)
    return files
