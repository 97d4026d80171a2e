"""Arrow files: tables, names and sparse matrices, written durably and read by memory map."""

from __future__ import annotations

import io
import mmap
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.errors import Corrupt, NotFound, ShapeMismatch
from xcray.storage.atomic import sync_path


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table durably as an uncompressed Arrow IPC file of one record batch, which a memory map reads in place."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with pa.OSFile(str(aside), "wb") as sink:
            _write_batch(sink, table)
        sync_path(aside)
        os.replace(aside, path)
        sync_path(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _write_batch(sink: Any, table: pa.Table) -> None:
    """The Arrow IPC file of a table, as one record batch."""
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)


def read_table(path: Path, whole: bool = False) -> pa.Table:
    """Map an Arrow IPC file; nothing is copied. Raises NotFound, or Corrupt when it is not Arrow.

    Arrow trusts what a file says of itself, and reads beyond its end when that is wrong: so the sizes of its arrays are compared
    with what they claim, and with `whole` all offsets and strings, too (a pass over them).
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=whole)
        _ = (
            table.column_names
        )  # names that are not UTF-8 raise here, not where they are first looked at
        return table
    except FileNotFoundError:
        raise NotFound(f"there is no {path.name} in {path.parent.name}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"{path.name} is not a readable Arrow file: {type(error).__name__}") from None


def write_matrix(path: Path, matrix: CSR | Pattern) -> None:
    """Write a CSR as rows of `indices` and `values` lists, or a Pattern as rows of `indices` lists; any Arrow tool reads them."""
    columns = {"indices": pa.array(matrix.indices)}
    if isinstance(matrix, CSR):
        columns["values"] = pa.array(matrix.data)
    write_table(path, _lists(pa.array(matrix.indptr), columns, matrix.n_cols))


def _lists(offsets: pa.Array, columns: Mapping[str, pa.Array], n_cols: int) -> pa.Table:
    """Columns of lists that share their offsets; the width in the schema's metadata."""
    lists = {
        name: pa.LargeListArray.from_arrays(offsets, values) for name, values in columns.items()
    }
    return pa.table(lists).replace_schema_metadata({"n_cols": str(n_cols)})


class MatrixWriter:
    """A CSR file whose row lengths are known and whose entries come piece by piece: byte for byte what `write_matrix` writes.

    Arrow writes the frame of the file around two holes; each piece goes to its place in them. Memory: the offsets and the
    piece at hand. A context manager: the file appears, durably, at the end of a block that raised nothing.

    indptr: (n_rows + 1,) int64 from 0; n_cols: columns. Raises OSError when the disk is full.
    """

    def __init__(self, path: Path, indptr: Int64, n_cols: int) -> None:
        self._path = path
        self._aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        self._indptr = frozen(indptr, np.int64)
        self._n_cols = n_cols
        self._nnz = int(indptr[-1])
        self._written = 0

    def __enter__(self) -> Self:
        """Write the frame."""
        try:
            with io.FileIO(self._aside, "x") as raw:
                hole = _Hole(raw, 4 * self._nnz)
                columns = {"indices": hole.array(pa.int32()), "values": hole.array(pa.float32())}
                _write_batch(
                    pa.PythonFile(hole, mode="w"),
                    _lists(pa.array(self._indptr), columns, self._n_cols),
                )
            self._places = _places(self._aside)
            self._file = io.FileIO(self._aside, "r+")
        except BaseException:
            self._aside.unlink(missing_ok=True)
            raise
        return self

    def write(self, start: int, indices: Int32, values: Float32) -> None:
        """Entries [start, start + n) of the matrix: (n,) int32 column indices, (n,) float32 values. Every entry comes once."""
        if len(indices) != len(values) or start < 0 or start + len(indices) > self._nnz:
            raise ShapeMismatch(
                f"entries {start} to {start + len(indices)} do not lie in a matrix of {self._nnz}"
            )
        if not len(indices):
            return
        for place, piece in zip(
            self._places, (frozen(indices, np.int32), frozen(values, np.float32)), strict=True
        ):
            self._file.seek(place + 4 * start)
            _write_all(self._file, piece.view(np.uint8).data)
        self._written += len(indices)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Sync and rename, or remove after an error. Raises ShapeMismatch when entries are missing."""
        try:
            with self._file:
                os.fsync(self._file.fileno())
            if kind is None:
                if self._written != self._nnz:
                    raise ShapeMismatch(
                        f"{self._path.name} has {self._nnz} entries, {self._written} were written; write each once"
                    )
                os.replace(self._aside, self._path)
                sync_path(self._path.parent)
        finally:
            self._aside.unlink(missing_ok=True)


class BlobWriter:
    """A table of one row: lists of numbers, and a list of bytes, `blocks`, which come piece by piece and are never held together.

    size: bytes of `blocks`; columns: name -> array, the other lists; head: texts for the schema's metadata. A context manager, as
    `MatrixWriter`; what was not written is zero.
    """

    def __init__(
        self, path: Path, size: int, columns: Mapping[str, pa.Array], head: Mapping[str, str]
    ) -> None:
        self._path = path
        self._aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        self._size = size
        self._columns = dict(columns)
        self._head = dict(head)

    def __enter__(self) -> Self:
        """Write the frame."""
        try:
            with io.FileIO(self._aside, "x") as raw:
                hole = _Hole(raw, self._size)
                columns = {**self._columns, "blocks": hole.array(pa.uint8())}
                lists = {
                    name: pa.LargeListArray.from_arrays([0, len(values)], values)
                    for name, values in columns.items()
                }
                _write_batch(
                    pa.PythonFile(hole, mode="w"),
                    pa.table(lists).replace_schema_metadata(self._head),
                )
            (self._place,) = _places(self._aside, ("blocks",))
            self._file = io.FileIO(self._aside, "r+")
        except BaseException:
            self._aside.unlink(missing_ok=True)
            raise
        return self

    def write(self, start: int, piece: Any) -> None:
        """Bytes [start, start + n) of `blocks`: (n,) uint8. Raises ShapeMismatch when they do not lie in it."""
        if start < 0 or start + len(piece) > self._size:
            raise ShapeMismatch(
                f"bytes {start} to {start + len(piece)} do not lie in a list of {self._size}"
            )
        if len(piece):
            self._file.seek(self._place + start)
            _write_all(self._file, frozen(piece, np.uint8).data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Sync and rename, or remove after an error."""
        try:
            with self._file:
                os.fsync(self._file.fileno())
            if kind is None:
                os.replace(self._aside, self._path)
                sync_path(self._path.parent)
        finally:
            self._aside.unlink(missing_ok=True)


