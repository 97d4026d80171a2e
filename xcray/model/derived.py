"""A new model directory that shares its files with an earlier one: what changes is written, all else is linked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcray.files import discard_directory, file_digests, publish_directory, staging_directory, write_bytes
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import card
from xcray.model.directory import CARD, MANIFEST, sealed
from xcray.model.model import Model, calibrated


def with_calibration(model: Model, target: str | Path, curves: Calibration, facts: Mapping[str, Any]) -> Model:
    """Publish the model with these curves at `target`, by one rename; one that is calibrated already loses its earlier curves.

    facts: how the curves were fitted (JSON), with "measures" of them by name, which join the model's. Weights and index are
    hard links to the model's own files, which never change, or copies on another file system; they take the checksums that the
    model has of them: open it with verify=True first. Raises Conflict when `target` exists.
    """
    bare = {name: value for name, value in model.manifest.items() if name not in ("files", "seal")}
    manifest = {**bare, **calibrated(bare, curves, facts)}
    target = Path(target)
    staged = staging_directory(target)
    try:
        curves.save(staged / CALIBRATION)
        write_bytes(staged / CARD, card(manifest).encode())
        fresh = file_digests(staged)
        shared = {name: digest for name, digest in model.manifest["files"].items() if name not in fresh}
        for name in shared:
            _link(model.path / name, staged / name)
        write_bytes(staged / MANIFEST, sealed({**manifest, "files": {**shared, **fresh}}).encode())
        publish_directory(staged, target)
    finally:
        discard_directory(staged)
    return Model.open(target, verify=False)


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or its copy where there can be no link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links: then the content must be durable too
        shutil.copyfile(source, target)
        with open(target, "rb") as handle:
            os.fsync(handle.fileno())
