"""Arrow files: tables, names and sparse matrices, written durably and read by memory map."""

from __future__ import annotations

import io
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.errors import Corrupt, NotFound, ShapeMismatch
from xcray.storage.atomic import replacing

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
    with replacing(path) as temporary, io.FileIO(temporary, "x") as raw:
        sink = _PlaceholderSink(raw)
        for name, (offsets, pieces) in lists.items():
            values = sink.array(pa.from_numpy_dtype(pieces[0].dtype), int(offsets[-1]), pieces)
            column = pa.LargeListArray.from_arrays(pa.array(offsets), values)
            table = table.append_column(name, column)
        _write_batch(pa.PythonFile(sink, mode="w"), table)
        os.fsync(raw.fileno())


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


class _PiecewiseWriter:
    """Writer of an Arrow file around placeholders, whose bytes arrive in pieces.

    A context manager: the file appears, durably, at the end of a block without an error.
    """

    def __init__(
        self, path: Path, names: Sequence[str], table: Callable[[_PlaceholderSink], pa.Table]
    ) -> None:
        """Initialise. names: the columns with placeholders; table: makes them by its argument."""
        self._path, self._names, self._table = path, names, table

    def __enter__(self) -> Self:
        """Write the file around the placeholders."""
        with ExitStack() as context:
            temporary = context.enter_context(replacing(self._path))
            with io.FileIO(temporary, "x") as raw:
                sink = _PlaceholderSink(raw)
                _write_batch(pa.PythonFile(sink, mode="w"), self._table(sink))
            self._offsets = _column_offsets(temporary, self._names)
            self._file = context.enter_context(_open_synced(temporary))
            self._context = context.pop_all()
        return self

    def _write_at(self, offset: int, piece: Any) -> None:
        """Write an array at a position of the file."""
        self._file.seek(offset)
        _write_all(self._file, piece.view(np.uint8).data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        """Sync and rename, or remove after an error."""
        self._context.__exit__(kind, error, trace)


class MatrixWriter(_PiecewiseWriter):
    """Writer of a CSR file with known row lengths, whose entries arrive in pieces.

    The file is byte for byte what `write_matrix` writes. Arrow writes the file around two
    placeholders, and each piece is written to its place in them. Memory: the offsets and the
    current piece.

    indptr: (n_rows + 1,) int64 from 0; n_cols: columns. Raises OSError if the disk is full.
    """

    def __init__(self, path: Path, indptr: Int64, n_cols: int) -> None:
        def table(sink: _PlaceholderSink) -> pa.Table:
            kinds = {"indices": pa.int32(), "values": pa.float32()}
            columns = {name: sink.array(kind, self._nnz) for name, kind in kinds.items()}
            return _list_table(pa.array(frozen(indptr, np.int64)), columns, n_cols)

        super().__init__(path, ("indices", "values"), table)
        self._nnz = int(indptr[-1])
        self._written = 0

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
        pieces = frozen(indices, np.int32), frozen(values, np.float32)
        for offset, piece in zip(self._offsets, pieces, strict=True):
            self._write_at(offset + 4 * start, piece)
        self._written += len(indices)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        """Sync and rename, or remove after an error.

        Raises ShapeMismatch if entries are missing.
        """
        if kind is not None or self._written == self._nnz:
            super().__exit__(kind, error, trace)
            return
        missing = ShapeMismatch(
            f"{self._path.name} has {self._nnz} entries, {self._written} were written:"
            " write each once"
        )
        super().__exit__(ShapeMismatch, missing, None)
        raise missing


class BlobWriter(_PiecewiseWriter):
    """Writer of a table of one row: lists of numbers, and `blocks`, bytes that arrive in pieces."""

    def __init__(
        self, path: Path, size: int, columns: Mapping[str, pa.Array], metadata: Mapping[str, str]
    ) -> None:
        def table(sink: _PlaceholderSink) -> pa.Table:
            blocks = sink.array(pa.uint8(), size)
            return list_row({**columns, "blocks": blocks}).replace_schema_metadata(metadata)

        super().__init__(path, ("blocks",), table)
        self._size = size

    def write(self, start: int, piece: Any) -> None:
        """Write bytes [start, start + n) of `blocks`: (n,) uint8.

        Raises ShapeMismatch if they are out of range.
        """
        if start < 0 or start + len(piece) > self._size:
            raise ShapeMismatch(
                f"bytes {start} to {start + len(piece)} do not lie in a list of {self._size}"
            )
        if len(piece):
            self._write_at(self._offsets[0] + start, frozen(piece, np.uint8))


def list_row(columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a table of one row, whose columns are lists of these values, which are not copied."""
    return pa.table(
        {
            name: pa.LargeListArray.from_arrays([0, len(values)], values)
            for name, values in columns.items()
        }
    )


@contextmanager
def _open_synced(path: Path) -> Iterator[io.FileIO]:
    """Open a file for writing at any place, and sync it after a block without an error."""
    with io.FileIO(path, "r+") as file:
        yield file
        os.fsync(file.fileno())


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


def _column_offsets(path: Path, names: Iterable[str]) -> list[int]:
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


def read_csr(path: Path) -> CSR:
    """Map a CSR of `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _read_rows(path)
    values = read_column(table, "values", CSR_TYPES["values"], path.name).values
    return csr(indptr, indices, values.to_numpy(), _n_cols(path, table))


def read_pattern(path: Path) -> Pattern:
    """Map a Pattern of `write_matrix`; arrays are views of the file.

    Raises NotFound or Corrupt.
    """
    table, indptr, indices = _read_rows(path)
    return pattern(indptr, indices, _n_cols(path, table))


def _read_rows(path: Path) -> tuple[pa.Table, Any, Any]:
    """Return the mapped table with the offsets and indices of its rows."""
    table = read_table(path)
    rows = read_column(table, "indices", CSR_TYPES["indices"], path.name)
    indptr = rows.offsets.to_numpy() if table.num_rows else np.zeros(1, np.int64)
    return table, indptr, rows.values.to_numpy()


def _n_cols(path: Path, table: pa.Table) -> int:
    """Return the number of columns from the schema's metadata. Raises Corrupt if missing."""
    try:
        return int(table.schema.metadata[b"n_cols"])
    except (TypeError, KeyError, ValueError):
        raise Corrupt(f"{path.name} has no number of columns in its metadata") from None


def read_column(
    table: pa.Table, name: str, kind: pa.DataType, file: str, length: int | None = None
) -> pa.Array:
    """Return a column as one array, a view of the mapped file.

    file: of the table, for messages. Raises Corrupt if it is missing, of another type or length,
    with nulls or in pieces.
    """
    column = table.column(name) if name in table.column_names else pa.chunked_array([], pa.null())
    # the name of a list's items is not part of its type here
    same = column.type == kind or (
        pa.types.is_large_list(kind)
        and pa.types.is_large_list(column.type)
        and column.type.value_type == kind.value_type
    )
    if not same or column.null_count or length not in (None, len(column)):
        wanted = f"{kind}" if length is None else f"{length} values of {kind}"
        raise Corrupt(f"{file}: {name!r} is not {wanted}, without nulls", file=file)
    if column.num_chunks > 1:
        raise Corrupt(f"{file} holds {name!r} in pieces where one was written", file=file)
    # combine_chunks would copy the mapped pages
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def read_float_row(path: Path, shapes: Mapping[str, Sequence[int]], what: str) -> Any:
    """Map the only row of a table as float32 arrays of these shapes, by name.

    what: the table, for messages. Raises NotFound, and Corrupt for other columns or sizes, or a
    value that is not finite.
    """
    table, kind = read_table(path, validate_data=True), pa.large_list(pa.float32())
    if table.num_rows != bool(shapes) or set(table.column_names) != set(shapes):
        raise Corrupt(f"{path.name} of {what} lacks {', '.join(shapes)}", file=path.name)
    arrays = {}
    for name, shape in shapes.items():
        values = read_column(table, name, kind, f"{path.name} of {what}").flatten()
        sound = all(type(n) is int and n >= 0 for n in shape) and not values.null_count
        if not sound or len(values) != math.prod(shape):
            raise Corrupt(f"{name} of {what} does not have the shape {shape}", file=path.name)
        array = frozen(values.to_numpy(), np.float32).reshape(shape)
        if not np.isfinite(array).all():
            raise Corrupt(f"{name} of {what} has values that are not finite", file=path.name)
        arrays[name] = array
    return arrays


def read_names(path: Path) -> pa.LargeStringArray:
    """Map a table of names; `names[i].as_py()` is the i-th. Raises NotFound or Corrupt."""
    return read_column(read_table(path), "name", pa.large_string(), path.name)
