"""Options of all readers in one frozen dataclass with safe defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from xcray.errors import ParameterError
from xcray.parameters import check_parameters, parameter

MIB = 1 << 20
# largest 0-based index: ids are int32, and the width must fit as well
MAX_INDEX = 2**31 - 2
MAX_WIDTH = MAX_INDEX + 1
SEQUENCES = ("text_fields", "value_fields", "label_columns", "columns")


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file, and the limits on its size.

    `readers.formats` has the formats of each option. Raises ParameterError for values out of range.
    """

    zero_based: bool = parameter(
        False, "svmlight: feature indices start at 0 (the XC format always does)"
    )
    n_features: int | None = parameter(
        None, "number of features; an index beyond it is an error", kind=int, low=0, high=MAX_WIDTH
    )
    n_labels: int | None = parameter(
        None, "number of labels; a label id beyond it is an error", kind=int, low=1, high=MAX_WIDTH
    )
    labels_file: str | None = parameter(
        None, "xc: separate label file with header 'N K'; npy: file of y", kind=str
    )
    # fields that form the text; title:2 also counts the words of one alone
    text_fields: tuple[str, ...] = ("text",)
    value_fields: tuple[str, ...] = ()  # those of them that can be empty, or numbers
    label_field: str = parameter("labels", "field with the labels; of objects: subjects.uri")
    # columns of 0 and 1, one per label, in place of label_field: names, first:last or prefix*
    label_columns: tuple[str, ...] = ()
    id_field: str | None = parameter(
        None, "field with the document's id; default: its row number", kind=str
    )
    label_separator: str = parameter(
        "|", "separator of labels in one field; blanks around labels are removed"
    )
    label_ids: bool = parameter(
        False,
        "labels are whole numbers 0, 1, ... and not names; with a file of label names, their "
        "positions in it",
    )
    header: bool = parameter(True, "csv, tsv: the first line names the fields")
    columns: tuple[str, ...] = ()  # csv, tsv: names of the fields of a file without header
    delimiter: str | None = parameter(
        None, "separator of fields; default: ',' for csv, a tab for tsv", kind=str
    )
    skip_bad: bool = parameter(
        False, "leave out bad lines and count them, instead of refusing the file"
    )
    max_errors: int = parameter(
        20,
        "errors collected before reading stops; with skip_bad: reasons kept",
        low=1,
        high=10_000,
    )
    max_line_bytes: int = parameter(64 * MIB, "maximum bytes of a line", low=16, high=1 << 31)
    max_field_bytes: int = parameter(
        16 * MIB, "csv, tsv: maximum bytes of a field", low=1, high=1 << 31
    )
    max_features: int = parameter(
        1 << 25, "maximum D; the transpose takes 8 bytes per feature", low=1, high=MAX_WIDTH
    )
    max_labels: int = parameter(1 << 25, "maximum K", low=1, high=MAX_WIDTH)
    max_rows: int = parameter(10**9, "maximum number of rows in a header", low=1, high=1 << 62)
    max_decompressed: int = parameter(
        1 << 36, "maximum bytes of a file after decompression", low=1, high=1 << 62
    )
    max_expansion: int = parameter(
        250, "maximum growth factor of a compressed file beyond 64 MiB", low=1, high=1 << 31
    )

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        check_parameters(self)
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

    @property
    def feature_limit(self) -> int:
        """Number of features that a file can have at most."""
        return self.max_features if self.n_features is None else self.n_features

    @property
    def label_limit(self) -> int:
        """Number of labels that a file can have at most."""
        return self.max_labels if self.n_labels is None else self.n_labels

    def as_dict(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, JSON-ready."""
        default = asdict(ReadOptions())
        return {name: value for name, value in asdict(self).items() if value != default[name]}
