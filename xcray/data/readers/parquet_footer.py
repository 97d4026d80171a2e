"""Own parser of Parquet footers, because Arrow aborts the process on some invalid footers.

It implements the part of Thrift's compact protocol that a footer needs. Sources:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and
parquet.thrift of https://github.com/apache/parquet-format (the field numbers below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MAX_LEVELS: Final = 24  # nested structs and lists; a valid footer has about ten
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, MAP, STRUCT = 0, 1, 2, 3, 7, 8, 11, 12
INTEGERS: Final = (4, 5, 6)
LISTS: Final = (9, 10)


class ColumnChunk(NamedTuple):
    """One column of one row group: its top-level name, values and uncompressed bytes."""

    column: str
    n_values: int
    n_bytes: int


class RowGroup(NamedTuple):
    """One row group."""

    n_rows: int
    chunks: list[ColumnChunk]


class Footer(NamedTuple):
    """Row groups, whether the file is encrypted, and the length of the longest list."""

    groups: list[RowGroup]
    encrypted: bool
    longest: int

    def max_bytes_per_row(self, columns: Sequence[str]) -> float:
        """Return the mean bytes per row of these columns in the row group with the most."""
        names, result = set(columns), 1.0
        for group in self.groups:
            size = sum(
                max(chunk.n_bytes, 8 * chunk.n_values)
                for chunk in group.chunks
                if chunk.column in names
            )
            result = max(result, size / max(1, group.n_rows))
        return result

    def unpacked_bytes(self, columns: Sequence[str]) -> int:
        """Return a lower bound of the bytes that the given columns take when read."""
        names = set(columns)
        chunks = [chunk for group in self.groups for chunk in group.chunks if chunk.column in names]
        return sum(max(chunk.n_bytes, 4 * chunk.n_values) for chunk in chunks)


def read_footer(data: bytes, max_list: int) -> Footer:
    """Return the footer's claims.

    Raises ValueError for an invalid footer, OverflowError for a list of more than `max_list`
    entries.
    """
    reader = _ThriftReader(data, max_list)
    try:
        fields = reader.read_struct(0)
        groups = [_to_row_group(group) for group in fields.get(4, [])]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"the footer can't be read: {type(error).__name__}") from None
    return Footer(groups, 8 in fields, reader.longest)


def _to_row_group(fields: dict[int, Any]) -> RowGroup:
    """Return a row group: field 1 holds its columns, field 3 its number of rows."""
    group = RowGroup(fields[3], [_to_column_chunk(column) for column in fields[1]])
    if group.n_rows < 0 or any(chunk.n_values < 0 or chunk.n_bytes < 0 for chunk in group.chunks):
        raise ValueError("the footer has a count below 0")
    return group


def _to_column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    """Return a column of a row group.

    Its metadata is field 3; in it, path, values and bytes are fields 3, 5 and 6.
    """
    metadata = fields[3]
    return ColumnChunk(metadata[3][0].decode(), metadata[5], metadata[6])


class _ThriftReader:
    """Reader of the compact protocol. Structs are dicts by field number."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data = data
        self.max_list = most
        self.offset = 0
        self.longest = 0

    def read_struct(self, level: int) -> dict[int, Any]:
        """Read a struct up to its end."""
        out, number = {}, 0
        while (head := self.read_byte()) & 15 != STOP:
            number = number + (head >> 4) if head >> 4 else self.read_int()
            out[number] = (
                head & 15 == TRUE
                if head & 15 in (TRUE, FALSE)
                else self.read_value(head & 15, level + 1)
            )
        return out

    def read_value(self, kind: int, level: int) -> Any:
        """Read a value of a type."""
        if level > MAX_LEVELS:
            raise ValueError("the footer nests too deeply")
        if kind in INTEGERS:
            return self.read_int()
        if kind == BINARY:
            return self.read_bytes(self.read_varint())
        if kind == STRUCT:
            return self.read_struct(level)
        if kind in LISTS:
            return self.read_list(level)
        if kind in (TRUE, FALSE, BYTE):
            return self.read_byte()
        if kind == DOUBLE:
            return self.read_bytes(8)
        raise ValueError(f"the footer has a value of type {kind}")  # maps do not occur

    def read_list(self, level: int) -> list[Any]:
        """Read a list or set."""
        head = self.read_byte()
        size = head >> 4 if head >> 4 < 15 else self.read_varint()
        self.longest = max(self.longest, size)
        if size > self.max_list:
            raise OverflowError(
                f"the footer has a list of {size} entries, the limit is {self.max_list}"
            )
        return [self.read_value(head & 15, level + 1) for _ in range(size)]

    def read_byte(self) -> int:
        """Read one byte. Raises IndexError at the end."""
        self.offset += 1
        return self.data[self.offset - 1]

    def read_varint(self) -> int:
        """Read an unsigned integer in groups of 7 bits."""
        out = shift = 0
        while True:
            piece = self.read_byte()
            out |= (piece & 127) << shift
            shift += 7
            if piece < 128:
                return out
            if shift > 63:
                raise ValueError("the footer has a number of more than 64 bits")

    def read_int(self) -> int:
        """Read a zigzag-encoded integer: the sign is in the lowest bit."""
        number = self.read_varint()
        return (number >> 1) ^ -(number & 1)

    def read_bytes(self, n: int) -> bytes:
        """Read `n` bytes."""
        if n > len(self.data) - self.offset:
            raise ValueError("the footer ends too early")
        self.offset += n
        return self.data[self.offset - n : self.offset]
