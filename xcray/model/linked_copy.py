"""A new model directory that shares unchanged files with an earlier one by hard links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from xcray.arrays import Float32
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import render_card_file
from xcray.model.directory import CARD, THRESHOLDS
from xcray.model.manifest import MANIFEST, seal_manifest
from xcray.model.model import Model
from xcray.model.write import calibration_entries, threshold_entries
from xcray.storage.arrow import write_table
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_digests,
    link_file,
    publish_directory,
    write_bytes,
)


def with_calibration(
    model: Model, target: str | Path, curves: Calibration, report: Mapping[str, Any]
) -> Model:
    """Publish the model with these curves at `target`, by one rename.

    Earlier curves of the model are replaced. report: how the curves were fitted (JSON), with
    "measures" of them by name, which are added to the model's measures. Files are shared and errors
    raised as by `with_files`.
    """
    entries = calibration_entries(model.manifest, curves, report)
    return with_files(model, target, entries, lambda folder: curves.save(folder / CALIBRATION))


def with_label_thresholds(
    model: Model, target: str | Path, thresholds: Float32, report: Mapping[str, Any]
) -> Model:
    """Publish the model with these thresholds, one per label of its answers, at `target`.

    report: how they were fitted (JSON). Otherwise as `with_calibration`.
    """
    entries = threshold_entries(model.manifest, thresholds, report)
    table = pa.table({"threshold": pa.array(thresholds)})
    return with_files(
        model, target, entries, lambda folder: write_table(folder / THRESHOLDS, table)
    )


def with_files(
    model: Model,
    target: str | Path,
    entries: Mapping[str, Any],
    write: Callable[[Path], None] = lambda folder: None,
    without: Collection[str] = (),
) -> Model:
    """Publish the model with other entries of its manifest, and the files that `write` adds.

    without: names of files that it does not get. All others are hard links to the model's own,
    which never change, or copies on another file system. They keep the recorded checksums: open the
    model with verify=True first. Raises Conflict if `target` exists.
    """
    bare = {name: value for name, value in model.manifest.items() if name not in ("files", "seal")}
    manifest = {**bare, **entries}
    target = Path(target)
    staged = create_staging_directory(target)
    try:
        write(staged)
        write_bytes(staged / CARD, render_card_file(manifest).encode())
        digests = file_digests(staged)
        shared = {
            name: digest
            for name, digest in model.manifest["files"].items()
            if name not in digests and name not in without
        }
        for name in shared:
            link_file(model.path / name, staged / name)
        write_bytes(
            staged / MANIFEST, seal_manifest({**manifest, "files": {**shared, **digests}}).encode()
        )
        publish_directory(staged, target)
    finally:
        discard_directory(staged)
    return Model.open(target, verify=False)
