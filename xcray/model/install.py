"""Atomic installation of a finished model directory."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    sync_path,
)


def install_directory(staged: Path, target: Path) -> None:
    """Rename a directory to `target`.

    From another file system, the files are copied completely before the copy is visible.
    """
    try:
        publish_directory(staged, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        aside = create_staging_directory(target)
        try:
            _copy_durably(staged, aside)
            publish_directory(aside, target)
        finally:
            discard_directory(aside)
        discard_directory(staged)


def _copy_durably(source: Path, target: Path) -> None:
    """Copy a tree and sync each file."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for path in (p for p in target.rglob("*") if p.is_file()):
        sync_path(path)