def _write_all(file: io.FileIO, left: memoryview) -> None:
    """Write all bytes: the system takes at most 2 GiB at once."""
    while len(left):
        left = left[file.write(left) :]


class _Hole:
    """A file to write to that leaves out the bytes of one placeholder: address space that no memory stands behind."""

    closed = False

    def __init__(self, raw: io.FileIO, size: int) -> None:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        self._raw = raw
        self._buffer = pa.py_buffer(
            mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ) if size else b""
        )

    def array(self, kind: pa.DataType) -> pa.Array:
        """The placeholder as an array of numbers."""
        return pa.Array.from_buffers(
            kind, self._buffer.size * 8 // kind.bit_width, [None, self._buffer]
        )

    def write(self, data: Any) -> int:
        """Write, or step over the placeholder."""
        size = len(memoryview(data))
        if (
            self._buffer.size
            and isinstance(data, pa.Buffer)
            and data.address == self._buffer.address
        ):
            self._raw.seek(size, io.SEEK_CUR)
        else:
            self._raw.write(data)
        return size

    def flush(self) -> None:
        """Nothing is held back."""


def _places(path: Path, names: Iterable[str] = ("indices", "values")) -> list[int]:
    """Where in a file of one batch the entries of these columns of lists begin: Arrow itself reads its frame."""
    with pa.memory_map(str(path)) as source:
        first = source.read_buffer(1).address
        source.seek(0)
        table = pa.ipc.open_file(source).read_all()
        columns = [table.column(name) for name in names]
        return [
            column.chunk(0).values.buffers()[1].address - first for column in columns if len(column)
        ]


def read_csr(path: Path) -> CSR:
    """Map a CSR written by `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _rows(path)
    values = (
        _only_chunk(table, "values").values.to_numpy()
        if table.num_rows
        else np.empty(0, np.float32)
    )
    return csr(indptr, indices, values, _n_cols(path, table))


def read_pattern(path: Path) -> Pattern:
    """Map a Pattern written by `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _rows(path)
    return pattern(indptr, indices, _n_cols(path, table))


def _rows(path: Path) -> tuple[pa.Table, Any, Any]:
    """The mapped table with the offsets and indices of its rows."""
    table = read_table(path)
    if "indices" not in table.column_names:
        raise Corrupt(f"{path.name} has no column 'indices'; it holds {table.column_names}")
    if not table.num_rows:
        return table, np.zeros(1, np.int64), np.empty(0, np.int32)
    rows = _only_chunk(table, "indices")
    return table, rows.offsets.to_numpy(), rows.values.to_numpy()


def _only_chunk(table: pa.Table, column: str) -> Any:
    """The single chunk of a column."""
    chunks = table.column(column)
    if chunks.num_chunks != 1:
        raise Corrupt(f"column {column!r} has {chunks.num_chunks} chunks where one was written")
    return chunks.chunk(0)


def _n_cols(path: Path, table: pa.Table) -> int:
    """The number of columns kept in the schema's metadata."""
    try:
        return int(table.schema.metadata[b"n_cols"])
    except (TypeError, KeyError, ValueError):
        raise Corrupt(f"{path.name} does not say how many columns it has") from None


def write_names(path: Path, names: Iterable[str]) -> None:
    """Write a table of names, one row each, in order."""
    write_table(path, pa.table({"name": pa.array(list(names), pa.large_string())}))


def read_names(path: Path) -> pa.LargeStringArray:
    """Map a table of names; `names[i].as_py()` is the i-th. Raises NotFound or Corrupt."""
    column = read_table(path).column("name")
    return column.chunk(0) if column.num_chunks else pa.array([], pa.large_string())
