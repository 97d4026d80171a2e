"""Versions of data sets in object storage.

    FOLDER/NAME/3-SEAL/...    version 3 of NAME: the files of a data set directory with its metric
                              forest, manifest.json last; see `xcray.storage.objectstore.versions`

SEAL is the SHA-256 of manifest.json and of the manifest of the metric forest, if there is one. They
hold the checksum of every file. A data set with another forest is therefore another version.

s3://bucket/datasets/news      the latest version of news
.../news:3                     version 3
.../news/3-SEAL                exactly that version
any other folder               a plain copy of a data set directory, or a folder with one data set
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.dataset import FOREST, MANIFEST, Dataset, check_manifest
from xcray.errors import Corrupt, InputError, NotFound, XcrayError, excerpt
from xcray.storage.atomic import NAME_PATTERN
from xcray.storage.objectstore.client import NO_BUCKET, StoragePath
from xcray.storage.objectstore.transfer import (
    MAX_MANIFEST_BYTES,
    check_files,
)
from xcray.storage.objectstore.versions import (
    VERSION_FOLDER,
    Pushed,
    RemoteVersion,
    SealedDirectory,
    latest_version,
    list_names,
    parse_number,
    push_version,
    version_by_number,
    version_of_folder,
)

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
    """Return the version that a URI names.

    Raises NotFound if there is none, InputError if there are several data sets, ParameterError,
    Conflict, Unavailable.
    """
    path = StoragePath.parse(uri)
    before, sign, after = path.name.rpartition(":")
    if sign and NAME_PATTERN.fullmatch(before):
        return version_by_number(path.parent / before, parse_number(after, before))
    if version := version_of_folder(path):
        return version
    folders = [entry.name for entry in path.list_entries() if entry.n_bytes is None]
    if any(VERSION_FOLDER.fullmatch(name) for name in folders):
        return latest_version(path)
    names = list_names(path)
    if not names:
        raise NotFound(f"there is no data set at {path.uri}: push one, or correct the URI")
    if len(names) > 1:
        raise InputError(
            f"{excerpt(path.uri)} holds {len(names)} data sets, such as {names[0]}: "
            f"choose one, like {excerpt(path.uri)}/{names[0]}",
            code="USAGE",
        )
    return latest_version(path / names[0])


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
