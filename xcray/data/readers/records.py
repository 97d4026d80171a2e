"""Documents with labels: JSON lines, CSV and TSV, one record at a time.

Columns of errors count characters from 1. Texts are kept as they are (the text pipeline normalises them); labels are
stripped, brought to NFC, and kept once each. Blank lines are no records. A TSV has no quotes: a tab always separates.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.csv_fields import Fields, read_fields
from xcray.data.readers.error_log import DataErrors, Tally
from xcray.data.readers.lines import TextLine, lone_cr, text_lines
from xcray.data.readers.options import ReadOptions
from xcray.errors import DataError, ParameterError

FORMATS = ("jsonl", "csv", "tsv")
WHOLE = re.compile(r"[0-9]{1,18}")


class Record(NamedTuple):
    """A document: its id (a field, or its row number from 0), text, labels (distinct, in file order) and line, or row."""

    id: str
    text: str
    labels: tuple[str, ...]
    line: int | None = None
    row: int | None = None


def read_records(
    format: str, path: Path | str, options: ReadOptions, tally: Tally
) -> Iterator[Record]:
    """Records of a file of `FORMATS`, one by one; `tally` is filled on the way.

    Raises DataErrors for bad records (unless they are skipped), DataError for a file that is not of this format, EMPTY_FILE
    when it has no record, ParameterError for options that do not go together.
    """
    if format not in FORMATS:
        raise ParameterError(f"{format!r} is no text format; there are {', '.join(FORMATS)}")
    source = Source(path, options, text=True)
    parts = (
        _json_parts(source, tally)
        if format == "jsonl"
        else _table_parts(source, tally, format == "csv")
    )
    maker = RecordMaker(source, tally)
    tally.file = source.name
    with tally.collected():
        for line, found in parts:
            try:
                record = maker(line, found)
            except DataError as error:
                tally.bad(error)
                continue
            tally.n_rows += 1
            tally.n_positives += len(record.labels)
            tally.warnings["rows_without_labels"] += not record.labels
            yield record
        tally.close()
        if not tally.n_rows:
            raise (
                DataErrors(tally.errors)
                if tally.errors
                else source.error("EMPTY_FILE", "no records; the file is empty")
            )


class RecordMaker:
    """Turns the named values of a line into a record, or says what they lack."""

    def __init__(self, source: Source, tally: Tally) -> None:
        self.source = source
        self.tally = tally
        self.options = source.options

    def __call__(self, line: int, found: dict[str, Any]) -> Record:
        """The record of a line (or row). Raises DataError."""
        text = " ".join(self._string(line, found, name) for name in self.options.text_fields)
        if not text.strip():
            raise self.source.error(
                "EMPTY_TEXT",
                "the text is empty",
                line=line,
                hint="remove the record, or skip bad ones",
            )
        labels = self.labels(line, self._get(line, found, self.options.label_field))
        name = self.options.id_field
        row = self.tally.n_rows + self.tally.n_bad
        place = (None, line) if self.source.by_row else (line, None)
        return Record(
            str(row) if name is None else str(self._get(line, found, name)), text, labels, *place
        )

    def labels(self, line: int, value: Any) -> tuple[str, ...]:
        """Distinct labels, from a list or a string with separators. Raises DataError."""
        if isinstance(value, str):
            value = value.split(self.options.label_separator) if value.strip() else []
        if not isinstance(value, list):
            problem = f"field '{self.options.label_field}' is {_kind(value)} where a list of labels is expected"
            raise self.source.error("FIELD_TYPE", problem, line=line, value=json.dumps(value)[:100])
        labels = [self._label(line, item) for item in value]
        distinct = tuple(dict.fromkeys(labels))
        self.tally.warnings["duplicate_labels"] += len(labels) - len(distinct)
        return distinct

    def _get(self, line: int, found: dict[str, Any], name: str) -> Any:
        """The value of a field."""
        if name not in found:
            names = ", ".join(list(found)[:20])
            problem = f"there is no field '{name}'; there are: {names}"
            raise self.source.error(
                "FIELD_MISSING",
                problem,
                line=line,
                value=name,
                hint="name the fields with text_fields, label_field",
            )
        return found[name]

    def _string(self, line: int, found: dict[str, Any], name: str) -> str:
        """The value of a field that must be a string."""
        value = self._get(line, found, name)
        if not isinstance(value, str):
            problem = f"field '{name}' is {_kind(value)} where a string is expected"
            raise self.source.error("FIELD_TYPE", problem, line=line, value=json.dumps(value)[:100])
        return value

    def _label(self, line: int, item: Any) -> str:
        """One label: a string, or a whole number as its digits."""
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise self.source.error(
                "FIELD_TYPE",
                f"a label is {_kind(item)} where a string is expected",
                line=line,
                value=str(item),
            )
        label = unicodedata.normalize("NFC", str(item)).strip()
        if not label:
            raise self.source.error(
                "LABEL_EMPTY", "an empty label", line=line, hint="is the label separator right?"
            )
        if has_half_surrogate(label):
            hint = "write whole characters: \\ud83d\\ude00, not \\ud83d"
            raise self.source.error(
                "ENCODING",
                "a label with half of a surrogate pair",
                line=line,
                value=label,
                hint=hint,
            )
        if self.options.label_ids and not WHOLE.fullmatch(label):
            problem = f"label '{label[:60]}' is not a whole number"
            raise self.source.error(
                "LABEL_NOT_INT",
                problem,
                line=line,
                value=label,
                hint="turn label_ids off if labels are names",
            )
        return str(int(label)) if self.options.label_ids else label


def has_half_surrogate(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, which is no character and can't be written in UTF-8."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _table_parts(
    source: Source, tally: Tally, quoted: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and named fields of each row of a CSV or TSV."""
    names: list[str] | None = None
    options = source.options
    delimiter = options.delimiter or ("," if quoted else "\t")
    if not options.header:
        if not options.columns:
            raise ParameterError(
                "a file without header needs the names of its fields; give them as columns"
            )
        names = list(options.columns)
    for fields in read_fields(source, tally, delimiter, quoted):
        if names is None:
            names = _header(source, fields, delimiter)
        elif len(fields.values) != len(names):
            problem = f"the row has {len(fields.values)} fields, {len(names)} are expected"
            hint = "a delimiter inside a field? put the field in quotes" if quoted else None
            crossed = lone_cr(source, fields.line, delimiter.join(fields.values))
            tally.bad(crossed or source.error("CSV_FIELDS", problem, line=fields.line, hint=hint))
        else:
            yield fields.line, dict(zip(names, fields.values, strict=True))


