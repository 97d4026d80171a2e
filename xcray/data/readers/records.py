"""Documents with labels from JSON lines, CSV, TSV and fastText, one record at a time.

Error columns count characters from 1. Texts are kept as they are (the text pipeline normalises
them). Labels are read by `readers.labels`. Blank lines are not records. A TSV file has no quotes:
a tab always separates. A line of fastText is a text in which words like `__label__x` are labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.csv_fields import Fields, read_fields
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.format_guess import FASTTEXT_PREFIX
from xcray.data.readers.labels import (
    LabelReader,
    field_value,
    required_fields,
    type_name,
    unmatched_columns,
)
from xcray.data.readers.lines import TextLine, lone_cr_error, text_lines
from xcray.data.readers.options import ReadOptions
from xcray.data.text.fields import cell_text, join_fields
from xcray.errors import DataError, ParameterError

FORMATS = ("jsonl", "csv", "tsv", "fasttext")


class Record(NamedTuple):
    """A document.

    id: a field, or the row number from 0; labels: distinct, in file order; line or row: its
    position in the file.
    """

    id: str
    text: str
    labels: tuple[str, ...]
    line: int | None = None
    row: int | None = None


def read_records(
    format: str, path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> Iterator[Record]:
    """Yield the records of a file in one of `FORMATS`, and update `collector`.

    Raises DataErrors for bad records (unless they are skipped), DataError for a file in another
    format, EMPTY_FILE if it has no record, ParameterError for contradictory options.
    """
    if format not in FORMATS:
        raise ParameterError(f"{format!r} is not a text format; there are {', '.join(FORMATS)}")
    source = Source(path, options, text=True, format=format)
    if format == "jsonl":
        parts = json_fields(source, collector)
    elif format == "fasttext":
        parts = fasttext_fields(source, collector)
    else:
        parts = _table_fields(source, collector, format == "csv")
    maker = RecordMaker(source, collector)
    collector.file = source.name
    with collector.reading():
        for line, fields in parts:
            try:
                record = maker(line, fields)
            except DataError as error:
                collector.add(error)
                continue
            collector.n_rows += 1
            collector.n_positives += len(record.labels)
            collector.warnings["rows_without_labels"] += not record.labels
            yield record
        collector.finish(source)


class RecordMaker:
    """Converter of the named values of a line to a record."""

    def __init__(self, source: Source, collector: ErrorCollector) -> None:
        self.source = source
        self.collector = collector
        self.options = source.options
        self.labels = LabelReader(source, collector)

    def __call__(self, line: int, fields: dict[str, Any]) -> Record:
        """Return the record of a line (or row). Raises DataError."""
        text = join_fields(self._string(line, fields, name) for name in self.options.text_fields)
        if not text.strip():
            raise self.source.error("EMPTY_TEXT", "the text is empty", line=line)
        labels = self.labels(line, fields)
        name = self.options.id_field
        row = self.collector.n_rows + self.collector.n_bad
        place = (None, line) if self.source.by_row else (line, None)
        id = row if name is None else field_value(self.source, line, fields, name)
        return Record(str(id), text, labels, *place)

    def _string(self, line: int, fields: dict[str, Any], name: str) -> str:
        """Return the value of a field that must be a string; others can be numbers or missing."""
        if name in self.options.value_fields:
            value = cell_text(fields.get(name))
        else:
            value = field_value(self.source, line, fields, name)
        if not isinstance(value, str):
            value = fields.get(name)
            problem = f"field '{name}' is {type_name(value)} where a string is expected"
            raise self.source.error("FIELD_TYPE", problem, line=line, value=json.dumps(value)[:100])
        return value


def _table_fields(
    source: Source, collector: ErrorCollector, quoted: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and named fields of each row of a CSV or TSV file."""
    names: list[str] | None = None
    options = source.options
    delimiter = options.delimiter or ("," if quoted else "\t")
    if not options.header:
        if not options.columns:
            raise ParameterError(
                "a file without header needs the names of its fields; give them as columns"
            )
        names = list(options.columns)
    for fields in read_fields(source, collector, delimiter, quoted):
        if names is None:
            names = _header(source, fields, delimiter)
        elif len(fields.values) != len(names):
            problem = f"the row has {len(fields.values)} fields, {len(names)} are expected"
            cr_error = lone_cr_error(source, fields.line, delimiter.join(fields.values))
            collector.add(cr_error or source.error("CSV_FIELDS", problem, line=fields.line))
        else:
            yield fields.line, dict(zip(names, fields.values, strict=True))


