"""Options of all readers in one frozen dataclass with safe defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any

from xcray.data.text.fields import names_of, reading_options
from xcray.errors import ParameterError, excerpt, similar_or_all

MIB = 1 << 20
# largest 0-based index: ids are int32, and the width must fit as well
MAX_INDEX = 2**31 - 2
SEQUENCES = ("text_fields", "value_fields", "label_columns", "columns")


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file, and the limits on its size.

    A format ignores fields that do not apply to it. Raises ParameterError for values out of
    range.
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
        default=None, metadata={"help": "xc: separate label file with header 'N K'; npy: file of y"}
    )
    text_fields: tuple[str, ...] = field(
        default=("text",),
        metadata={"help": "fields that form the text; title:2 also counts the words of one alone"},
    )
    value_fields: tuple[str, ...] = field(
        default=(),
        metadata={"help": "those of text_fields that can be empty, or numbers"},
    )
    label_field: str = field(
        default="labels",
        metadata={"help": "field with the labels; of objects: subjects.uri"},
    )
    label_columns: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "columns of 0 and 1, one per label, in place of label_field: names, first:last "
            "or prefix*"
        },
    )
    id_field: str | None = field(
        default=None, metadata={"help": "field with the document's id; default: its row number"}
    )
    label_separator: str = field(
        default="|",
        metadata={"help": "separator of labels in one field; blanks around labels are removed"},
    )
    label_ids: bool = field(
        default=False,
        metadata={
            "help": "labels are whole numbers 0, 1, ... and not names; with a file of label names, "
            "their positions in it"
        },
    )
    header: bool = field(
        default=True, metadata={"help": "csv, tsv: the first line names the fields"}
    )
    columns: tuple[str, ...] = field(
        default=(), metadata={"help": "csv, tsv: names of the fields of a file without header"}
    )
    delimiter: str | None = field(
        default=None, metadata={"help": "separator of fields; default: ',' for csv, a tab for tsv"}
    )
    skip_bad: bool = field(
        default=False,
        metadata={"help": "leave out bad lines and count them, instead of refusing the file"},
    )
    max_errors: int = field(
        default=20,
        metadata={"help": "errors collected before reading stops; with skip_bad: reasons kept"},
    )
    max_line_bytes: int = field(default=64 * MIB, metadata={"help": "maximum bytes of a line"})
    max_field_bytes: int = field(
        default=16 * MIB, metadata={"help": "csv, tsv: maximum bytes of a field"}
    )
    max_features: int = field(
        default=1 << 25, metadata={"help": "maximum D; the transpose takes 8 bytes per feature"}
    )
    max_labels: int = field(default=1 << 25, metadata={"help": "maximum K"})
    max_rows: int = field(default=10**9, metadata={"help": "maximum number of rows in a header"})
    max_decompressed: int = field(
        default=1 << 36, metadata={"help": "maximum bytes of a file after decompression"}
    )
    max_expansion: int = field(
        default=250, metadata={"help": "maximum growth factor of a compressed file beyond 64 MiB"}
    )
    expected_bytes: int | None = field(
        default=None,
        metadata={"help": "size declared by the sender; another size is a truncated upload"},
    )
    expected_sha256: str | None = field(
        default=None, metadata={"help": "SHA-256 declared by the sender"}
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
                f"delimiter is {self.delimiter!r}; it must be one character, "
                "not a quote or line end"
            )
        if not self.label_separator:
            raise ParameterError(
                "label_separator is empty; give the characters between two labels, for example '|'"
            )
        if not self.text_fields:
            raise ParameterError("text_fields is empty; name at least one field that holds text")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReadOptions:
        """Return the options for a JSON object.

        Raises ParameterError for unknown names and values out of range.
        """
        values, _ = reading_options(values)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            similar = similar_or_all(unknown[0], sorted(known))
            raise ParameterError(f"there is no reading option {excerpt(unknown[0])!r}{similar}")
        parsed: dict[str, Any] = {
            name: names_of(name, value) if name in SEQUENCES else value
            for name, value in values.items()
        }
        return cls(**parsed)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, JSON-ready."""
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
