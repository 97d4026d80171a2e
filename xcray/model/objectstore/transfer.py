"""Files of a sealed directory to a storage and from there, at the speed of the network, every byte compared with its hash.

A sealed directory names its files with sizes and SHA-256 in a manifest. Sending: the files, then the manifest: a storage has no
rename, so the manifest is what makes a folder there whole. Fetching: pieces of a file are read side by side, and written and
hashed in their order, so what lies on disk is always a prefix, and a broken transfer goes on from its end.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple

from xcray.errors import Corrupt, NotFound, Refused, Stopped, Unavailable
from xcray.model.objectstore.client import NO_BUCKET, Place, patiently
from xcray.storage.atomic import sync_path, verify_files

PIECE: Final = 8 << 20  # bytes read at once: what makes a request worth its answer's way
AHEAD: Final = 6  # pieces of one file under way
FILES: Final = 4  # files at the same time; memory: PIECE * AHEAD * FILES at most
MANIFEST_BYTES: Final = 64 << 20
MANIFEST: Final = "manifest.json"
SPARE: Final = 64 << 20  # bytes of the disk that a transfer leaves free
MOST_FILES: Final = 10_000

Digests = Mapping[str, Mapping[str, Any]]


class Moved(NamedTuple):
    """What a transfer did. sent: bytes that travelled; kept: bytes that were there already."""

    sent: int
    kept: int


def checked(files: Digests, what: str) -> Digests:
    """The files that a manifest names. Raises Corrupt where one lies outside of its directory, or is no file's claim.

    A manifest comes from a stranger's storage: nothing is written, and no memory taken, before its claims are sane.
    """
    if not 0 < len(files) <= MOST_FILES:
        raise Corrupt(
            f"the manifest of {what} names {len(files):,} files; 1 to {MOST_FILES:,} can be",
            file=MANIFEST,
        )
    for name, entry in files.items():
        path = PurePosixPath(name)
        safe = (
            path.as_posix() == name
            and not path.is_absolute()
            and ".." not in path.parts
            and "\0" not in name
            and "\\" not in name
        )
        whole = (
            isinstance(entry, Mapping) and type(entry.get("bytes")) is int and entry["bytes"] >= 0
        )
        if not (
            safe
            and whole
            and name not in ("", ".", MANIFEST)
            and isinstance(entry.get("sha256"), str)
        ):
            raise Corrupt(
                f"the manifest of {what} names a file {name[:80]!r} that can't be: it was not made by xcray",
                file=MANIFEST,
            )
    folders = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    if clash := sorted(folders & set(files)):
        raise Corrupt(
            f"the manifest of {what} names {clash[0][:80]!r} as a file and as a folder",
            file=MANIFEST,
        )
    return files


def send(
    source: Path,
    files: Digests,
    manifest: bytes,
    target: Place,
    *,
    again: bool = False,
    stop: threading.Event | None = None,
) -> Moved:
    """Bring a sealed directory to `target`: what is there in its size stays, the manifest comes last, and only when all is there.

    again: send all files, also those that are there, which mends a damaged copy. The target's name must be made of the seal, so
    that nothing else than these bytes is ever written there. Raises Corrupt when a file is not what the manifest says,
    NotFound (bucket), Unavailable, Stopped.
    """
    there = {name: None if again else (target / name).size() for name in files}
    missing = {name: entry for name, entry in files.items() if there[name] != entry["bytes"]}
    verify_files(source, missing)  # before the first byte: a damaged model is nowhere
    _side_by_side(list(missing), lambda name: _send_file(source / name, target / name, stop))
    _check_stop(stop)
    target_manifest = target / MANIFEST
    if target_manifest.size() is None:
        target_manifest.write(manifest)
    sent = sum(entry["bytes"] for entry in missing.values())
    return Moved(sent, sum(entry["bytes"] for entry in files.values()) - sent)


def fetch(source: Place, files: Digests, into: Path, stop: threading.Event | None = None) -> Moved:
    """Bring the files of a folder into a directory, each verified and synced; goes on where an earlier one broke off.

    Raises Corrupt (an object is missing, or not what was sent), Refused (the disk is too small), Unavailable, Stopped.
    """
    into.mkdir(parents=True, exist_ok=True)
    total = sum(entry["bytes"] for entry in files.values())
    missing = total - sum(min(_size(into / name), entry["bytes"]) for name, entry in files.items())
    free = shutil.disk_usage(into).free
    if missing + SPARE > free:
        raise Refused(
            f"{source.shown} needs {missing:,} bytes more, {free:,} are free at {into}: make room",
            code="DISK_FULL",
        )
    largest_first = sorted(files, key=lambda name: -int(files[name]["bytes"]))
    with ThreadPoolExecutor(AHEAD * FILES, "xcray-pieces") as readers:
        sent = _side_by_side(
            largest_first,
            lambda name: _fetch_file(source / name, files[name], into / name, readers, stop),
        )
    for folder in sorted({(into / name).parent for name in files}):
        sync_path(folder)
    return Moved(sum(sent), total - sum(sent))


def _side_by_side(names: list[str], work: Callable[[str], int]) -> list[int]:
    """Work on some files at the same time. The first error ends it: nothing new is begun, and it is raised."""
    with ThreadPoolExecutor(FILES, "xcray-files") as pool:
        begun = [pool.submit(work, name) for name in names]
        try:
            return [future.result() for future in as_completed(begun)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _send_file(source: Path, target: Place, stop: threading.Event | None) -> int:
    """Stream one file; Arrow sends its parts side by side while the next are read."""

    def whole() -> int:
        if target.is_local:
            Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as handle, target.files.open_output_stream(target.path) as out:
            while piece := handle.read(PIECE):
                _check_stop(stop)
                out.write(piece)
            return handle.tell()

    sent = patiently(target, whole)
    if target.is_local:
        sync_path(target.path)
        sync_path(Path(target.path).parent)
    return sent


def _fetch_file(
    source: Place,
    entry: Mapping[str, Any],
    target: Path,
    readers: ThreadPoolExecutor,
    stop: threading.Event | None,
) -> int:
    """One file, after what an earlier transfer left of it, unless that proves wrong. The bytes that travelled."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = int(entry["bytes"])
    with open(target, "r+b" if target.exists() else "x+b") as out:
        digest = hashlib.sha256()
        begin = _take_up(out, size, digest)
        sent = _stream(source, begin, size, out, digest, readers, stop)
        if digest.hexdigest() != entry["sha256"] and begin:
            digest = hashlib.sha256()
            out.seek(0)
            out.truncate()
            sent += _stream(source, 0, size, out, digest, readers, stop)
        if digest.hexdigest() != entry["sha256"]:
            out.truncate(0)  # no other try shall build upon it
            raise Corrupt(
                f"{source.shown} is not what was sent (its checksum differs): push the model again, or restore it",
                file=source.name,
            )
        out.flush()
        os.fsync(out.fileno())
    return sent


