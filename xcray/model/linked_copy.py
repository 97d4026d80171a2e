"""A new model directory that shares its files with an earlier one: what changes is written, all else is linked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xcray.index import packed
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import card
from xcray.model.directory import CARD, LISTS, MANIFEST, SCHEMA_VERSION, sealed
from xcray.model.model import Model, calibrated
from xcray.storage.atomic import (
    discard_directory,
    file_digests,
    publish_directory,
    staging_directory,
    sync_path,
    write_bytes,
)


def with_calibration(
    model: Model, target: str | Path, curves: Calibration, facts: Mapping[str, Any]
) -> Model:
    """Publish the model with these curves at `target`, by one rename; one that is calibrated already loses its earlier curves.

    facts: how the curves were fitted (JSON), with "measures" of them by name, which join the model's. Weights and index are
    hard links to the model's own files, which never change, or copies on another file system; they take the checksums that the
    model has of them: open it with verify=True first. Raises Conflict when `target` exists.
    """
    bare = _bare(model)
    return _published(
        model,
        target,
        {**bare, **calibrated(bare, curves, facts)},
        lambda staged: curves.save(staged / CALIBRATION),
    )


def with_lists(model: Model, target: str | Path) -> Model:
    """Publish the model in the present format at `target`, by one rename: a model of the first format gets the lists that its
    search would otherwise be made of each time it is opened. Content and sha256 stay. Raises Conflict when `target` exists."""

    def write_lists(staged: Path) -> None:
        (staged / LISTS).parent.mkdir()
        packed.write(staged / LISTS, model.W, model.b)

    manifest = {**_bare(model), "schema_version": SCHEMA_VERSION, "index": {"lists": LISTS}}
    return _published(model, target, manifest, write_lists, lambda name: name.startswith("index/"))


def _bare(model: Model) -> dict[str, Any]:
    """The manifest without what is about its files."""
    return {name: value for name, value in model.manifest.items() if name not in ("files", "seal")}


def _published(
    model: Model,
    target: str | Path,
    manifest: Mapping[str, Any],
    write: Callable[[Path], None],
    gone: Callable[[str], bool] = lambda name: False,
) -> Model:
    """A directory of what `write` makes of a staging directory, a new card, and links to all other files that are not `gone`."""
    target = Path(target)
    staged = staging_directory(target)
    try:
        write(staged)
        write_bytes(staged / CARD, card(manifest).encode())
        fresh = file_digests(staged)
        shared = {
            name: digest
            for name, digest in model.manifest["files"].items()
            if name not in fresh and not gone(name)
        }
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
    except (
        OSError
    ):  # another file system, or one without links: then the content must be durable too
        shutil.copyfile(source, target)
        sync_path(target)
