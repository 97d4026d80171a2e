"""Checks of files of other programs: what they may be, how large, and whether weights are valid.

A header of a few bytes can state any size. No reader allocates memory for a size that its files
cannot fill.
"""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.errors import InputError, excerpt
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.kernels.row_norm import ROW_NORMS
from xcray.model.exchange.weights import ForeignWeights

MAX_SIZE: Final = (1 << 31) - 2  # of labels or features: their numbers are int32
FREE_SIZE: Final = 1 << 20  # features without weights that any file may have


def source_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder.

    Raises InputError for what is not a regular file, such as a device or a named pipe, from which a
    reader could wait without end.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if not file.is_file() and not file.is_dir():
            raise InputError(f"{file.name} is not a regular file: copy its content to a file first")
    return sum(file.stat().st_size for file in files if file.is_file())


def file_within(folder: Path, name: Any) -> Path:
    """Return the path of a file that a model names.

    Raises InputError unless it is a regular file in the folder.
    """
    path = folder / str(name)
    if folder.resolve() not in path.resolve().parents:
        raise InputError(f"the model names {excerpt(str(name))!r}, which is not in its folder")
    if not path.is_file():
        raise InputError(f"the model names {excerpt(str(name))!r}, which is not a regular file")
    return path


def checked_size(value: Any, name: str, n_bytes: int) -> int:
    """Return a number of labels or features that files of `n_bytes` state.

    Raises InputError unless it is a whole number that is positive and not far above what the files
    have room for.
    """
    try:
        size = operator.index(value)
    except TypeError:
        raise InputError(f"the number of {name} is {excerpt(repr(value))}") from None
    if size < 1:
        raise InputError(f"the model has {size} {name}: at least 1 was expected")
    if size > min(MAX_SIZE, max(FREE_SIZE, n_bytes)):
        raise InputError(
            f"the model states {size:,} {name}, but its files have only {n_bytes:,} bytes"
        )
    return size


def checked_numbers(array: Any, name: str, kinds: str = "fiu") -> np.ndarray:
    """Return an array. Raises InputError for another kind of dtype than `kinds`, as in NumPy."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in kinds:
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise InputError(f"{name} has the type {numbers.dtype}: {wanted} were expected")
    return numbers


def check_weights(weights: ForeignWeights, n_bytes: int) -> None:
    """Raise InputError unless weights are those of a model; n_bytes: of the files."""
    K, D = weights.W.shape
    checked_size(K, "labels", n_bytes)
    checked_size(D, "features", n_bytes)
    code, row = first_fault(weights.W)
    if code:
        raise InputError(f"the weights of label {row}: {FAULTS[code]}")
    if weights.b.shape != (K,):
        raise InputError(f"there are {weights.b.shape} biases for {K} labels")
    if not np.isfinite(weights.b).all():
        raise InputError(
            f"the bias of label {int(np.argmin(np.isfinite(weights.b)))} is not finite"
        )
    if len(weights.labels) != K:
        raise InputError(f"there are {len(weights.labels)} names for {K} labels")
    for number, name in enumerate(weights.labels):
        if not isinstance(name, str):
            raise InputError(f"the name of label {number} is {excerpt(repr(name))}, not a text")
    if weights.row_norm not in ROW_NORMS:
        raise InputError(f"row_norm is {excerpt(weights.row_norm)!r}, not one of {ROW_NORMS}")
