"""Durable files and directories: written to a temporary name, synced, renamed. Checksums and JSON.

Readers see the old content or the new content, never a mixture. A directory is published by one
rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, suggestion
from xcray.system.cores import available_cores

PARALLEL_BYTES = 64 << 20  # of files, from which they are hashed in parallel
CHUNK_BYTES = 256 << 20  # see `FileHash`
BLOCK_BYTES = 256 << 10  # that are read at once
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


# names that some file systems reserve for devices
RESERVED_NAMES = re.compile(r"con|prn|aux|nul|com\d|lpt\d")


@lru_cache(4096)
def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it is a safe name. Raises ParameterError with the rule if not.

    Names are data, never paths.
    """
    if (
        not isinstance(name, str)
        or not NAME_PATTERN.fullmatch(name)
        or name.endswith(".")
        or ".." in name
        or RESERVED_NAMES.fullmatch(name.split(".")[0])
    ):
        raise ParameterError(
            f"{what} {str(name)[:80]!r} is not allowed: use 1 to 64 of a-z 0-9 . _ -,"
            " starting with a letter or digit",
            code="BAD_NAME",
        )
    return name


def sync_path(path: Path | str) -> None:
    """Make the entries of a directory, or the content of a file, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` after a block without error.

    The block writes the file and syncs it. The replacement is durable.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield temporary
        os.replace(temporary, path)
        sync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file, sync it, rename it into place and sync the directory."""
    with replacing(path) as temporary, open(temporary, "xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def link_file(source: Path, target: Path) -> None:
    """Link a file, which never changes, or copy it durably where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # another file system, or one without links
        shutil.copyfile(source, target)
        sync_path(target)


def similar_directory(path: Path, file: str) -> str:
    """Return "; did you mean 'x'?" for the directory next to `path` with a similar name, or "".

    Only directories that hold `file` are considered. A directory with a model in `model`, as
    `xcray tune` writes it, is reported as such.
    """
    if (path / "model" / file).is_file():
        return f"; did you mean '{path.name}/model'?"
    return suggestion(path.name, (each.parent.name for each in path.parent.glob(f"*/{file}")))


def write_json(path: Path, value: Any) -> None:
    """Write JSON durably: sorted keys, readable, final newline. Raises ValueError on NaN or inf."""
    write_bytes(
        path,
        (
            json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
        ).encode(),
    )


def read_json(path: Path) -> Any:
    """Read JSON. Raises NotFound if the file is missing and Corrupt if it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"there is no {path.name} in {path.parent.name}") from None
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path.name} is not readable JSON: {error}") from None


def sha256_file(path: Path, start: int = 0, size: int | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal, or of `size` bytes from `start` on."""
    digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        left = sys.maxsize if size is None else size
        while n := file.readinto(block[:left]):
            digest.update(block[:n])
            left -= n
    return digest.hexdigest()


class FileHash:
    """Checksum of a file, updated in order: the SHA-256 of at most CHUNK_BYTES.

    That of a larger file is the SHA-256 of the hexadecimal SHA-256 of its chunks, one after the
    other, so that several cores hash it.
    """

    def __init__(self) -> None:
        self._sums: list[str] = []
        self._chunk, self._left = hashlib.sha256(), CHUNK_BYTES

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        rest = memoryview(data)
        while len(rest):
            if not self._left:
                self._sums.append(self._chunk.hexdigest())
                self._chunk, self._left = hashlib.sha256(), CHUNK_BYTES
            part = rest[: self._left]
            self._chunk.update(part)
            self._left -= len(part)
            rest = rest[len(part) :]

    def hexdigest(self) -> str:
        """Return the checksum of the bytes so far."""
        return _combine([*self._sums, self._chunk.hexdigest()])


def _combine(chunks: Sequence[str]) -> str:
    """Return the checksum of a file with these SHA-256 of its chunks."""
    return chunks[0] if len(chunks) == 1 else hashlib.sha256("".join(chunks).encode()).hexdigest()


def _checksums(files: Iterable[tuple[Path, int]]) -> Iterator[str]:
    """Yield the checksums of files with these sizes, see `FileHash`; many bytes in parallel."""
    chunks = [
        [(path, at, min(CHUNK_BYTES, size - at)) for at in range(0, max(size, 1), CHUNK_BYTES)]
        for path, size in files
    ]
    pieces = [piece for each in chunks for piece in each]
    if sum(size for _, _, size in pieces) < PARALLEL_BYTES:
        sums = iter([sha256_file(*piece) for piece in pieces])
    else:
        with ThreadPoolExecutor(available_cores()) as threads:
            largest_first = sorted(range(len(pieces)), key=lambda i: -pieces[i][2])
            started = {i: threads.submit(sha256_file, *pieces[i]) for i in largest_first}
            sums = iter([started[i].result() for i in range(len(pieces))])
    yield from (_combine([next(sums) for _ in each]) for each in chunks)


def sha256_arrays(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of arrays and strings, by name."""
    import numpy as np  # 0.15 s, which commands of a server need not pay

    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name]
        if isinstance(value, str):
            value = np.frombuffer(value.encode(), np.uint8)
        array = np.ascontiguousarray(value)
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
    return digest.hexdigest()


