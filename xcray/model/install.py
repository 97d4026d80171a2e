"""A finished model directory comes into its place at once and whole, from whatever file system, one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xcray.storage.atomic import discard_directory, publish_directory, staging_directory, sync_path


def move_in(staged: Path, target: Path) -> None:
    """Rename a directory to `target`; from another file system by a copy that is complete before it is visible."""
    try:
        publish_directory(staged, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        aside = staging_directory(target)
        try:
            _copy_durably(staged, aside)
            publish_directory(aside, target)
        finally:
            discard_directory(aside)
        discard_directory(staged)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file, which the kernel drops when its holder dies; who comes later waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _copy_durably(source: Path, target: Path) -> None:
    """Copy a tree and sync each file."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for path in (p for p in target.rglob("*") if p.is_file()):
        sync_path(path)
