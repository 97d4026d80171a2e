"""Weights of training rows: factors of the rows' losses.

They are part of a data set and of its content hash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float32, frozen
from xcray.data.dataset import MANIFEST, WEIGHTS, Dataset
from xcray.errors import InputError, ShapeMismatch, missing_file
from xcray.storage.arrow import write_table
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_entry,
    link_file,
    publish_directory,
    sha256_arrays,
    write_json,
)
from xcray.storage.git_lfs import refuse_lfs_pointers
from xcray.storage.npy_stream import NpyStream


def set_weights(data: Dataset, weights: Any, out: Path) -> Dataset:
    """Publish the data set `data` with new weights of its training rows at `out`.

    weights: (n_rows,) numbers above 0. Its other files are hard links where the file system
    supports them, otherwise copies. They are never changed. Raises ShapeMismatch, InputError
    for a weight that is not above 0, Conflict if `out` exists.
    """
    weights = check_weights(weights, data.train.n_rows)
    staged = create_staging_directory(Path(out))
    try:
        for name in data.manifest["files"]:
            if name != WEIGHTS:
                link_file(data.path / name, staged / name)
        write_weights(staged, weights)
        base = data.manifest.get("unweighted_hash", data.content_hash)
        listed = {name: entry for name, entry in data.manifest["files"].items() if name != WEIGHTS}
        manifest = {
            **data.manifest,
            "unweighted_hash": base,
            "content_hash": weighted_hash(base, weights),
            "files": {**listed, WEIGHTS: file_entry(staged / WEIGHTS)},
        }
        write_json(staged / MANIFEST, manifest)
        publish_directory(staged, Path(out))
    finally:
        discard_directory(staged)
    return Dataset.open(out)


def read_weights(path: Path) -> Any:
    """Read weights from a file: `.npy`, or text with one number per line.

    Raises NotFound, and InputError for a line that is not a number (with its line number) or an
    array that does not hold numbers.
    """
    if not path.is_file():
        raise missing_file(path)
    refuse_lfs_pointers(path)
    if path.suffix == ".npy":
        return _read_npy(path)
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


def _read_npy(path: Path) -> Any:
    """Read a one-dimensional array of numbers, (n,)."""
    with path.open("rb") as stream:
        try:
            array = NpyStream(stream, path.stat().st_size)
            if len(array.shape) != 1 or array.dtype.kind not in "fiub":
                raise ValueError(f"an array of {array.dtype} of the shape {array.shape}")
            return array.read(array.shape[0])
        except ValueError as error:
            raise InputError(
                f"{path.name} is not an array of numbers, one per row: {error}; "
                "write one of shape (rows,) with numpy.save",
                code="BAD_WEIGHTS",
            ) from None


def check_weights(weights: Any, n_rows: int) -> Float32:
    """Return weights as they are stored: (n_rows,) float32, finite, above 0.

    Raises ShapeMismatch, and InputError for any other value.
    """
    array = np.asarray(weights)
    if array.shape != (n_rows,):
        raise ShapeMismatch(
            f"the weights have shape {array.shape}, the data set {n_rows} training rows; "
            "give one weight per row"
        )
    with np.errstate(over="ignore"):
        # too large values become infinite and are refused below
        out = frozen(array.astype(np.float32), np.float32)
    if not (bad := ~(np.isfinite(out) & (out > 0.0))).any():
        return out
    row = int(bad.argmax())
    message = (
        f"row {row} has weight {array[row]}; weights must be above 0: "
        "to give a row no weight, leave it out"
    )
    raise InputError(message, code="BAD_WEIGHTS")


def write_weights(folder: Path, weights: Float32) -> None:
    """Write the weights of a data set under construction."""
    write_table(folder / WEIGHTS, pa.table({"weight": pa.array(weights)}))


def weighted_hash(content_hash: str, weights: Float32) -> str:
    """Return the content hash of a data set with weights."""
    return sha256_arrays({"data": content_hash, "weights": weights})
