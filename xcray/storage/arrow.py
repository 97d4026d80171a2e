"""Arrow files: tables, names and sparse matrices, written durably and read by memory map."""

from __future__ import annotations

import io
import mmap
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.errors import Corrupt, NotFound, ShapeMismatch
from xcray.storage.atomic import sync_path

MAX_PIECES: Final = 512  # per call of the system, which allows 1024
CSR_TYPES: Final = {"indices": pa.large_list(pa.int32()), "values": pa.large_list(pa.float32())}


def write_table(
    path: Path,
    table: pa.Table,
    lists: Mapping[str, tuple[Int64, Sequence[Any]]] = MappingProxyType({}),
) -> None:
    """Write a table durably as an uncompressed Arrow IPC file that a memory map reads in place.

    The file has one record batch. lists: further columns, each the offsets (n_rows + 1,) of its
    lists and the arrays of one dtype that have their entries one after the other, which are written
    without a copy of the whole.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with io.FileIO(temporary, "x") as raw:
            sink = _PlaceholderSink(raw)
            for name, (offsets, pieces) in lists.items():
                values = sink.array(pa.from_numpy_dtype(pieces[0].dtype), int(offsets[-1]), pieces)
                column = pa.LargeListArray.from_arrays(pa.array(offsets), values)
                table = table.append_column(name, column)
            _write_batch(pa.PythonFile(sink, mode="w"), table)
            os.fsync(raw.fileno())
        os.replace(temporary, path)
        sync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_batch(sink: Any, table: pa.Table) -> None:
    """Write the Arrow IPC file of a table as one record batch."""
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)


def read_table(path: Path, validate_data: bool = False) -> pa.Table:
    """Map an Arrow IPC file without copying. Raises NotFound, or Corrupt if it is not valid Arrow.

    Arrow trusts the sizes in a file and would read beyond its end if they are wrong. So the sizes
    of its arrays are compared with what they claim, and with `validate_data` also all offsets and
    strings (one pass over them).
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=validate_data)
        # Names that are not UTF-8 raise here, not at their first use.
        _ = table.column_names
        return table
    except FileNotFoundError:
        raise NotFound(f"there is no {path.name} in {path.parent.name}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"{path.name} is not a readable Arrow file: {type(error).__name__}") from None


def write_matrix(path: Path, matrix: CSR | Pattern) -> None:
    """Write a CSR as rows of `indices` and `values` lists, or a Pattern as rows of `indices`.

    Any Arrow tool can read them.
    """
    columns = {"indices": pa.array(matrix.indices)}
    if isinstance(matrix, CSR):
        columns["values"] = pa.array(matrix.data)
    write_table(path, _list_table(pa.array(matrix.indptr), columns, matrix.n_cols))


def _list_table(offsets: pa.Array, columns: Mapping[str, pa.Array], n_cols: int) -> pa.Table:
    """Return list columns with shared offsets; the width is in the schema's metadata."""
    lists = {
        name: pa.LargeListArray.from_arrays(offsets, values) for name, values in columns.items()
    }
    return pa.table(lists).replace_schema_metadata({"n_cols": str(n_cols)})


class MatrixWriter:
    """Writer of a CSR file with known row lengths, whose entries arrive in pieces.

    The file is byte for byte what `write_matrix` writes. Arrow writes the file around two
    placeholders, and each piece is written to its place in them. Memory: the offsets and the
    current piece. A context manager: the file appears, durably, at the end of a block without an
    error.

    indptr: (n_rows + 1,) int64 from 0; n_cols: columns. Raises OSError if the disk is full.
    """

    def __init__(self, path: Path, indptr: Int64, n_cols: int) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        self._indptr = frozen(indptr, np.int64)
        self._n_cols = n_cols
        self._nnz = int(indptr[-1])
        self._written = 0

    def __enter__(self) -> Self:
        """Write the file around the placeholders."""
        try:
            with io.FileIO(self._temporary, "x") as raw:
                sink = _PlaceholderSink(raw)
                kinds = {"indices": pa.int32(), "values": pa.float32()}
                columns = {name: sink.array(kind, self._nnz) for name, kind in kinds.items()}
                _write_batch(
                    pa.PythonFile(sink, mode="w"),
                    _list_table(pa.array(self._indptr), columns, self._n_cols),
                )
            self._offsets = _column_offsets(self._temporary)
            self._file = io.FileIO(self._temporary, "r+")
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise
        return self

    def write(self, start: int, indices: Int32, values: Float32) -> None:
        """Write entries [start, start + n) of the matrix. Every entry must be written once.

        indices: (n,) int32 column indices; values: (n,) float32. Raises ShapeMismatch if out of
        range.
        """
        if len(indices) != len(values) or start < 0 or start + len(indices) > self._nnz:
            raise ShapeMismatch(
                f"entries {start} to {start + len(indices)} do not lie in a matrix of {self._nnz}"
            )
        if not len(indices):
            return
        for offset, piece in zip(
            self._offsets, (frozen(indices, np.int32), frozen(values, np.float32)), strict=True
        ):
            self._file.seek(offset + 4 * start)
            _write_all(self._file, piece.view(np.uint8).data)
        self._written += len(indices)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Sync and rename, or remove after an error.

        Raises ShapeMismatch if entries are missing.
        """
        try:
            with self._file:
                os.fsync(self._file.fileno())
            if kind is None:
                if self._written != self._nnz:
                    raise ShapeMismatch(
                        f"{self._path.name} has {self._nnz} entries, {self._written} were written:"
                        " write each once"
                    )
                os.replace(self._temporary, self._path)
                sync_path(self._path.parent)
        finally:
            self._temporary.unlink(missing_ok=True)


class BlobWriter:
    """Writer of a table of one row: lists of numbers, and `blocks`, bytes that arrive in pieces."""

    def __init__(
        self, path: Path, size: int, columns: Mapping[str, pa.Array], metadata: Mapping[str, str]
    ) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        self._size = size
        self._columns = dict(columns)
        self._metadata = dict(metadata)

    def __enter__(self) -> Self:
        """Write the file around the placeholder."""
        try:
            with io.FileIO(self._temporary, "x") as raw:
                sink = _PlaceholderSink(raw)
                columns = {**self._columns, "blocks": sink.array(pa.uint8(), self._size)}
                lists = {
                    name: pa.LargeListArray.from_arrays([0, len(values)], values)
                    for name, values in columns.items()
                }
                _write_batch(
                    pa.PythonFile(sink, mode="w"),
                    pa.table(lists).replace_schema_metadata(self._metadata),
                )
            (self._offset,) = _column_offsets(self._temporary, ("blocks",))
            self._file = io.FileIO(self._temporary, "r+")
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise
        return self

    def write(self, start: int, piece: Any) -> None:
        """Write bytes [start, start + n) of `blocks`: (n,) uint8.

        Raises ShapeMismatch if they are out of range.
        """
        if start < 0 or start + len(piece) > self._size:
            raise ShapeMismatch(
                f"bytes {start} to {start + len(piece)} do not lie in a list of {self._size}"
            )
        if len(piece):
            self._file.seek(self._offset + start)
            _write_all(self._file, frozen(piece, np.uint8).data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Sync and rename, or remove after an error."""
        try:
            with self._file:
                os.fsync(self._file.fileno())
            if kind is None:
                os.replace(self._temporary, self._path)
                sync_path(self._path.parent)
        finally:
            self._temporary.unlink(missing_ok=True)


def _write_all(file: io.FileIO, left: memoryview) -> None:
    """Write all bytes, because the system writes at most 2 GiB per call."""
    while len(left):
        left = left[file.write(left) :]


def _write_pieces(file: io.FileIO, pieces: Sequence[Any]) -> None:
    """Write arrays one after the other, with few calls, because long writes take less time."""
    views = [piece.view(np.uint8).data for piece in pieces]
    for first in range(0, len(views), MAX_PIECES):
        group = views[first : first + MAX_PIECES]
        left = os.writev(file.fileno(), group)
        for view in group:  # what was not written, for example because of a full disk
            _write_all(file, view[left:])
            left = max(left - len(view), 0)


class _PlaceholderSink:
    """A file object that skips the bytes of placeholder arrays, or writes pieces instead.

    A placeholder is reserved address space without memory behind it.
    """

    closed = False

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._placeholders: dict[int, tuple[pa.Buffer, Sequence[Any]]] = {}  # by address

    def array(self, kind: pa.DataType, length: int, pieces: Sequence[Any] = ()) -> pa.Array:
        """Return a placeholder as an array of numbers.

        pieces: arrays of this kind and, together, of this length.
        """
        size = length * kind.bit_width // 8
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        buffer = pa.py_buffer(
            mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ) if size else b""
        )
        if size:
            self._placeholders[buffer.address] = (buffer, pieces)
        return pa.Array.from_buffers(kind, length, [None, buffer])

    def write(self, data: Any) -> int:
        """Write the data, or what takes the place of a placeholder."""
        size, address = len(memoryview(data)), data.address if isinstance(data, pa.Buffer) else 0
        if not size or address not in self._placeholders:
            self._raw.write(data)
        elif pieces := self._placeholders[address][1]:
            _write_pieces(self._raw, pieces)
        else:
            self._raw.seek(size, io.SEEK_CUR)
        return size

    def flush(self) -> None:
        """Do nothing: no data is buffered."""


