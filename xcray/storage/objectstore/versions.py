"""Versions of sealed directories in object storage: layout, listing, upload and download.

    FOLDER/NAME/3-SEAL/...    version 3 of NAME: the files of a directory, manifest.json last

SEAL is a checksum of the manifest, which holds the checksum of every file. A folder can therefore
hold only one content. Concurrent pushes overwrite nothing, and no lock is needed. A folder without
its manifest is not yet a version.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, excerpt
from xcray.storage.atomic import (
    NAME_PATTERN,
    check_name,
    discard_directory,
    publish_directory,
    write_bytes,
)
from xcray.storage.objectstore.client import NO_BUCKET, StoragePath
from xcray.storage.objectstore.transfer import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Digests,
    ReportBytes,
    TransferStats,
    download_files,
    upload_files,
)
from xcray.system.file_lock import exclusive_lock

NO_VERSION: Final = "NO_VERSION"
VERSION_FOLDER: Final = re.compile(r"([1-9]\d{0,8})-([0-9a-f]{64})")
STAGING_PREFIX: Final = ".pull-"
SHA256: Final = re.compile(r"[0-9a-f]{64}")


class RemoteVersion(NamedTuple):
    """A version in a storage. number and seal: None if its folder name does not contain them."""

    path: StoragePath
    name: str
    number: int | None
    seal: str | None

    def read_manifest_bytes(self) -> bytes:
        """Return the manifest as it was written. Raises NotFound for an incomplete upload."""
        try:
            return (self.path / MANIFEST).read(MAX_MANIFEST_BYTES)
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            raise NotFound(
                f"there is no complete version at {self.path.uri}: it has no {MANIFEST}, "
                "which is uploaded last; push it again",
                code="HALF_PUSHED",
            ) from None

    def check_seal(self, seal: str) -> None:
        """Raise Corrupt if the name of the folder contains another seal."""
        if self.seal not in (None, seal):
            raise Corrupt(
                f"{self.path.uri} holds something else than its name: restore it or push again",
                file=MANIFEST,
            )


class SealedDirectory(NamedTuple):
    """A directory to transfer. files: all except the manifest; seal: of the manifest."""

    files: Digests
    manifest: bytes
    seal: str

    @property
    def n_bytes(self) -> int:
        """Bytes of the files."""
        return sum(int(entry["bytes"]) for entry in self.files.values())


class Pushed(NamedTuple):
    """Result of a push: where the version is. moved.sent is 0 if it was there already."""

    uri: str
    name: str
    number: int
    seal: str
    moved: TransferStats


def list_versions(home: StoragePath) -> list[RemoteVersion]:
    """Return the versions in the folder of a name by number, including incomplete uploads.

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


def _is_complete(remote: RemoteVersion) -> bool:
    """Whether the upload of a version is complete."""
    return (remote.path / MANIFEST).size() is not None


def _latest_version(home: StoragePath) -> RemoteVersion:
    """Return the complete version with the highest number.

    Raises NotFound, and Conflict if two contents claim that number.
    """
    complete: list[RemoteVersion] = []
    for remote in reversed(list_versions(home)):
        if complete and remote.number != complete[0].number:
            break
        if _is_complete(remote):
            complete.append(remote)
    if not complete:
        raise NotFound(f"there is no complete version at {home.uri}: push one", code=NO_VERSION)
    return _require_one(complete)


def _version_by_number(home: StoragePath, number: int) -> RemoteVersion:
    """Return a version by number. Raises NotFound, and Conflict if two contents claim it."""
    complete = [
        remote for remote in list_versions(home) if remote.number == number and _is_complete(remote)
    ]
    if not complete:
        raise NotFound(f"there is no complete version {number} at {home.uri}")
    return _require_one(complete)


def resolve_versions(uri: str, kind: str) -> list[RemoteVersion]:
    """Return the versions that a URI names: one, or the latest of each name in a folder.

    FOLDER/NAME is the latest version of NAME, FOLDER/NAME:3 version 3, FOLDER/NAME/3-SEAL exactly
    that one. Any other folder with a manifest is a plain copy of a directory, and one without holds
    names. kind: for messages. Raises NotFound, ParameterError, Conflict, Unavailable.
    """
    path = StoragePath.parse(uri)
    name, sign, number = path.name.rpartition(":")
    if sign and NAME_PATTERN.fullmatch(name):
        return [_version_by_number(path.parent / name, _parse_number(number, name))]
    if version := VERSION_FOLDER.fullmatch(path.name):
        return [RemoteVersion(path, path.parent.name, int(version.group(1)), version.group(2))]
    if (path / MANIFEST).size() is not None:
        return [RemoteVersion(path, path.name, None, None)]
    entries = path.list_entries()
    if any(VERSION_FOLDER.fullmatch(entry.name) for entry in entries if entry.n_bytes is None):
        return [_latest_version(path)]
    names = [each.name for each in entries if each.n_bytes is None]
    versions = [_latest_version(path / each) for each in names if NAME_PATTERN.fullmatch(each)]
    if not versions:
        raise NotFound(f"there is no {kind} at {path.uri}: push one, or correct the URI")
    return versions


