"""Everything a reader may be told, in one frozen dataclass; what is not told has a safe default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any

from xcray.errors import ParameterError

MIB = 1 << 20
MAX_INDEX = 2**31 - 2  # the largest 0-based index: ids are int32, and one more must fit as a width
SEQUENCES = ("text_fields", "columns")


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file, and how much of it to believe. Fields that do not concern a format are ignored by it.

    Raises ParameterError for values out of range.
    """

    zero_based: bool = field(
        default=False,
        metadata={"help": "svmlight: feature indices start at 0 (the XC format always does)"},
    )
    n_features: int | None = field(
        default=None, metadata={"help": "number of features; an index beyond it is an error"}
    )
    n_labels: int | None = field(
        default=None, metadata={"help": "number of labels; a label id beyond it is an error"}
    )
    labels_file: str | None = field(
        default=None, metadata={"help": "xc: labels in a file of their own, header 'N K'"}
    )
    text_fields: tuple[str, ...] = field(
        default=("text",), metadata={"help": "fields joined by blanks to the text"}
    )
    label_field: str = field(default="labels", metadata={"help": "field that holds the labels"})
    id_field: str | None = field(
        default=None, metadata={"help": "field that holds the document's id; else its row number"}
    )
    label_separator: str = field(
        default="|", metadata={"help": "between labels in one field; blanks around them go"}
    )
    label_ids: bool = field(
        default=False, metadata={"help": "labels are whole numbers 0, 1, ... and not names"}
    )
    header: bool = field(
        default=True, metadata={"help": "csv, tsv: the first line names the fields"}
    )
    columns: tuple[str, ...] = field(
        default=(), metadata={"help": "csv, tsv: names of the fields of a file without header"}
    )
    delimiter: str | None = field(
        default=None, metadata={"help": "between fields; default ',' for csv, a tab for tsv"}
    )
    skip_bad: bool = field(
        default=False,
        metadata={"help": "leave bad lines out and count them, instead of refusing the file"},
    )
    max_errors: int = field(
        default=20,
        metadata={"help": "errors collected before reading stops; with skip_bad: reasons kept"},
    )
    max_line_bytes: int = field(default=64 * MIB, metadata={"help": "longest line"})
    max_field_bytes: int = field(default=16 * MIB, metadata={"help": "longest field of csv, tsv"})
    max_features: int = field(
        default=1 << 25, metadata={"help": "largest D; the transpose takes 8 bytes for each"}
    )
    max_labels: int = field(default=1 << 25, metadata={"help": "largest K"})
    max_rows: int = field(
        default=10**9, metadata={"help": "largest number of rows a header may claim"}
    )
    max_decompressed: int = field(
        default=1 << 36, metadata={"help": "bytes a compressed file may grow to"}
    )
    max_expansion: int = field(
        default=250, metadata={"help": "times a compressed file may grow, once past 64 MiB"}
    )
    expected_bytes: int | None = field(
        default=None, metadata={"help": "size the sender declared; less is a cut upload"}
    )
    expected_sha256: str | None = field(
        default=None, metadata={"help": "SHA-256 the sender declared"}
    )

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        for name, low, high in LIMITS:
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high
            ):
                raise ParameterError(
                    f"{name} is {value!r}; it must be a whole number from {low} to {high}"
                )
        for f in fields(self):
            if f.type == "bool" and not isinstance(getattr(self, f.name), bool):
                raise ParameterError(
                    f"{f.name} is {getattr(self, f.name)!r}; it must be true or false"
                )
            if f.type in ("str", "str | None") and not isinstance(
                getattr(self, f.name), str | NoneType
            ):
                raise ParameterError(f"{f.name} is {getattr(self, f.name)!r}; it must be a string")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ParameterError(
                f"delimiter is {self.delimiter!r}; it must be one character, not a quote or line end"
            )
        if not self.label_separator:
            raise ParameterError(
                "label_separator is empty; give the characters between two labels, for example '|'"
            )
        if not self.text_fields:
            raise ParameterError("text_fields is empty; name at least one field that holds text")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReadOptions:
        """Options from JSON. Raises ParameterError for unknown names and values out of range."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ParameterError(
                f"there is no reading option {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )
        made: dict[str, Any] = {
            name: _sequence(name, value) if name in SEQUENCES else value
            for name, value in values.items()
        }
        return cls(**made)

    def as_dict(self) -> dict[str, Any]:
        """The options that differ from their defaults, JSON-ready."""
        default = asdict(ReadOptions())
        return {name: value for name, value in asdict(self).items() if value != default[name]}


LIMITS = (
    ("n_features", 1, MAX_INDEX + 1),
    ("n_labels", 1, MAX_INDEX + 1),
    ("max_errors", 1, 10_000),
    ("max_line_bytes", 16, 1 << 31),
    ("max_field_bytes", 1, 1 << 31),
    ("max_features", 1, MAX_INDEX + 1),
    ("max_labels", 1, MAX_INDEX + 1),
    ("max_rows", 1, 1 << 62),
    ("max_decompressed", 1, 1 << 62),
    ("max_expansion", 1, 1 << 31),
    ("expected_bytes", 0, 1 << 62),
)


def _sequence(name: str, value: Any) -> tuple[str, ...]:
    """A tuple of names from a list, or from one string with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ParameterError(f"{name} is {value!r}; it must be a list of field names")
    return tuple(value)
