"""Transfer of a sealed directory to and from a storage, with every byte verified by its hash.

The manifest of a sealed directory lists its files with sizes and SHA-256. An upload writes the
files first and the manifest last: a storage has no rename, so the manifest marks a folder as
complete. A download reads pieces of a file in parallel, and writes and hashes them in order. So the
bytes on disk are always a prefix, and an interrupted transfer resumes at its end.
"""

from __future__ import annotations

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
from xcray.storage.atomic import FileHash, is_file_entry, sync_path, verify_files
from xcray.storage.objectstore.client import NO_BUCKET, StoragePath, with_retries

# bytes per request, large enough to hide the latency
PIECE_BYTES: Final = 8 << 20
PIECES_AHEAD: Final = 6  # pieces of one file in flight
# parallel files; memory: at most PIECE_BYTES * PIECES_AHEAD * PARALLEL_FILES
PARALLEL_FILES: Final = 4
MAX_MANIFEST_BYTES: Final = 64 << 20
MANIFEST: Final = "manifest.json"
SPARE_DISK_BYTES: Final = 64 << 20  # disk space that a transfer leaves free
MAX_FILES: Final = 10_000

Digests = Mapping[str, Mapping[str, Any]]
ReportBytes = Callable[[int, int], None]  # (bytes that are there, bytes in total)


class _ByteCounter:
    """Counts and reports the bytes of a download, from several threads."""

    def __init__(self, done: int, total: int, report: ReportBytes) -> None:
        self._done, self._total, self._report = done, total, report
        self._lock = threading.Lock()
        report(done, total)

    def add(self, n_bytes: int) -> None:
        """Report more bytes; files that are transferred again count once."""
        with self._lock:
            self._done = min(self._done + n_bytes, self._total)
            self._report(self._done, self._total)


class TransferStats(NamedTuple):
    """Result of a transfer. sent: bytes transferred; kept: bytes that were there already."""

    sent: int
    kept: int


def check_files(files: Digests, what: str) -> Digests:
    """Return the files of a manifest.

    Raises Corrupt if a path is outside the directory or an entry is invalid.
    """
    if not 0 < len(files) <= MAX_FILES:
        raise Corrupt(
            f"the manifest of {what} lists {len(files):,} files; 1 to {MAX_FILES:,} are allowed",
            file=MANIFEST,
        )
    for name, entry in files.items():
        if name == MANIFEST or not is_file_entry(name, entry):
            raise Corrupt(
                f"the manifest of {what} lists an invalid file {name[:80]!r}: "
                "it was not made by xcray",
                file=MANIFEST,
            )
    folders = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    if clash := sorted(folders & set(files)):
        raise Corrupt(
            f"the manifest of {what} lists {clash[0][:80]!r} as a file and as a folder",
            file=MANIFEST,
        )
    return files


def upload_files(
    source: Path,
    files: Digests,
    manifest: bytes,
    target: StoragePath,
    *,
    resend_all: bool = False,
) -> TransferStats:
    """Upload a sealed directory to `target`, the manifest last.

    Files that exist with the right size are not sent. resend_all: send all files, which repairs
    a damaged copy. The name of the target must contain the seal, so that only these bytes are
    ever written there. Raises Corrupt if a file differs from the manifest, NotFound (bucket),
    Unavailable.
    """
    remote_sizes = {name: None if resend_all else (target / name).size() for name in files}
    missing = {name: entry for name, entry in files.items() if remote_sizes[name] != entry["bytes"]}
    # before the first byte, so that a damaged directory is never uploaded
    verify_files(source, missing)
    _run_parallel(list(missing), lambda name: _upload_file(source / name, target / name))
    target_manifest = target / MANIFEST
    if target_manifest.size() is None:
        target_manifest.write(manifest)
    sent = sum(entry["bytes"] for entry in missing.values())
    return TransferStats(sent, sum(entry["bytes"] for entry in files.values()) - sent)


def download_files(
    source: StoragePath,
    files: Digests,
    into: Path,
    stop: threading.Event | None = None,
    report: ReportBytes = lambda done, total: None,
) -> TransferStats:
    """Download the files of a folder into a directory, each verified and synced.

    Resumes an interrupted download. report: called after each piece. Raises Corrupt (an object is
    missing or differs from the manifest), Refused (the disk is too small), Unavailable, Stopped.
    """
    into.mkdir(parents=True, exist_ok=True)
    total = sum(entry["bytes"] for entry in files.values())
    missing = total - sum(min(_size(into / name), entry["bytes"]) for name, entry in files.items())
    free = shutil.disk_usage(into).free
    if missing + SPARE_DISK_BYTES > free:
        raise Refused(
            f"{source.uri} needs {missing:,} bytes more, {free:,} are free at {into}: "
            "free some disk space",
            code="DISK_FULL",
        )
    counter = _ByteCounter(total - missing, total, report)
    largest_first = sorted(files, key=lambda name: -int(files[name]["bytes"]))
    with ThreadPoolExecutor(PIECES_AHEAD * PARALLEL_FILES, "xcray-pieces") as readers:
        sent = _run_parallel(
            largest_first,
            lambda name: _download_file(
                source / name, files[name], into / name, readers, stop, counter
            ),
        )
    for folder in sorted({(into / name).parent for name in files}):
        sync_path(folder)
    return TransferStats(sum(sent), total - sum(sent))


