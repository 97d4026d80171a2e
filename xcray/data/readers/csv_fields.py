"""Fields of CSV (RFC 4180: quotes, doubled inside) and of TSV (no quotes), with line numbers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.lines import TextLine, text_lines
from xcray.errors import DataError


class Fields(NamedTuple):
    """The fields of one row, and the number of its first line."""

    values: list[str]
    line: int


def read_fields(
    source: Source, collector: ErrorCollector, delimiter: str, quoted: bool
) -> Iterator[Fields]:
    """Yield the rows of a table.

    A row spans several lines if a quoted field does. Blank lines are not rows. Bad rows are
    added to the collector. A quote that is never closed, or closed beyond the limit, ends the
    reading with the line where it was opened.
    """
    limit = source.options.max_field_bytes
    row: _QuotedRow | None = None
    for line in text_lines(source, collector):
        if row is None and not line.text:
            continue
        try:
            if row is None and not (quoted and '"' in line.text):
                values = line.text.split(delimiter)
                complete, start = True, line.number
            else:
                row = row or _QuotedRow(source, delimiter, line.number)
                complete = row.feed(line)
                values, start = row.values, row.start
            if complete:
                row = None
                if len(line.text) > limit and max(map(len, values)) > limit:
                    problem = f"a field is longer than {limit} bytes"
                    raise source.error("FIELD_TOO_LONG", problem, line=start)
                yield Fields(values, start)
        except DataError as error:
            if row is not None and error.code == "FIELD_TOO_LONG":
                raise  # the end of its row is unknown
            row = None
            collector.add(error)
    if row is not None:
        raise row.unclosed_error()


class _QuotedRow:
    """A row under construction: its complete fields, and the pieces of an open quoted field."""

    def __init__(self, source: Source, delimiter: str, start: int) -> None:
        self.source = source
        self.delimiter = delimiter
        self.start = start
        self.values: list[str] = []
        # one buffer: separate strings per line would take twenty times the memory
        self.open: io.StringIO | None = None
        self.opened_at = (start, 1)
        self.n_chars = 0

    def feed(self, line: TextLine) -> bool:
        """Add one more line, and return whether the row is complete."""
        pos: int | None = 0
        while pos is not None:
            if self.open is not None:
                pos = self._read_quoted(line, pos, self.open)
                if pos is None:
                    return False
                if pos > len(line.text):
                    return True
            elif line.text.startswith('"', pos):
                self.open, self.opened_at, self.n_chars = io.StringIO(), (line.number, pos + 1), 0
                pos += 1
            else:
                pos = self._read_plain(line, pos)
        return True

    def unclosed_error(self) -> DataError:
        """Return the error for a quote that is never closed."""
        line, column = self.opened_at
        problem = "the quote opened here is never closed"
        return self.source.error(
            "CSV_QUOTE", problem, line=line, column=column, hint='close it with "'
        )

    def _read_plain(self, line: TextLine, pos: int) -> int | None:
        """Read a field without quotes, and return the start of the next one, if any."""
        end = line.text.find(self.delimiter, pos)
        field = line.text[pos:] if end < 0 else line.text[pos:end]
        if '"' in field:
            at, problem = pos + field.index('"') + 1, "a quote inside a field without quotes"
            raise self.source.error("CSV_QUOTE", problem, line=line.number, column=at, value=field)
        self.values.append(field)
        return None if end < 0 else end + 1

    def _read_quoted(self, line: TextLine, pos: int, pieces: io.StringIO) -> int | None:
        """Read text up to the closing quote.

        Returns the position after the delimiter, or None if the quote is not closed on this
        line.
        """
        text = line.text
        end = text.find('"', pos)
        while end >= 0 and text.startswith('"', end + 1):
            end = text.find('"', end + 2)
        piece = text[pos:] + "\n" if end < 0 else text[pos:end]
        pieces.write(piece)
        self.n_chars += len(piece)
        if self.n_chars > self.source.options.max_field_bytes:
            limit, (number, column) = self.source.options.max_field_bytes, self.opened_at
            problem = f"a field is longer than {limit} bytes"
            raise self.source.error("FIELD_TOO_LONG", problem, line=number, column=column)
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
