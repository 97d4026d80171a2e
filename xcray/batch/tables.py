"""CSV and TSV files as JSON lines: one object of strings per row, at the line where the row begins.

Batch prediction reads byte ranges of a file, and fields in quotes can contain line ends, so tables
are converted before they are planned. A row that cannot be read becomes a JSON array with its
error, which the reading of its chunk reports or skips.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from xcray.data.readers.blocks import Source
from xcray.data.readers.csv_fields import read_fields
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.errors import DataError

DELIMITERS: Final = {"csv": ",", "tsv": "\t"}
TICK_ROWS: Final = 1 << 16


class _LineWriter(ErrorCollector):
    """Writes JSON values at line numbers of the table; errors of its rows are written too."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out
        self._line = 1

    def add(self, error: DataError) -> None:
        """Write the error of a row in place of the row."""
        self.write(error.line or self._line, [error.code, error.problem, error.column, error.hint])

    def write(self, line: int, value: Any) -> None:
        """Write a value as one line; blank lines fill the gap before it."""
        row = json.dumps(value, ensure_ascii=False)
        self._out.write("\n" * (line - self._line) + row + "\n")
        self._line = line + 1


def write_json_lines(
    path: Path, format: str, delimiter: str | None, out: Path, tick: Callable[[], None]
) -> list[str]:
    """Write the rows of a table with a header as JSON lines with the same line numbers.

    delimiter: None for that of the format. tick: called regularly. Returns the names of the header,
    none for an empty file. Raises NotFound; DataError if a file cannot be split into rows.
    """
    source = Source(path, ReadOptions(), text=True, format=format)
    header: list[str] | None = None
    with open(out, "w", encoding="utf-8", newline="\n") as target:
        writer = _LineWriter(target)
        rows = read_fields(source, writer, delimiter or DELIMITERS[format], quoted=format == "csv")
        for number, fields in enumerate(rows):
            if number % TICK_ROWS == 0:
                tick()
            if header is None:
                header = [name.strip() for name in fields.values]
            elif len(fields.values) != len(header):
                problem = f"the row has {len(fields.values)} fields, {len(header)} are expected"
                writer.add(source.error("CSV_FIELDS", problem, line=fields.line))
            else:
                writer.write(fields.line, dict(zip(header, fields.values, strict=True)))
    return header or []


def row_error(source: Source, text: str, line: int) -> DataError | None:
    """Return the error that `write_json_lines` wrote in place of a row, if it did."""
    if not text.startswith("["):
        return None
    code, problem, column, hint = json.loads(text)
    return source.error(code, problem, line=line, column=column, hint=hint)