def _header(source: Source, fields: Fields, delimiter: str) -> list[str]:
    """Return the names in the first line.

    They must be distinct and include the required fields. The first one can be empty: pandas
    writes the index of a frame without a name.
    """
    names = [name.strip() for name in fields.values]
    cr_error = lone_cr_error(source, fields.line, delimiter.join(fields.values))
    if cr_error:
        raise cr_error
    options = source.options
    if len(names) == 1:
        other = next(
            (mark for mark in (";", "\t", ",", "|") if mark in names[0] and mark != delimiter), None
        )
        if other:
            problem, hint = (
                f"only one column with {delimiter!r}",
                f"read it with delimiter={other!r}",
            )
            raise source.error(
                "CSV_ONE_COLUMN", problem, line=fields.line, value=names[0], hint=hint
            )
    for column, name in enumerate(names):
        if (not name and column) or name in names[:column]:
            problem = (
                f"field {column + 1} of the header is a second '{name}'"
                if name
                else f"field {column + 1} of the header has no name"
            )
            raise source.error("CSV_HEADER", problem, line=fields.line, value=name)
    for name in required_fields(options, names):
        if name not in names:
            raise _missing_column_error(source, fields.line, name, names)
    missing = unmatched_columns(options, names)
    if missing is not None:
        raise _missing_column_error(source, fields.line, missing, names)
    return names


def _missing_column_error(source: Source, line: int, name: str, names: list[str]) -> DataError:
    """Return the error for a header without a required field."""
    problem = f"the header has no field '{name}'; it has: {', '.join(names[:20])}"
    hint = (
        "name the fields with text_fields and label_field, or columns of 0 and 1, one per label, "
        "with label_columns; header=false and columns=NAMES for a file without header"
    )
    return source.error("CSV_HEADER", problem, line=line, value=name, hint=hint)


def fasttext_fields(
    source: Source, collector: ErrorCollector
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number, text and labels of each line."""
    for line in text_lines(source, collector):
        text, labels = split_fasttext(line.text)
        if text or labels:
            yield line.number, {"text": text, "labels": labels}


def split_fasttext(line: str) -> tuple[str, list[str]]:
    """Return the text and the labels of a line of fastText."""
    words = line.split()
    labels = [word for word in words if word.startswith(FASTTEXT_PREFIX)]
    text = " ".join(word for word in words if not word.startswith(FASTTEXT_PREFIX))
    return text, [label.removeprefix(FASTTEXT_PREFIX) for label in labels]


def json_fields(source: Source, collector: ErrorCollector) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and fields of each JSON object."""
    for line in text_lines(source, collector):
        if not line.text.strip():
            continue
        try:
            yield line.number, json_object(source, line)
        except DataError as error:
            collector.add(error)


def json_object(source: Source, line: TextLine) -> dict[str, Any]:
    """Return the object on one line, with unique names and nothing after it. Raises DataError."""
    try:
        value = _DECODER.decode(line.text)
    except json.JSONDecodeError as error:
        shown = line.text[error.pos : error.pos + 40]
        cr_error = lone_cr_error(source, line.number, line.text)
        raise cr_error or source.error(
            "JSON_INVALID", error.msg, line=line.number, column=error.pos + 1, value=shown
        ) from None
    except RecursionError:
        raise source.error("JSON_DEPTH", "nested too deeply", line=line.number) from None
    except _DuplicateKey as error:
        raise source.error(
            "JSON_DUP_KEY", f"the name '{error}' is given twice", line=line.number, value=str(error)
        ) from None
    except ValueError as error:
        raise source.error("JSON_INVALID", str(error), line=line.number) from None
    if not isinstance(value, dict):
        problem = f"the line is {type_name(value)} where an object is expected"
        raise source.error("FIELD_TYPE", problem, line=line.number)
    return value


class _DuplicateKey(Exception):
    """A name occurs twice in an object."""


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises _DuplicateKey if a name repeats."""
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1)[:60])
    return out


def _refuse_constant(name: str) -> Any:
    """Raise ValueError: NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


# one for all lines: `json.loads` makes a decoder for each call with hooks
_DECODER = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant=_refuse_constant)
