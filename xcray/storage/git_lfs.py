"""Pointers of Git LFS: the small text files of a clone whose large files were not fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xcray.errors import InputError

LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
LFS_PROBLEM: Final = "is a pointer of Git LFS, not the file itself"
LFS_FIX: Final = "fetch the file with `git lfs pull`"


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a pointer of Git LFS."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def lfs_hint(path: Path) -> str | None:
    """Return how to get the file itself, if `path` is a pointer of Git LFS."""
    return f"it {LFS_PROBLEM}: {LFS_FIX}" if is_lfs_pointer(path) else None


def refuse_lfs_pointers(path: Path) -> None:
    """Raise InputError if a file, or a file in a folder, is a pointer of Git LFS."""
    for each in sorted(path.iterdir()) if path.is_dir() else [path]:
        if is_lfs_pointer(each):
            raise InputError(f"{each.name} {LFS_PROBLEM}", code="FORMAT_MISMATCH", hint=LFS_FIX)
