"""Fields of CSV (RFC 4180: quotes, doubled inside) and of TSV (no quotes), with the line each row begins on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import Tally
from xcray.data.readers.lines import TextLine, text_lines
from xcray.errors import DataError


class Fields(NamedTuple):
    """The fields of one row, and the line it begins on."""

    values: list[str]
    line: int


def read_fields(source: Source, tally: Tally, delimiter: str, quoted: bool) -> Iterator[Fields]:
    """Rows of a table; a row may run over several lines when a quoted field does. Blank lines are no rows.

    Bad rows are told to the tally; a quote that is never closed, or too late, ends the reading, with the line it was opened on.
    """
    limit = source.options.max_field_bytes
    row: _Row | None = None
    for line in text_lines(source, tally):
        if row is None and not line.text:
            continue
        try:
            if row is None and not (quoted and '"' in line.text):
                values = line.text.split(delimiter)
                complete, start = True, line.number
            else:
                row = row or _Row(source, delimiter, line.number)
                complete = row.feed(line)
                values, start = row.values, row.start
            if complete:
                row = None
                if len(line.text) > limit and max(map(len, values)) > limit:
                    raise source.error(
                        "FIELD_TOO_LONG",
                        f"a field is longer than {limit} bytes",
                        line=start,
                        hint="raise max_field_bytes",
                    )
                yield Fields(values, start)
        except DataError as error:
            if row is not None and error.code == "FIELD_TOO_LONG":
                raise  # where its row ends nobody knows
            row = None
            tally.bad(error)
    if row is not None:
        raise row.unclosed()


class _Row:
    """A row in the making: fields that are complete, and the pieces of a quoted one that is still open."""

    def __init__(self, source: Source, delimiter: str, start: int) -> None:
        self.source = source
        self.delimiter = delimiter
        self.start = start
        self.values: list[str] = []
        self.open: io.StringIO | None = (
            None  # its pieces; as strings of their own they would take twenty times the memory
        )
        self.opened = (start, 1)
        self.held = 0

    def feed(self, line: TextLine) -> bool:
        """Take one more line; whether the row is complete."""
        pos: int | None = 0
        while pos is not None:
            if self.open is not None:
                pos = self._close(line, pos, self.open)
                if pos is None:
                    return False
                if pos > len(line.text):
                    return True
            elif line.text.startswith('"', pos):
                self.open, self.opened, self.held = io.StringIO(), (line.number, pos + 1), 0
                pos += 1
            else:
                pos = self._plain(line, pos)
        return True

    def unclosed(self) -> DataError:
        """The error for a quote that is never closed."""
        line, column = self.opened
        return self.source.error(
            "CSV_QUOTE",
            "the quote opened here is never closed",
            line=line,
            column=column,
            hint='close it with "',
        )

    def _plain(self, line: TextLine, pos: int) -> int | None:
        """Take a field without quotes; where the next one begins, if any."""
        end = line.text.find(self.delimiter, pos)
        field = line.text[pos:] if end < 0 else line.text[pos:end]
        if '"' in field:
            at, hint = (
                pos + field.index('"') + 1,
                'put the field in quotes and double the quotes inside: "5"" disk"',
            )
            raise self.source.error(
                "CSV_QUOTE",
                "a quote inside a field without quotes",
                line=line.number,
                column=at,
                value=field,
                hint=hint,
            )
        self.values.append(field)
        return None if end < 0 else end + 1

    def _close(self, line: TextLine, pos: int, pieces: io.StringIO) -> int | None:
        """Take text up to the closing quote: None when it is not on this line, else the place after the delimiter."""
        text = line.text
        end = text.find('"', pos)
        while end >= 0 and text.startswith('"', end + 1):
            end = text.find('"', end + 2)
        piece = text[pos:] + "\n" if end < 0 else text[pos:end]
        pieces.write(piece)
        self.held += len(piece)
        if self.held > self.source.options.max_field_bytes:
            limit, (number, column) = self.source.options.max_field_bytes, self.opened
            hint = "is the quote that opens it closed? else raise max_field_bytes"
            raise self.source.error(
                "FIELD_TOO_LONG",
                f"a field is longer than {limit} bytes",
                line=number,
                column=column,
                hint=hint,
            )
        if end < 0:
            return None
        self.values.append(pieces.getvalue().replace('""', '"'))
        self.open = None
        if end + 1 < len(text) and not text.startswith(self.delimiter, end + 1):
            problem = "text after the closing quote of a field"
            raise self.source.error(
                "CSV_QUOTE", problem, line=line.number, column=end + 2, value=text[end : end + 40]
            )
        return end + 2