def _column_offsets(path: Path, names: Iterable[str] = ("indices", "values")) -> list[int]:
    """Return the file offsets of the entries of list columns, in a file of one batch.

    Arrow itself parses the file.
    """
    with pa.memory_map(str(path)) as source:
        first = source.read_buffer(1).address
        source.seek(0)
        table = pa.ipc.open_file(source).read_all()
        columns = [table.column(name) for name in names]
        return [
            column.chunk(0).values.buffers()[1].address - first for column in columns if len(column)
        ]


def blob_offset(path: Path) -> int:
    """Return the position in its file of the bytes of `BlobWriter`. Raises NotFound or Corrupt."""
    if read_table(path).column_names[-1:] != ["blocks"]:
        raise Corrupt(f"{path.name} has no column 'blocks' at its end")
    (offset,) = _column_offsets(path, ("blocks",))
    return offset


def read_csr(path: Path) -> CSR:
    """Map a CSR of `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _read_rows(path)
    values = (
        _single_chunk(table, "values").values.to_numpy()
        if table.num_rows
        else np.empty(0, np.float32)
    )
    return csr(indptr, indices, values, _n_cols(path, table))


def read_pattern(path: Path) -> Pattern:
    """Map a Pattern of `write_matrix`; arrays are views of the file.

    Raises NotFound or Corrupt.
    """
    table, indptr, indices = _read_rows(path)
    return pattern(indptr, indices, _n_cols(path, table))


def _read_rows(path: Path) -> tuple[pa.Table, Any, Any]:
    """Return the mapped table with the offsets and indices of its rows."""
    table = read_table(path)
    if "indices" not in table.column_names:
        raise Corrupt(f"{path.name} has no column 'indices'; it holds {table.column_names}")
    if not table.num_rows:
        return table, np.zeros(1, np.int64), np.empty(0, np.int32)
    rows = _single_chunk(table, "indices")
    return table, rows.offsets.to_numpy(), rows.values.to_numpy()


def _single_chunk(table: pa.Table, column: str) -> Any:
    """Return the single chunk of a column. Raises Corrupt if there are more."""
    chunks = table.column(column)
    if chunks.num_chunks != 1:
        raise Corrupt(f"column {column!r} has {chunks.num_chunks} chunks instead of one")
    return chunks.chunk(0)


def _n_cols(path: Path, table: pa.Table) -> int:
    """Return the number of columns from the schema's metadata. Raises Corrupt if missing."""
    try:
        return int(table.schema.metadata[b"n_cols"])
    except (TypeError, KeyError, ValueError):
        raise Corrupt(f"{path.name} has no number of columns in its metadata") from None


def read_names(path: Path) -> pa.LargeStringArray:
    """Map a table of names; `names[i].as_py()` is the i-th. Raises NotFound or Corrupt."""
    column = read_table(path).column("name")
    return column.chunk(0) if column.num_chunks else pa.array([], pa.large_string())