def _take_up(out: IO[bytes], size: int, digest: Any) -> int:
    """Hash what is there already; how much that is."""
    if os.fstat(out.fileno()).st_size > size:
        out.truncate(0)
    while piece := out.read(PIECE):
        digest.update(piece)
    return out.tell()


def _stream(
    source: Place,
    begin: int,
    size: int,
    out: IO[bytes],
    digest: Any,
    readers: ThreadPoolExecutor,
    stop: threading.Event | None,
) -> int:
    """Bytes [begin, size) of an object: read side by side, written and hashed in order."""
    if begin == size:
        return 0
    opened = _open(source, size)
    starts = iter(range(begin, size, PIECE))
    under_way: deque[Future[bytes]] = deque()
    try:
        while True:
            while len(under_way) < AHEAD and (start := next(starts, None)) is not None:
                under_way.append(
                    readers.submit(_piece, source, opened, start, min(PIECE, size - start))
                )
            if not under_way:
                return size - begin
            _check_stop(stop)
            piece = under_way.popleft().result()
            out.write(piece)
            digest.update(piece)
    finally:
        for future in under_way:
            future.cancel()
        out.flush()  # what came is kept for the next try
        with suppress(OSError):
            opened.close()


def _open(source: Place, size: int) -> Any:
    """An object for reading, of the size it should have."""
    try:
        opened = patiently(source, lambda: source.files.open_input_file(source.path))
    except NotFound as error:
        if error.code == NO_BUCKET:
            raise
        raise Corrupt(
            f"{source.shown} is missing: push the model again", file=source.name
        ) from None
    found = opened.size()
    if found != size:
        raise Corrupt(
            f"{source.shown} has {found:,} bytes, {size:,} were sent: push the model again",
            file=source.name,
        )
    return opened


def _piece(source: Place, opened: Any, start: int, length: int) -> bytes:
    """A piece of an object; tried again where the connection breaks in the middle."""

    def read() -> bytes:
        piece = bytes(opened.read_at(length, start))
        if len(piece) != length:
            raise Unavailable(
                f"{source.shown} ended early at byte {start + len(piece):,}", code="STORAGE_AWAY"
            )
        return piece

    return patiently(source, read)


def _size(path: Path) -> int:
    """Bytes of a file, none where there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _check_stop(stop: threading.Event | None) -> None:
    """Raise Stopped when it was asked for."""
    if stop is not None and stop.is_set():
        raise Stopped("the transfer was stopped; what came is kept, the next one does the rest")
