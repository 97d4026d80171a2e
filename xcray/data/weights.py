"""Weights of training rows: how much a row's losses count. They are part of a data set, and of its content hash."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float32, frozen
from xcray.data.dataset import MANIFEST, WEIGHTS, Dataset
from xcray.errors import InputError, NotFound, ShapeMismatch
from xcray.storage.arrow import write_table
from xcray.storage.atomic import (
    discard_directory,
    file_digests,
    publish_directory,
    sha256_arrays,
    staging_directory,
    write_json,
)

HEADER = re.compile(  # of .npy, for an array of one dimension
    rb"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': (?:False|True), 'shape': \(([0-9]{1,18}),\), \}[ \n]*"
)


def weigh(data: Dataset, weights: Any, out: Path) -> Dataset:
    """The data set `data` with weights of its training rows (or with others), published at `out`.

    weights: (n_rows,) numbers above 0. Its other files are hard links where the file system allows that, else copies; they
    are never changed. Raises ShapeMismatch, InputError for a weight that is not above 0, Conflict when `out` exists.
    """
    weights = checked(weights, data.train.n_rows)
    staged = staging_directory(Path(out))
    try:
        for name in data.manifest["files"]:
            if name != WEIGHTS:
                _link(data.path / name, staged / name)
        write_weights(staged, weights)
        base = data.manifest.get("unweighted_hash", data.content_hash)
        listed = {name: entry for name, entry in data.manifest["files"].items() if name != WEIGHTS}
        manifest = {
            **data.manifest,
            "unweighted_hash": base,
            "content_hash": weighted_hash(base, weights),
            "files": {**listed, WEIGHTS: file_digests(staged / "train")[Path(WEIGHTS).name]},
        }
        write_json(staged / MANIFEST, manifest)
        publish_directory(staged, Path(out))
    finally:
        discard_directory(staged)
    return Dataset.open(out)


def read_weights(path: Path) -> Any:
    """Weights from a file: `.npy`, or text with a number a line.

    Raises InputError naming the line that is no number, or for an array that is not one of numbers; NotFound.
    """
    if not path.is_file():
        raise NotFound(f"there is no file {path.name}")
    if path.suffix == ".npy":
        return _array(path)
    out = []
    for number, line in enumerate(path.read_text("utf-8", "replace").split("\n"), 1):
        if line.strip():
            try:
                out.append(float(line))
            except ValueError:
                raise InputError(
                    f"{path.name}, line {number}: {line[:60]!r} is not a number", code="BAD_WEIGHTS"
                ) from None
    return np.array(out)


def _array(path: Path) -> Any:
    """An array of numbers in one row, (n,). Its header is read here: numpy takes more kinds of them, and some end the process.

    Nothing is allocated by what a header claims. Source: numpy.lib.format, "Format Version 1.0" to "3.0".
    """
    with open(path, "rb") as handle:
        start = handle.read(12)
        wide = start[6:7] != b"\x01"  # from version 2.0 on the header's length has 4 bytes
        length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
        handle.seek(12 if wide else 10)
        found = (
            HEADER.fullmatch(handle.read(length))
            if start.startswith(b"\x93NUMPY") and length < 1 << 16
            else None
        )
        if found is None or int(found[1][2:]) not in (1, 2, 4, 8):
            told = f"{path.name} is not an array of numbers, one a row: give numpy.save one, of shape (rows,)"
            raise InputError(told, code="BAD_WEIGHTS")
        kind, count = found[1].decode(), int(found[2])
        held = path.stat().st_size - handle.tell()
        if held < count * int(kind[2:]):
            told = (
                f"{path.name} tells of {count} numbers, its {held} bytes are fewer: write it again"
            )
            raise InputError(told, code="BAD_WEIGHTS")
        return np.fromfile(handle, _dtype(path, kind), count)


def _dtype(path: Path, kind: str) -> Any:
    """The type of a header's numbers. Raises InputError for one that numpy does not have, such as f1."""
    try:
        return np.dtype(kind)
    except TypeError:
        raise InputError(
            f"{path.name} holds numbers of type {kind!r}; give float64", code="BAD_WEIGHTS"
        ) from None


def checked(weights: Any, n_rows: int) -> Float32:
    """Weights as they are stored: (n_rows,) float32, finite, above 0."""
    array = np.asarray(weights)
    if array.shape != (n_rows,):
        raise ShapeMismatch(
            f"there are {array.shape} weights and {n_rows} training rows; give one weight for each row"
        )
    with np.errstate(over="ignore"):
        out = frozen(
            array.astype(np.float32), np.float32
        )  # what is too large becomes infinite, and is refused as such
    if not (bad := ~(np.isfinite(out) & (out > 0.0))).any():
        return out
    row = int(bad.argmax())
    told = f"row {row} has weight {array[row]}; weights are numbers above 0: leave a row out to give it none"
    raise InputError(told, code="BAD_WEIGHTS")


def write_weights(folder: Path, weights: Float32) -> None:
    """Write the weights of a data set under construction."""
    write_table(folder / WEIGHTS, pa.table({"weight": pa.array(weights)}))


def weighted_hash(content_hash: str, weights: Float32) -> str:
    """The content hash of a data set with weights."""
    return sha256_arrays({"data": content_hash, "weights": weights})


def _link(source: Path, target: Path) -> None:
    """A file of one data set in another."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
