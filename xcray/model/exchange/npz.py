"""Weights in a NumPy archive that `scipy.sparse.load_npz` reads, with bias and names of labels."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from xcray.arrays import CSR, csr
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet_file import check_unpacked_size
from xcray.errors import DataError, InputError, ShapeMismatch
from xcray.kernels.canonical import first_fault
from xcray.model.exchange.checks import checked_numbers, checked_size
from xcray.model.exchange.weights import (
    ForeignWeights,
    from_entries,
    number_names,
    row_numbers,
    to_float32,
)

NUMBERS, WHOLE_NUMBERS, TEXTS = "fiu", "iu", "USiu"  # kinds of dtypes, as in NumPy
LABELS: Final = "labels"


def read(path: Path) -> ForeignWeights:
    """Return the weights in an archive of a CSR matrix (K, D).

    `bias` (K,), `labels` (K,) and `row_norm` are optional: 0, numbers, "none". Raises InputError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist()}
            check_unpacked_size(sum(sizes.values()), path.name, ReadOptions(), path.stat().st_size)
            return _read_arrays(archive, {name.removesuffix(".npy") for name in sizes})
    except (
        OSError,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        ShapeMismatch,
        DataError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(f"{path.name} is not an archive of a CSR matrix: {error}") from None


def _read_arrays(archive: zipfile.ZipFile, names: set[str]) -> ForeignWeights:
    """Return the weights in an open archive."""
    indptr = _read_array(archive, "indptr", WHOLE_NUMBERS)
    shape = _read_array(archive, "shape", WHOLE_NUMBERS)
    n_bytes = sum(each.file_size for each in archive.infolist())
    if shape.shape != (2,) or indptr.ndim != 1:
        raise ValueError(f"shape has the shape {shape.shape}, indptr {indptr.shape}")
    K, D = checked_size(shape[0], "labels", n_bytes), checked_size(shape[1], "features", n_bytes)
    if len(indptr) != K + 1:
        raise ValueError(f"indptr has {len(indptr)} entries for {K} rows")
    indices = _read_array(archive, "indices", WHOLE_NUMBERS)
    if len(indices) and not 0 <= indices.min() <= indices.max() < D:
        raise ValueError(f"a column index lies outside of 0 to {D - 1}")
    values = to_float32(_read_array(archive, "data", NUMBERS))
    W = _canonical(csr(indptr, indices, values, D))
    bias = _read_array(archive, "bias", NUMBERS) if "bias" in names else np.zeros(K)
    labels = _read_labels(archive) if LABELS in names else number_names(K)
    row_norm = str(_read_array(archive, "row_norm", "U")) if "row_norm" in names else "none"
    return ForeignWeights(W, to_float32(bias), labels, row_norm)


def _canonical(W: CSR) -> CSR:
    """Return a matrix with sorted rows; one that has them already is not copied."""
    code, row = first_fault(W)
    if code == 1:
        raise ValueError(f"row {row}: its row offsets do not ascend within its entries")
    return W if code == 0 else from_entries(row_numbers(W), W.indices, W.data, W.shape)


def _read_labels(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of labels: texts, bytes in UTF-8, or whole numbers."""
    names = _read_array(archive, LABELS, TEXTS)
    if names.dtype.kind == "S":
        return [name.decode() for name in names.tolist()]
    return [str(name) for name in names.tolist()]


def _read_array(archive: zipfile.ZipFile, name: str, kinds: str) -> Any:
    """Return an array of an archive, of a kind of dtype. Raises ValueError, InputError, KeyError.

    Its memory is that of its bytes in the archive, whatever its header states.
    """
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as stream:
        version = npy_format.read_magic(stream)
        is_first = version == (1, 0)
        read_header = (
            npy_format.read_array_header_1_0 if is_first else npy_format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(stream)
        checked_numbers(np.empty(0, dtype), name, kinds)
        n_bytes = math.prod(shape) * dtype.itemsize
        if stream.tell() + n_bytes != member.file_size:
            raise ValueError(f"{name} does not have the size that its header states")
        data = stream.read(n_bytes)
    if len(data) < n_bytes:
        raise ValueError(f"{name} ends too early")
    array = np.frombuffer(data, dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def write(weights: ForeignWeights, path: Path) -> None:
    """Write an archive without pickle."""
    W = weights.W
    with path.open("wb") as out:
        np.savez_compressed(
            out,
            data=W.data,
            indices=W.indices,
            indptr=W.indptr,
            shape=np.array(W.shape),
            format=np.array(b"csr"),
            bias=weights.b,
            labels=np.array(weights.labels),
            row_norm=np.array(weights.row_norm),
        )
