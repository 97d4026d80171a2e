"""Weights in a NumPy archive that `scipy.sparse.load_npz` reads, with bias and names of labels."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import CSR, csr
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet_file import check_unpacked_size
from xcray.errors import DataError, InputError, ShapeMismatch, is_disk_full
from xcray.index.packed import row_ranges
from xcray.kernels.canonical import first_fault
from xcray.model.exchange.checks import checked_numbers, checked_size
from xcray.model.exchange.weights import (
    ForeignWeights,
    from_entries,
    number_names,
    row_numbers,
    to_float32,
)
from xcray.storage.arrow import MatrixWriter, read_csr
from xcray.storage.npy_stream import NpyStream

NUMBERS, WHOLE_NUMBERS, TEXTS = "fiu", "iu", "USiu"  # kinds of dtypes, as in NumPy
LABELS: Final = "labels"
WEIGHTS: Final = "weights.arrow"
BLOCK_ENTRIES: Final = 1 << 20


def read(path: Path, folder: Path) -> ForeignWeights:
    """Return the weights in an archive of a CSR matrix (K, D), mapped from a file in `folder`.

    `bias` (K,), `labels` (K,) and `row_norm` are optional: 0, numbers, "none". No more than
    BLOCK_ENTRIES weights, or one row, are in memory at a time. Raises InputError, and OSError if
    the disk is full.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist()}
            check_unpacked_size(sum(sizes.values()), path.name, ReadOptions(), path.stat().st_size)
            names = {name.removesuffix(".npy") for name in sizes}
            return _read_arrays(archive, names, folder / WEIGHTS)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise _not_an_archive(path, error) from None
    except (
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
        raise _not_an_archive(path, error) from None


def _not_an_archive(path: Path, error: Exception) -> InputError:
    return InputError(f"{path.name} is not an archive of a CSR matrix: {error}")


def _read_arrays(archive: zipfile.ZipFile, names: set[str], target: Path) -> ForeignWeights:
    """Return the weights in an open archive; the matrix is written to `target` and mapped."""
    indptr = _read_array(archive, "indptr", WHOLE_NUMBERS)
    shape = _read_array(archive, "shape", WHOLE_NUMBERS)
    n_bytes = sum(each.file_size for each in archive.infolist())
    if shape.shape != (2,) or indptr.ndim != 1:
        raise ValueError(f"shape has the shape {shape.shape}, indptr {indptr.shape}")
    K, D = checked_size(shape[0], "labels", n_bytes), checked_size(shape[1], "features", n_bytes)
    if len(indptr) != K + 1:
        raise ValueError(f"indptr has {len(indptr)} entries for {K} rows")
    bias = _read_array(archive, "bias", NUMBERS) if "bias" in names else np.zeros(K)
    labels = _read_labels(archive) if LABELS in names else number_names(K)
    row_norm = str(_read_array(archive, "row_norm", "U")) if "row_norm" in names else "none"
    _copy_matrix(archive, indptr, D, target)
    return ForeignWeights(read_csr(target), to_float32(bias), labels, row_norm)


def _copy_matrix(archive: zipfile.ZipFile, indptr: Any, D: int, target: Path) -> None:
    """Write the matrix of an archive with sorted rows, a block of rows at a time."""
    indices = _open_array(archive, "indices", WHOLE_NUMBERS)
    data = _open_array(archive, "data", NUMBERS)
    falls = np.flatnonzero(np.diff(indptr.astype(np.int64)) < 0)
    if len(falls) or indptr[0] != 0:
        row = int(falls[0]) if len(falls) else 0
        raise ValueError(f"row {row}: its row offsets do not ascend within its entries")
    if not indices.shape == data.shape == (indptr[-1],):
        raise ValueError(
            f"indices has the shape {indices.shape} and data has the shape {data.shape}, for"
            f" {indptr[-1]} entries"
        )
    with MatrixWriter(target, indptr, D) as writer:
        for first, last in row_ranges(indptr, BLOCK_ENTRIES):
            begin, end = int(indptr[first]), int(indptr[last])
            columns = indices.read(end - begin)
            if len(columns) and not 0 <= columns.min() <= columns.max() < D:
                raise ValueError(f"a column index lies outside of 0 to {D - 1}")
            values = to_float32(data.read(end - begin))
            block = _canonical(csr(indptr[first : last + 1] - begin, columns, values, D))
            writer.write(begin, block.indices, block.data)


def _canonical(W: CSR) -> CSR:
    """Return a matrix with sorted rows; one that has them already is not copied."""
    return W if first_fault(W)[0] == 0 else from_entries(row_numbers(W), W.indices, W.data, W.shape)


def _read_labels(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of labels: texts, bytes in UTF-8, or whole numbers."""
    names = _read_array(archive, LABELS, TEXTS)
    if names.dtype.kind == "S":
        return [name.decode() for name in names.tolist()]
    return [str(name) for name in names.tolist()]


def _read_array(archive: zipfile.ZipFile, name: str, kinds: str) -> Any:
    """Return the elements of an array of an archive, see `_open_array`."""
    array = _open_array(archive, name, kinds)
    elements = array.read(math.prod(array.shape))
    return elements.reshape(array.shape, order="F" if array.is_fortran else "C")


def _open_array(archive: zipfile.ZipFile, name: str, kinds: str) -> NpyStream:
    """Return an array of an archive. kinds: of its dtype.

    Raises ValueError, InputError, KeyError.
    """
    member = archive.getinfo(f"{name}.npy")
    try:
        array = NpyStream(archive.open(member), member.file_size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    checked_numbers(np.empty(0, array.dtype), name, kinds)
    return array


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