def _run_parallel(names: list[str], work: Callable[[str], int]) -> list[int]:
    """Run `work` for some files in parallel.

    The first error cancels the files that have not started, and is raised.
    """
    with ThreadPoolExecutor(PARALLEL_FILES, "xcray-files") as pool:
        futures = [pool.submit(work, name) for name in names]
        try:
            return [future.result() for future in as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _upload_file(source: Path, target: StoragePath) -> int:
    """Stream one file; Arrow uploads its parts in parallel while the next are read."""

    def upload() -> int:
        if target.is_local:
            Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as handle, target.filesystem.open_output_stream(target.path) as out:
            while piece := handle.read(PIECE_BYTES):
                out.write(piece)
            return handle.tell()

    sent = with_retries(target, upload)
    if target.is_local:
        sync_path(target.path)
        sync_path(Path(target.path).parent)
    return sent


def _download_file(
    source: StoragePath,
    entry: Mapping[str, Any],
    target: Path,
    readers: ThreadPoolExecutor,
    stop: threading.Event | None,
    counter: _ByteCounter,
) -> int:
    """Download one file, and return the bytes transferred.

    It resumes an earlier transfer. If the hash is wrong, it starts again from the beginning.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    size = int(entry["bytes"])
    with open(target, "r+b" if target.exists() else "x+b") as out:
        digest = FileHash()
        begin = _hash_existing(out, size, digest)
        sent = _download_range(source, begin, size, out, digest, readers, stop, counter)
        if digest.hexdigest() != entry["sha256"] and begin:
            digest = FileHash()
            out.seek(0)
            out.truncate()
            sent += _download_range(source, 0, size, out, digest, readers, stop, counter)
        if digest.hexdigest() != entry["sha256"]:
            out.truncate(0)  # a retry must not resume from it
            raise Corrupt(
                f"{source.uri} differs from the uploaded file (its checksum differs): "
                "push it again, or restore it",
                file=source.name,
            )
        out.flush()
        os.fsync(out.fileno())
    return sent


def _hash_existing(out: IO[bytes], size: int, digest: FileHash) -> int:
    """Hash the bytes on disk, and return their number."""
    if os.fstat(out.fileno()).st_size > size:
        out.truncate(0)
    while piece := out.read(PIECE_BYTES):
        digest.update(piece)
    return out.tell()


def _download_range(
    source: StoragePath,
    begin: int,
    size: int,
    out: IO[bytes],
    digest: FileHash,
    readers: ThreadPoolExecutor,
    stop: threading.Event | None,
    counter: _ByteCounter,
) -> int:
    """Download the bytes [begin, size): read in parallel, written and hashed in order."""
    if begin == size:
        return 0
    remote_file = _open_object(source, size)
    starts = iter(range(begin, size, PIECE_BYTES))
    in_flight: deque[Future[bytes]] = deque()
    try:
        while True:
            while len(in_flight) < PIECES_AHEAD and (start := next(starts, None)) is not None:
                in_flight.append(
                    readers.submit(
                        _read_piece, source, remote_file, start, min(PIECE_BYTES, size - start)
                    )
                )
            if not in_flight:
                return size - begin
            if stop is not None and stop.is_set():
                raise Stopped("the transfer was stopped; the next one resumes it")
            piece = in_flight.popleft().result()
            out.write(piece)
            digest.update(piece)
            counter.add(len(piece))
    finally:
        for future in in_flight:
            future.cancel()
        out.flush()  # the next attempt resumes here
        with suppress(OSError):
            remote_file.close()


def _open_object(source: StoragePath, size: int) -> Any:
    """Open an object for reading. Raises Corrupt unless it has the expected size."""
    try:
        remote_file = with_retries(source, lambda: source.filesystem.open_input_file(source.path))
    except NotFound as error:
        if error.code == NO_BUCKET:
            raise
        raise Corrupt(f"{source.uri} is missing: push it again", file=source.name) from None
    found_size = remote_file.size()
    if found_size != size:
        raise Corrupt(
            f"{source.uri} has {found_size:,} bytes, {size:,} were sent: push it again",
            file=source.name,
        )
    return remote_file


def _read_piece(source: StoragePath, remote_file: Any, start: int, length: int) -> bytes:
    """Read a piece of an object, retried if the connection breaks."""

    def read() -> bytes:
        piece = bytes(remote_file.read_at(length, start))
        if len(piece) != length:
            raise Unavailable(
                f"{source.uri} ended early at byte {start + len(piece):,}", code="STORAGE_AWAY"
            )
        return piece

    return with_retries(source, read)


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
