"""Dense training rows in files of NumPy, read one slice at a time.

    npz   a file of `numpy.savez` or `numpy.savez_compressed` with the arrays X and y
    npy   X in a file of `numpy.save`, y in another one (`labels_file`)

X is (n, d) of numbers; zeros are not stored. y is (n,), the label of each row as a whole number, or
(n, k), 1 where a row has a label, else 0. Arrays are in C order. Rows are counted from 0.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from xcray.arrays import Int64, Pattern, pattern, pattern_from
from xcray.data.readers.blocks import HEAD_BYTES, Source
from xcray.data.readers.columns import Mask, finite_rows, first_bad_entries
from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.format_guess import FIXES, LOOKS, guess_format
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import SLICE_BYTES
from xcray.data.readers.parquet_file import check_unpacked_size
from xcray.data.readers.row_chunks import Chunk, RowErrors, to_chunk
from xcray.errors import DataError, missing_file
from xcray.kernels.sparse import take_pattern_rows
from xcray.storage.npy_stream import NpyStream

MAX_NDIM: Final = 2
WRITERS: Final = {"npz": "numpy.savez", "npy": "numpy.save"}


class ArrayStream:
    """An array in a stream, of which rows are read one after the other.

    shape: at most two dimensions; file: name in messages. Raises DataError NPY_INVALID for another
    format, objects, or Fortran order.
    """

    def __init__(self, stream: IO[bytes], n_bytes: int, file: str) -> None:
        """Read the header. n_bytes: size of the stream, which must be that of the header."""
        self._file = file
        try:
            self._array = NpyStream(stream, n_bytes)
        except ValueError as error:
            raise self._error(str(error)) from None
        self.shape, self.dtype = self._array.shape, self._array.dtype
        if self.dtype.kind not in "fiub":
            raise self._error(f"an array of {self.dtype}, not of numbers")
        if not 1 <= len(self.shape) <= MAX_NDIM:
            raise self._error(f"an array of the shape {self.shape}")
        if self._array.is_fortran and min(self.shape) > 1:
            raise self._error("an array in Fortran order")
        self.row_size = math.prod(self.shape[1:])
        self.row_bytes = self.row_size * self.dtype.itemsize

    def read(self, n_rows: int) -> Any:
        """Return the next rows, all of which must be there."""
        try:
            return self._array.read(n_rows * self.row_size).reshape(n_rows, *self.shape[1:])
        except ValueError as error:
            raise self._error(str(error)) from None

    def _error(self, problem: str) -> DataError:
        """Return the error of an invalid file."""
        hint = default_fix("NPY_INVALID")
        return DataError("NPY_INVALID", problem, file=self._file, hint=hint)


def read_npz(path: Path | str, options: ReadOptions, collector: ErrorCollector) -> Iterator[Chunk]:
    """Yield the rows of X and y in an npz file, slice by slice, and update `collector`.

    A chunk is X (n x d) float32 and Y (n x k). Raises NotFound, DataErrors for bad rows (unless
    they are skipped: NOT_FINITE, LABEL_RANGE), and DataError NPY_INVALID, NPY_SHAPE, ROW_MISMATCH,
    DIM_LIMIT, DECOMPRESSED_LIMIT, EMPTY_FILE.
    """
    source = _source(path, options, "npz")
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(source.path))
            members = {name: archive.getinfo(f"{name}.npy") for name in ("X", "y")}
        except zipfile.BadZipFile as error:
            problem = f"not a file of numpy.savez ({error})"
            raise source.error("NPY_INVALID", problem) from None
        except KeyError as error:
            raise source.error("NPY_SHAPE", f"no array X or y in the file: {error}") from None
        n_bytes = sum(member.file_size for member in members.values())
        check_unpacked_size(n_bytes, source.name, options, source.path.stat().st_size)
        try:
            streams = [stack.enter_context(archive.open(member)) for member in members.values()]
        except (RuntimeError, zipfile.BadZipFile) as error:  # encrypted, or another compression
            raise source.error("NPY_INVALID", str(error)[:80]) from None
        X, y = (
            ArrayStream(stream, member.file_size, source.name)
            for stream, member in zip(streams, members.values(), strict=True)
        )
        yield from _read_rows(source, X, y, collector)


def read_npy(path: Path | str, options: ReadOptions, collector: ErrorCollector) -> Iterator[Chunk]:
    """Yield the rows of X and y in two npy files. Raises as `read_npz`."""
    source = _source(path, options, "npy")
    if options.labels_file is None:
        raise source.error("NPY_SHAPE", "no labels", hint="give labels_file, an npy file of y")
    files = (source, _source(options.labels_file, ReadOptions(), "npy"))
    with ExitStack() as stack:
        X, y = (
            ArrayStream(
                stack.enter_context(each.path.open("rb")), each.path.stat().st_size, each.name
            )
            for each in files
        )
        yield from _read_rows(source, X, y, collector)


def _source(path: Path | str, options: ReadOptions, format: str) -> Source:
    """Return a file with rows.

    Raises NotFound, and DataError NPY_INVALID for a file that looks like another format.
    """
    source = Source(path, options, by_row=True)
    if not source.path.is_file():
        raise missing_file(source.path)
    with source.path.open("rb") as file:
        guess = guess_format(file.read(HEAD_BYTES))
    if guess not in (None, format):
        problem = f"not a file of {WRITERS[format]}: it {LOOKS[guess]}"
        raise source.error("NPY_INVALID", problem, hint=FIXES[guess])
    return source


def _read_rows(
    source: Source, X: ArrayStream, y: ArrayStream, collector: ErrorCollector
) -> Iterator[Chunk]:
    """Yield slices of both arrays."""
    _check_shapes(source, X, y)
    collector.file, collector.n_features = source.name, X.shape[1]
    n_rows, size = X.shape[0], max(1, SLICE_BYTES // max(1, X.row_bytes + y.row_bytes))
    with collector.reading():
        for start in range(0, n_rows, size):
            n = min(size, n_rows - start)
            row_errors = RowErrors(source, collector, start)
            Y, valid = _label_sets(y.read(n), source.options, row_errors)
            rows = finite_rows(X.read(n)[valid], valid, row_errors)
            row_errors.flush()
            if valid.any():
                yield to_chunk(collector, rows, take_pattern_rows(Y, np.flatnonzero(valid)))
        collector.finish(source)


def _check_shapes(source: Source, X: ArrayStream, y: ArrayStream) -> None:
    """Raise NPY_SHAPE, ROW_MISMATCH or DIM_LIMIT if the shapes do not fit."""
    options = source.options
    if len(X.shape) != MAX_NDIM or not X.shape[1]:
        problem = f"X has the shape {X.shape}: it must be (rows, features)"
        raise source.error("NPY_SHAPE", problem)
    if X.shape[0] != y.shape[0]:
        raise source.error("ROW_MISMATCH", f"X has {X.shape[0]} rows, y has {y.shape[0]}")
    if y.dtype.kind == "f":
        raise source.error("NPY_SHAPE", f"y has numbers of {y.dtype}: it must have whole numbers")
    if options.n_features is not None and X.shape[1] != options.n_features:
        problem = f"X has {X.shape[1]} features, n_features is {options.n_features}"
        raise source.error("NPY_SHAPE", problem)
    for size, limit in ((X.shape[1], "max_features"), (y.shape[-1], "max_labels")):
        if len(y.shape) + (limit == "max_features") > 1 and size > getattr(options, limit):
            problem = f"an array has {size} columns, more than {limit}"
            raise source.error("DIM_LIMIT", problem, hint=f"if this is intended, raise {limit}")


def _label_sets(y: Any, options: ReadOptions, row_errors: RowErrors) -> tuple[Pattern, Mask]:
    """Return the label sets of a slice, and which rows are valid. Raises LABEL_RANGE by row."""
    limit, n, valid = options.label_limit, len(y), np.ones(len(y), np.bool_)

    def refuse(rows: Int64, bad: Mask, ids: Any, problem: str) -> None:
        for row, at in first_bad_entries(rows, bad):
            valid[row] = False
            row_errors(row, "LABEL_RANGE", problem.format(ids[at]), str(ids[at]))

    if y.ndim == MAX_NDIM:
        rows, values = np.repeat(np.arange(n), y.shape[1]), y.ravel()
        refuse(rows, (values != 0) & (values != 1), values, "{} is neither 0 nor 1")
        Y = pattern_from(y == 1)
        rows, ids, outside = (
            np.repeat(np.arange(n), np.diff(Y.indptr)),
            Y.indices,
            Y.indices >= limit,
        )
    else:
        rows, ids, outside = np.arange(n), y, (y < 0) | (y >= limit)
        Y = pattern(np.arange(n + 1), np.where(outside, 0, y), limit)
    refuse(rows, outside, ids, f"label {{}} is not from 0 to {limit - 1}")
    return Y, valid
