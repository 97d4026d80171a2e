"""What a Parquet footer claims, read by ourselves: Arrow ends the process on some footers when it is asked about a column.

Thrift's compact protocol, as far as a footer needs it. Sources: https://github.com/apache/thrift/blob/master/doc/specs/
thrift-compact-protocol.md, and parquet.thrift of https://github.com/apache/parquet-format (the numbers of fields below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MOST_LEVELS: Final = 24  # of structs and lists in each other; a sound footer has about ten
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, MAP, STRUCT = 0, 1, 2, 3, 7, 8, 11, 12
WHOLE: Final = (4, 5, 6)
LISTS: Final = (9, 10)


class Chunk(NamedTuple):
    """One column of one row group: its top column, its entries, its bytes before they were compressed."""

    column: str
    n_values: int
    n_bytes: int


class Group(NamedTuple):
    """One row group."""

    n_rows: int
    chunks: list[Chunk]


class Footer(NamedTuple):
    """Row groups, whether it is encrypted, and the largest list in it."""

    groups: list[Group]
    encrypted: bool
    longest: int

    def largest(self, columns: Sequence[str]) -> float:
        """Bytes a row when read, on average, in the row group where they are most: of the columns named."""
        wanted, most = set(columns), 1.0
        for group in self.groups:
            size = sum(
                max(chunk.n_bytes, 8 * chunk.n_values)
                for chunk in group.chunks
                if chunk.column in wanted
            )
            most = max(most, size / max(1, group.n_rows))
        return most

    def grown(self, columns: Sequence[str]) -> int:
        """Bytes that the columns named take when read, at least."""
        wanted = set(columns)
        chunks = [
            chunk for group in self.groups for chunk in group.chunks if chunk.column in wanted
        ]
        return sum(max(chunk.n_bytes, 4 * chunk.n_values) for chunk in chunks)


def read_footer(data: bytes, most: int) -> Footer:
    """The footer's claims. Raises ValueError when it is none, OverflowError for a list of more than `most` entries."""
    reader = _Reader(data, most)
    try:
        found = reader.struct(0)
        groups = [_group(group) for group in found.get(4, [])]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"the footer can't be read: {type(error).__name__}") from None
    return Footer(groups, 8 in found, reader.longest)


def _group(found: dict[int, Any]) -> Group:
    """A row group: columns are field 1, rows field 3."""
    group = Group(found[3], [_chunk(column) for column in found[1]])
    if group.n_rows < 0 or any(chunk.n_values < 0 or chunk.n_bytes < 0 for chunk in group.chunks):
        raise ValueError("the footer has a count below 0")
    return group


def _chunk(found: dict[int, Any]) -> Chunk:
    """A column of a group: its description is field 3; there path, entries and bytes are 3, 5 and 6."""
    about = found[3]
    return Chunk(about[3][0].decode(), about[5], about[6])


class _Reader:
    """Values of the compact protocol, one after the other. Structs are dicts by the number of the field."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data = data
        self.most = most
        self.at = 0
        self.longest = 0

    def struct(self, level: int) -> dict[int, Any]:
        """A struct up to its end."""
        out, number = {}, 0
        while (head := self.byte()) & 15 != STOP:
            number = number + (head >> 4) if head >> 4 else self.whole()
            out[number] = (
                head & 15 == TRUE
                if head & 15 in (TRUE, FALSE)
                else self.value(head & 15, level + 1)
            )
        return out

    def value(self, kind: int, level: int) -> Any:
        """A value of a kind."""
        if level > MOST_LEVELS:
            raise ValueError("the footer nests too deeply")
        if kind in WHOLE:
            return self.whole()
        if kind == BINARY:
            return self.take(self.count())
        if kind == STRUCT:
            return self.struct(level)
        if kind in LISTS:
            return self.list(level)
        if kind in (TRUE, FALSE, BYTE):
            return self.byte()
        if kind == DOUBLE:
            return self.take(8)
        raise ValueError(f"the footer has a value of kind {kind}")  # maps: no footer has one

    def list(self, level: int) -> list[Any]:
        """A list or set."""
        head = self.byte()
        size = head >> 4 if head >> 4 < 15 else self.count()
        self.longest = max(self.longest, size)
        if size > self.most:
            raise OverflowError(f"the footer has a list of {size} entries, {self.most} are read")
        return [self.value(head & 15, level + 1) for _ in range(size)]

    def byte(self) -> int:
        """One byte. Raises IndexError at the end."""
        self.at += 1
        return self.data[self.at - 1]

    def count(self) -> int:
        """A whole number that is not negative, in pieces of 7 bits."""
        out = shift = 0
        while True:
            piece = self.byte()
            out |= (piece & 127) << shift
            shift += 7
            if piece < 128:
                return out
            if shift > 63:
                raise ValueError("the footer has a number of more than 64 bits")

    def whole(self) -> int:
        """A whole number, its sign in the lowest bit."""
        found = self.count()
        return (found >> 1) ^ -(found & 1)

    def take(self, n: int) -> bytes:
        """So many bytes."""
        if n > len(self.data) - self.at:
            raise ValueError("the footer ends too early")
        self.at += n
        return self.data[self.at - n : self.at]