def _parse_number(text: str, name: str) -> int:
    """Return the number in NAME:NUMBER. Raises ParameterError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ParameterError(f"version {excerpt(text)!r} is not a number; write {name}:1")
    return int(text)


def _require_one(complete: list[RemoteVersion]) -> RemoteVersion:
    """Return the only candidate. Raises Conflict if there are several."""
    if len(complete) > 1:
        claims = ", ".join(remote.path.uri for remote in complete)
        raise Conflict(
            f"{len(complete)} pushes claim to be the same version: {claims}; name one of them, "
            "or remove one",
            code="VERSION_TAKEN",
        )
    return complete[0]


def push_version(
    source: Path,
    sealed: SealedDirectory,
    home: StoragePath,
    number: int | None = None,
    *,
    resend_all: bool = False,
) -> Pushed:
    """Upload the directory `source` to the folder of its name.

    number: version number; by default the next one, unless the content is there already.
    resend_all: upload all files, see `upload_files`. Raises ParameterError (invalid name), Corrupt
    (a file differs from the manifest), Conflict (another content has the number), Unavailable.
    """
    check_name(home.name)
    existing = list_versions(home)
    if number is None:
        number = _next_number(existing, sealed.seal)
    for remote in existing:
        if remote.number == number and remote.seal != sealed.seal and _is_complete(remote):
            raise Conflict(
                f"{home.uri} has something else as version {number}: "
                "push under another name, or pull that one first",
                code="VERSION_TAKEN",
            )
    target = home / f"{number}-{sealed.seal}"
    if not resend_all and (target / MANIFEST).size() is not None:
        moved = TransferStats(0, sealed.n_bytes)
    else:
        moved = upload_files(source, sealed.files, sealed.manifest, target, resend_all=resend_all)
    return Pushed(target.uri, home.name, number, sealed.seal, moved)


def _next_number(existing: list[RemoteVersion], seal: str) -> int:
    """Return the number of the version with a seal, or else the next one."""
    same = [each.number for each in existing if each.seal == seal and each.number is not None]
    return same[-1] if same else max((each.number or 0 for each in existing), default=0) + 1


def check_pinned_hash(seal: str, sha256: str, pinned: str | None, shown: str) -> None:
    """Raise Corrupt unless a version has the pinned seal or sha256.

    Raises ParameterError if `pinned` is not a hash.
    """
    if pinned is None:
        return
    if not SHA256.fullmatch(pinned.lower()):
        raise ParameterError(
            f"{excerpt(pinned)!r} is not a SHA-256: write its 64 hexadecimal digits", code="HASH"
        )
    if pinned.lower() not in (seal, sha256):
        raise Corrupt(
            f"{shown} is not the requested version: its sha256 is {sha256}, its seal {seal}"
        )


def install_directory(
    remote: RemoteVersion,
    sealed: SealedDirectory,
    target: Path,
    has_seal: Callable[[Path, str], bool],
    stop: threading.Event | None = None,
    report: ReportBytes = lambda done, total: None,
) -> TransferStats | None:
    """Download a version to the directory `target` by one rename, unless it is there already.

    has_seal: whether a directory has the content of a seal. report: see `download_files`.
    Returns None if nothing was transferred. Raises Conflict if `target` holds something else.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(target.parent / f".{target.name}.pull.lock"):
        if target.exists():
            if has_seal(target, sealed.seal):
                return None
            raise Conflict(
                f"{target} exists already and is something else than {remote.path.uri}: "
                "choose another directory, or remove it"
            )
        staged = target.parent / f"{STAGING_PREFIX}{target.name}-{sealed.seal[:32]}.part"
        moved = stage_files(remote, sealed, staged, stop, report)
        publish_directory(staged, target)
    return moved


def stage_files(
    remote: RemoteVersion,
    sealed: SealedDirectory,
    staged: Path,
    stop: threading.Event | None = None,
    report: ReportBytes = lambda done, total: None,
) -> TransferStats:
    """Download a version into the directory `staged`, where the next attempt continues.

    Its manifest is written last.
    """
    _discard_if_foreign(staged, sealed.files)
    moved = download_files(remote.path, sealed.files, staged, stop, report)
    write_bytes(staged / MANIFEST, sealed.manifest)
    return moved


def _discard_if_foreign(staged: Path, files: Digests) -> None:
    """Discard the staging directory if it has files that no earlier attempt can have written."""
    known = {MANIFEST, *files}
    if staged.is_dir() and any(
        path.relative_to(staged).as_posix() not in known
        for path in staged.rglob("*")
        if path.is_file()
    ):
        discard_directory(staged)
