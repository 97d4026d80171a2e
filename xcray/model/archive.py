"""A model directory as one tar stream, made while it is sent: no copy on disk or in memory."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xcray.model.manifest import MANIFEST, read_manifest

BLOCK: Final = tarfile.BLOCKSIZE
CHUNK_BYTES: Final = 1 << 20


def archive_stream(path: Path, folder: str) -> Iterator[bytes]:
    """Yield the tar file of a model directory, whose files are below `folder` in it.

    The bytes depend on the content of the files only. Raises NotFound, Corrupt.
    """
    for name in _file_names(path):
        info = tarfile.TarInfo(f"{folder}/{name}")
        with (path / name).open("rb") as file:
            info.size = (path / name).stat().st_size
            yield info.tobuf(tarfile.GNU_FORMAT)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
        yield bytes(-info.size % BLOCK)
    yield bytes(2 * BLOCK)


def archive_size(path: Path) -> int:
    """Return the number of bytes of `archive_stream`. Raises NotFound, Corrupt."""
    sizes = [(path / name).stat().st_size for name in _file_names(path)]
    return sum(BLOCK + size + -size % BLOCK for size in sizes) + 2 * BLOCK


def _file_names(path: Path) -> list[str]:
    """Return the names of all files of a model directory."""
    return [MANIFEST, *sorted(read_manifest(path)["files"])]