def file_digests(directory: Path, skip: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Return size and checksum, `sha256`, of every file below `directory`, except those in `skip`.

    Checksums are those of `FileHash`. Keys are relative POSIX paths.
    """
    skipped = set(skip)
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*")}
    names = sorted(name for name, path in files.items() if path.is_file() and name not in skipped)
    sizes = [files[name].stat().st_size for name in names]
    checksums = _checksums(zip(map(files.__getitem__, names), sizes, strict=True))
    return {
        name: {"bytes": size, "sha256": checksum}
        for name, size, checksum in zip(names, sizes, checksums, strict=True)
    }


def file_entry(path: Path) -> dict[str, Any]:
    """Return size and checksum of one file, as `file_digests`."""
    size = path.stat().st_size
    return {"bytes": size, "sha256": next(_checksums([(path, size)]))}


def is_file_entry(name: str, entry: Any) -> bool:
    """Return whether an entry of a manifest is a file below its directory, with size and checksum.

    A manifest can come from anywhere: nothing is opened by its claims before they are checked.
    """
    safe = (
        "\0" not in name
        and "\\" not in name
        and all(part not in ("", ".", "..") and len(part) < 256 for part in name.split("/"))
    )
    sized = isinstance(entry, Mapping) and type(entry.get("bytes")) is int and entry["bytes"] >= 0
    return safe and sized and type(entry.get("sha256")) is str


def verify_files(directory: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare files with their recorded sizes and checksums.

    Raises Corrupt with the name of the first file that differs.
    """
    for name, entry in digests.items():
        if not (directory / name).is_file():
            raise Corrupt(f"{directory.name}: file {name} is missing", file=name)
        if (directory / name).stat().st_size != entry["bytes"]:
            raise _not_as_written(directory, name)
    files = [(directory / name, entry["bytes"]) for name, entry in digests.items()]
    for (name, entry), checksum in zip(digests.items(), _checksums(files), strict=True):
        if checksum != entry["sha256"]:
            raise _not_as_written(directory, name)


def _not_as_written(directory: Path, name: str) -> Corrupt:
    """Return the error for a file that was changed."""
    return Corrupt(
        f"{directory.name}: file {name} is not what was written (its checksum differs)", file=name
    )


def publish_directory(staged: Path, target: Path) -> None:
    """Rename a finished directory into place, durably.

    Published things never change. Raises Conflict if `target` exists, or if another process
    discarded `staged`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        for path in staged.rglob("*"):
            if path.is_dir():
                sync_path(path)
        sync_path(staged)
        os.rename(staged, target)
    except OSError as error:
        if target.exists():
            raise Conflict(
                f"{target.name} exists already; choose another name or remove it first"
            ) from error
        if not staged.exists():
            raise Conflict(
                f"another process discarded what was to become {target.name}; run this again"
            ) from error
        raise
    sync_path(target.parent)


def create_staging_directory(target: Path) -> Path:
    """Create a hidden directory next to `target` and return it.

    It is for `publish_directory` or `discard_directory`.
    """
    staged = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    staged.mkdir(parents=True)
    return staged


def discard_directory(staged: Path) -> None:
    """Remove a staging directory that will not be published.

    It is renamed first: if another process still writes into it, `publish_directory` there fails
    instead of publishing what the removal left over.
    """
    discarded = staged.with_name(f".{uuid.uuid4().hex}.part")
    try:
        os.rename(staged, discarded)
    except OSError:
        discarded = staged
    shutil.rmtree(discarded, ignore_errors=True)
