"""Labels of one record: a list, one string, a field of objects, or columns of 0 and 1.

A string holds labels between separators, tags like `<a><b>`, or a list that was written as text by
Python, NumPy or as JSON, as data frames do when they are saved as CSV. Labels are stripped,
normalised to NFC, and kept once each.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions

INTEGER = re.compile(r"[0-9]{1,18}")
BRACKETS: Final = {"[": "]", "(": ")", "{": "}"}
# an item of a list in Python's notation and the comma or blank after it
QUOTED = r"""'((?:[^'\\]|\\['"\\])*)'|"((?:[^"\\]|\\['"\\])*)\""""
ITEM = re.compile(rf"\s*(?:{QUOTED}|([0-9]{{1,18}})(?![\w.]))\s*,?")
TAG = re.compile(r"<([^<>]+)>\s*")
TAGS = re.compile(rf"(?:{TAG.pattern})+")
INDICATORS: Final = {
    **dict.fromkeys(("0", "0.0", "false"), False),
    **dict.fromkeys(("1", "1.0", "true"), True),
}
MIN_INDICATORS: Final = 3  # entries from which a list of 0 and 1 alone cannot be one of labels
INDICATOR_LIST: Final = "a list of 0 and 1 is not a list of labels"


class LabelReader:
    """Reader of the labels of records. Raises DataError for labels that are not valid."""

    def __init__(self, source: Source, collector: ErrorCollector) -> None:
        self.source = source
        self.collector = collector
        self.options = source.options
        self._columns: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, line: int, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the distinct labels of a line (or row), in their order."""
        if self.options.label_columns:
            items: Any = self._columns_with_one(line, fields)
        else:
            items = self._items(line, fields)
        labels = [self._label(line, item) for item in items]
        if is_indicator_list(labels) and not self.options.label_columns:
            raise self.source.error(
                "LABEL_INDICATORS", INDICATOR_LIST, line=line, value=str(items)[:100]
            )
        distinct = tuple(dict.fromkeys(labels))
        self.collector.warnings["duplicate_labels"] += len(labels) - len(distinct)
        return distinct

    def _items(self, line: int, fields: Mapping[str, Any]) -> Iterable[Any]:
        """Return the entries of the label field: strings and whole numbers, if they are valid."""
        name, key = label_place(self.options, fields)
        value = field_value(self.source, line, fields, name)
        if isinstance(value, str):
            items, unpacked = split_labels(value, self.options.label_separator)
            self.collector.warnings["label_cells_unpacked"] += unpacked
            value = items
        value = [value] if isinstance(value, dict) and key is not None else value
        if not isinstance(value, list):
            problem = f"field '{name}' is {type_name(value)} where a list of labels is expected"
            raise self.source.error("FIELD_TYPE", problem, line=line, value=json.dumps(value)[:100])
        return value if key is None else [self._inside(line, item, name, key) for item in value]

    def _inside(self, line: int, item: Any, name: str, key: str) -> Any:
        """Return a field of an object that describes a label."""
        if not isinstance(item, dict) or key not in item:
            names = ", ".join(item) if isinstance(item, dict) else type_name(item)
            problem = f"a label in '{name}' has no field '{key}': {names}"
            raise self.source.error("FIELD_MISSING", problem, line=line, value=key)
        return item[key]

    def _columns_with_one(self, line: int, fields: Mapping[str, Any]) -> list[str]:
        """Return the names of the label columns that have a 1 on this line."""
        names = tuple(fields)
        if names not in self._columns:
            missing = unmatched_columns(self.options, names)
            if missing is not None:
                raise missing_field_error(self.source, line, missing, names)
            self._columns = {names: label_columns(self.options, names)}
        return [name for name in self._columns[names] if self._is_one(line, name, fields[name])]

    def _is_one(self, line: int, name: str, value: Any) -> bool:
        """Return whether a cell of a label column is 1."""
        text = str(value).strip()
        if text.lower() not in INDICATORS:
            problem = f"'{text[:60]}' in the label column '{name[:60]}' is neither 0 nor 1"
            raise self.source.error("LABEL_RANGE", problem, line=line, value=text)
        return INDICATORS[text.lower()]

    def _label(self, line: int, item: Any) -> str:
        """Return one label from a string or a whole number."""
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise self.source.error(
                "FIELD_TYPE",
                f"a label is {type_name(item)} where a string is expected",
                line=line,
                value=str(item),
                hint=self._object_hint(item),
            )
        label = plain_label(str(item))
        if not label:
            raise self.source.error("LABEL_EMPTY", "an empty label", line=line)
        if has_half_surrogate(label):
            problem = "a label with half of a surrogate pair"
            hint = "write whole characters: \\ud83d\\ude00, not \\ud83d"
            raise self.source.error("ENCODING", problem, line=line, value=label, hint=hint)
        if self.options.label_ids and not INTEGER.fullmatch(label):
            problem = f"label '{label[:60]}' is not a whole number"
            hint = "turn label_ids off if labels are names"
            raise self.source.error("LABEL_NOT_INT", problem, line=line, value=label, hint=hint)
        return str(int(label)) if self.options.label_ids else label

    def _object_hint(self, item: Any) -> str | None:
        """Return how to name the field of an object that is the label."""
        if not isinstance(item, dict) or not item:
            return None
        name = self.options.label_field
        return f"name the field that is the label, like label_field={name}.{next(iter(item))}"


def split_labels(cell: str, separator: str) -> tuple[list[Any], bool]:
    """Return the labels in a string, and whether they were a list or tags.

    Separators at both ends, as in "|a|b|", are dropped. Blanks as separator can be repeated.
    """
    cell = cell.strip()
    if not cell:
        return [], False
    items = _written_list(cell)
    if items is not None:
        return items, True
    size = len(separator)
    if len(cell) > 2 * size and cell.startswith(separator) and cell.endswith(separator):
        cell = cell[size:-size]
    parts = cell.split() if separator == " " else cell.split(separator)
    if "<" not in cell:
        return parts, False
    labels = [label for part in parts for label in _tags(part)]
    return labels, labels != parts


def _written_list(cell: str) -> list[Any] | None:
    """Return the items of a list in the notation of JSON, Python or NumPy, or None."""
    if BRACKETS.get(cell[0]) != cell[-1] or (cell[0] != "[" and not set("'\"") & set(cell)):
        return None
    value = _parsed_json(cell)
    if isinstance(value, list):
        return value
    items, at, inside = list[Any](), 0, cell[1:-1].strip()
    while at < len(inside):
        item = ITEM.match(inside, at)
        if item is None:
            return None
        single, double, number = item.groups()
        text = double if single is None else single
        items.append(int(number) if text is None else re.sub(r"\\(.)", r"\1", text))
        at = item.end()
    return items


def _parsed_json(text: str) -> Any:
    """Return a value of JSON, or None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _tags(part: str) -> list[str]:
    """Return the names in "<a><b>", or the string itself if it is anything else."""
    return TAG.findall(part) if TAGS.fullmatch(part.strip()) else [part]


def is_indicator_list(labels: Sequence[str]) -> bool:
    """Return whether labels are a row of a 0/1 matrix: three or more of 0 and 1 alone."""
    return len(labels) >= MIN_INDICATORS and set(labels) <= {"0", "1"}


def label_place(options: ReadOptions, names: Iterable[str]) -> tuple[str, str | None]:
    """Return the field with the labels, and the field of its objects that is the label, if any.

    "subjects.uri" is the field "uri" of the objects in "subjects", unless a field has that name.
    """
    name, dot, key = options.label_field.rpartition(".")
    if dot and options.label_field not in names and name in names:
        return name, key
    return options.label_field, None


def label_columns(options: ReadOptions, names: Sequence[str]) -> list[str]:
    """Return the columns that the options name, one by one, as "first:last" or as "prefix*".

    Columns of texts and ids and those without name do not belong to a range or a prefix.
    """
    chosen = [name for each in options.label_columns for name in _matches(each, options, names)]
    return list(dict.fromkeys(chosen))


def unmatched_columns(options: ReadOptions, names: Sequence[str]) -> str | None:
    """Return the first entry of `label_columns` that names no column, or None."""
    return next(
        (each for each in options.label_columns if not _matches(each, options, names)), None
    )


def _matches(entry: str, options: ReadOptions, names: Sequence[str]) -> list[str]:
    """Return the columns that one entry of `label_columns` names."""
    if entry in names:
        return [entry]
    first, colon, last = entry.partition(":")
    if colon and first in names and last in names:
        matching = list(names[names.index(first) : names.index(last) + 1])
    else:
        matching = [name for name in names if entry[-1:] == "*" and name.startswith(entry[:-1])]
    return [
        name for name in matching if name and name not in (*options.text_fields, options.id_field)
    ]


def required_fields(options: ReadOptions, names: Sequence[str]) -> list[str]:
    """Return the fields of a record that the options name, those of labels last."""
    if options.label_columns:
        labels = label_columns(options, names)
    else:
        labels = [label_place(options, names)[0]]
    return [*options.text_fields, *([options.id_field] if options.id_field else []), *labels]


def field_value(source: Source, line: int, fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field. Raises FIELD_MISSING."""
    if name not in fields:
        raise missing_field_error(source, line, name, fields)
    return fields[name]


def missing_field_error(source: Source, line: int, name: str, names: Iterable[str]) -> Any:
    """Return the error for a record without a field."""
    problem = f"there is no field '{name}'; there are: {', '.join(list(names)[:20])}"
    return source.error("FIELD_MISSING", problem, line=line, value=name)


def plain_label(text: str) -> str:
    """Return a label name as files of rows are read: stripped and in NFC."""
    return unicodedata.normalize("NFC", text).strip()


def has_half_surrogate(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, which UTF-8 cannot encode."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def type_name(value: Any) -> str:
    """Return the name of a JSON value's type for messages."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")
