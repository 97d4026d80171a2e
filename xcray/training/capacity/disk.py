"""Free space on the disks of a training: of its run directory and its model."""

from __future__ import annotations

import shutil
from pathlib import Path

from xcray.errors import Refused
from xcray.system.units import format_bytes


def check_disk(parts: int, model: int, run_dir: Path, out: Path, basis: str) -> None:
    """Raise Refused, with sizes, unless the disks have enough free space.

    parts: bytes to write in `run_dir`. model: bytes to write in `out`.
    """
    needed = (
        {run_dir: parts, out: model}
        if device_of(run_dir) != device_of(out)
        else {run_dir: parts + model}
    )
    for folder, size in needed.items():
        free = free_bytes(folder)
        if size > free:
            raise Refused(
                f"the training needs about {format_bytes(size)} more on the disk of "
                f"{folder.name} {basis}, {format_bytes(free)} are free: free some space, choose "
                "another disk, or make the model smaller (a larger prune or lam); "
                "finished batches are kept",
                code="DISK",
                needed=size,
                available=free,
            )


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk where `folder` is or will be."""
    return shutil.disk_usage(_existing(folder)).free


def device_of(folder: Path) -> int:
    """Return the device number of the disk where `folder` is or will be."""
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing ancestor."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