def _header(source: Source, fields: Fields, delimiter: str) -> list[str]:
    """The names in the first line, which must be there, distinct, and hold those that are asked for."""
    names = [name.strip() for name in fields.values]
    crossed = lone_cr(source, fields.line, delimiter.join(fields.values))
    if crossed:
        raise crossed
    options = source.options
    if len(names) == 1:
        other = next(
            (mark for mark in (";", "\t", ",", "|") if mark in names[0] and mark != delimiter), None
        )
        if other:
            hint = f"read it with delimiter={other!r}"
            raise source.error(
                "CSV_ONE_COLUMN",
                f"one column by the delimiter {delimiter!r}",
                line=fields.line,
                value=names[0],
                hint=hint,
            )
    for column, name in enumerate(names):
        if not name or name in names[:column]:
            problem = (
                f"field {column + 1} of the header is a second '{name}'"
                if name
                else f"field {column + 1} of the header has no name"
            )
            raise source.error("CSV_HEADER", problem, line=fields.line, value=name)
    wanted = [
        *options.text_fields,
        options.label_field,
        *([options.id_field] if options.id_field else []),
    ]
    for name in wanted:
        if name not in names:
            problem = f"the header has no field '{name}'; it has: {', '.join(names[:20])}"
            hint = "name the fields with text_fields and label_field; header=false and columns for a file without header"
            raise source.error("CSV_HEADER", problem, line=fields.line, value=name, hint=hint)
    return names


def _json_parts(source: Source, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of each JSON object."""
    first = True
    for line in text_lines(source, tally):
        if not line.text.strip():
            continue
        if first and not line.text.lstrip().startswith("{"):
            hint = (
                "one object a line: jq -c '.[]' file.json"
                if line.text.lstrip().startswith("[")
                else "format=csv?"
            )
            raise source.error(
                "FORMAT_MISMATCH",
                "JSON lines begin with '{'",
                line=line.number,
                column=1,
                value=line.text[:100],
                hint=hint,
            )
        first = False
        try:
            yield line.number, json_object(source, line)
        except DataError as error:
            tally.bad(error)


def json_object(source: Source, line: TextLine) -> dict[str, Any]:
    """The object on one line; each name once, nothing after it. Raises DataError."""
    try:
        value = json.loads(line.text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        found = line.text[error.pos : error.pos + 40]
        crossed = lone_cr(source, line.number, line.text)
        raise crossed or source.error(
            "JSON_INVALID", error.msg, line=line.number, column=error.pos + 1, value=found
        ) from None
    except RecursionError:
        raise source.error("JSON_DEPTH", "nested too deeply", line=line.number) from None
    except _Repeated as error:
        raise source.error(
            "JSON_DUP_KEY", f"the name '{error}' is given twice", line=line.number, value=str(error)
        ) from None
    except ValueError as error:
        raise source.error("JSON_INVALID", str(error), line=line.number) from None
    if not isinstance(value, dict):
        raise source.error(
            "FIELD_TYPE",
            f"the line is {_kind(value)} where an object is expected",
            line=line.number,
        )
    return value


class _Repeated(Exception):
    """A name given twice in an object."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are distinct."""
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1)[:60])
    return out


def _no_constant(name: str) -> Any:
    """NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    """What a JSON value is, for people."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")
