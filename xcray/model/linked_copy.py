"""A new model directory that shares unchanged files with an earlier one by hard links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xcray.index import packed
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import render_card
from xcray.model.directory import CARD, LISTS, MANIFEST, SCHEMA_VERSION, seal_manifest
from xcray.model.model import Model, calibration_entries
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_digests,
    publish_directory,
    sync_path,
    write_bytes,
)


def with_calibration(
    model: Model, target: str | Path, curves: Calibration, facts: Mapping[str, Any]
) -> Model:
    """Publish the model with these curves at `target`, by one rename.

    Earlier curves of the model are replaced. facts: how the curves were fitted (JSON), with
    "measures" of them by name, which are added to the model's measures. Weights and index are
    hard links to the model's own files, which never change, or copies on another file system.
    They keep the recorded checksums: open the model with verify=True first. Raises Conflict if
    `target` exists.
    """
    bare = _without_files(model)
    return _publish_copy(
        model,
        target,
        {**bare, **calibration_entries(bare, curves, facts)},
        lambda staged: curves.save(staged / CALIBRATION),
    )


def with_approximate_index(model: Model, target: str | Path, facts: Mapping[str, Any]) -> Model:
    """Publish the model at `target` with the measured recall of an approximate index in its card.

    facts: see `xcray.predict.approximate.measure_index`. Content and sha256 stay. Raises Conflict
    if `target` exists.
    """
    manifest = {**_without_files(model), "approximate_index": dict(facts)}
    return _publish_copy(model, target, manifest, lambda staged: None)


def with_packed_lists(model: Model, target: str | Path) -> Model:
    """Publish the model in the current format at `target`, by one rename.

    A model of the first format gets the packed lists that its search would otherwise build on
    every opening. Content and sha256 stay. Raises Conflict if `target` exists.
    """

    def write_lists(staged: Path) -> None:
        (staged / LISTS).parent.mkdir()
        packed.write_lists(staged / LISTS, model.W, model.b)

    manifest = {
        **_without_files(model),
        "schema_version": SCHEMA_VERSION,
        "index": {"lists": LISTS},
    }
    return _publish_copy(
        model, target, manifest, write_lists, lambda name: name.startswith("index/")
    )


def _without_files(model: Model) -> dict[str, Any]:
    """Return the manifest without the entries about its files."""
    return {name: value for name, value in model.manifest.items() if name not in ("files", "seal")}


def _publish_copy(
    model: Model,
    target: str | Path,
    manifest: Mapping[str, Any],
    write: Callable[[Path], None],
    is_dropped: Callable[[str], bool] = lambda name: False,
) -> Model:
    """Publish a directory with the files that `write` creates, a new card, and links.

    All other files of the model are linked, except those for which `is_dropped` is true.
    """
    target = Path(target)
    staged = create_staging_directory(target)
    try:
        write(staged)
        write_bytes(staged / CARD, render_card(manifest).encode())
        digests = file_digests(staged)
        shared = {
            name: digest
            for name, digest in model.manifest["files"].items()
            if name not in digests and not is_dropped(name)
        }
        for name in shared:
            _link(model.path / name, staged / name)
        write_bytes(
            staged / MANIFEST, seal_manifest({**manifest, "files": {**shared, **digests}}).encode()
        )
        publish_directory(staged, target)
    finally:
        discard_directory(staged)
    return Model.open(target, verify=False)


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it durably where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # another file system, or one without links: a copy must be made durable
        shutil.copyfile(source, target)
        sync_path(target)
