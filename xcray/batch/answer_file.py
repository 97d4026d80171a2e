"""Answers of a batch prediction as one file of JSON lines or CSV, made from its Parquet parts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from xcray.batch.output import read_manifest
from xcray.errors import Conflict
from xcray.storage.atomic import replacing, sync_path

FILE_FORMATS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
LABEL_SEPARATOR: Final = "|"  # that of `xcray data build`
# texts that a spreadsheet would compute, and not numbers like -5
_FORMULA: Final = re.compile(r"[=+\-@\t\r](?![\d.]*$)")


def file_format(out: Path) -> str | None:
    """Return the format of an output by its name: jsonl, csv, or None for a directory."""
    return FILE_FORMATS.get(out.suffix.lower())


def write_answer_file(answers: Path, out: Path) -> None:
    """Write the answers of the output directory `answers` as the file `out`, by one rename.

    Raises Conflict if `out` exists.
    """
    with replacing(out) as staged:
        with open(staged, "w", encoding="utf-8", newline="") as file:
            file.writelines(answer_lines(answers, str(file_format(out))))
        sync_path(staged)
        if out.exists():
            raise Conflict(f"{out.name} exists already; choose another output, or remove it first")


def answer_lines(answers: Path, format: str) -> Iterator[str]:
    """Yield the lines of the answers as "jsonl" or "csv".

    A JSON line is an object with the columns of the parts. CSV has a header; the values of lists
    are separated by "|", and an apostrophe precedes texts that a spreadsheet would compute.
    """
    if format == "jsonl":
        yield from (json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(answers))
        return
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for number, row in enumerate(_rows(answers)):
        if not number:
            writer.writerow(row)
        writer.writerow([_cell(value) for value in row.values()])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _rows(answers: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of all parts in the order of the input."""
    for part in read_manifest(answers)["parts"]:
        with pq.ParquetFile(answers / part["file"]) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()


def _cell(value: Any) -> Any:
    """Return a value as a CSV field."""
    if isinstance(value, list):
        joined = LABEL_SEPARATOR.join(map(str, value))
        return _cell(joined) if value and isinstance(value[0], str) else joined
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value
