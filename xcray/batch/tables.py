"""CSV and TSV files as JSON lines: one object of strings per row, at the line where the row begins.

Batch prediction reads byte ranges of a file, and fields in quotes can contain line ends, so tables
are converted before they are planned.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from xcray.data.readers.blocks import Source
from xcray.data.readers.csv_fields import read_fields
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions

DELIMITERS: Final = {"csv": ",", "tsv": "\t"}
TICK_ROWS: Final = 1 << 16


def write_json_lines(path: Path, format: str, out: Path, tick: Callable[[], None]) -> None:
    """Write the rows of a table with a header as JSON lines with the same line numbers.

    Blank lines fill the gaps. tick: called regularly. Raises NotFound; DataError for the first row
    that cannot be read or has another number of fields than the header, also if invalid rows of
    other formats are skipped.
    """
    source = Source(path, ReadOptions(), text=True)
    collector = ErrorCollector(max_errors=1)
    header: list[str] | None = None
    with collector.reading(), open(out, "w", encoding="utf-8", newline="\n") as target:
        line = 1
        rows = read_fields(source, collector, DELIMITERS[format], quoted=format == "csv")
        for number, fields in enumerate(rows):
            if number % TICK_ROWS == 0:
                tick()
            if header is None:
                header = [name.strip() for name in fields.values]
            elif len(fields.values) != len(header):
                problem = f"the row has {len(fields.values)} fields, {len(header)} are expected"
                raise source.error("CSV_FIELDS", problem, line=fields.line)
            else:
                line = _write_row(target, line, fields.line, header, fields.values)
        collector.raise_errors()


def _write_row(out: IO[str], line: int, at: int, header: list[str], values: list[str]) -> int:
    """Write a row at line number `at`; return the number of the next line."""
    row = json.dumps(dict(zip(header, values, strict=True)), ensure_ascii=False)
    out.write("\n" * (at - line) + row + "\n")
    return at + 1
