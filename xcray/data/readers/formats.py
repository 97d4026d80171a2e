"""The formats that data sets are built from, and the options that each of them has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, get_args

from xcray.errors import ParameterError

UploadFormat: TypeAlias = Literal[
    "svmlight", "xc", "jsonl", "csv", "tsv", "fasttext", "parquet", "npz"
]
GeneratedFormat: TypeAlias = Literal["pydocs", "synthetic"]
UPLOAD_FORMATS: Final[tuple[str, ...]] = get_args(UploadFormat)
GENERATED_FORMATS: Final[tuple[str, ...]] = get_args(GeneratedFormat)
FILE_FORMATS: Final = (*UPLOAD_FORMATS, "npy")  # which has a second file
FORMATS: Final = (*FILE_FORMATS, *GENERATED_FORMATS)
TABLES: Final = ("csv", "tsv")
LINES: Final = ("svmlight", "xc", "jsonl", *TABLES, "fasttext")
NAMED_FIELDS: Final = ("jsonl", *TABLES, "parquet")
TEXTS: Final = ("jsonl", *TABLES, "fasttext", "parquet")
FEATURES: Final = ("svmlight", "xc", "parquet", "npz", "npy")
# option -> the formats that have it; options that are not listed belong to all formats
FORMATS_OF: Final[dict[str, tuple[str, ...]]] = {
    "zero_based": ("svmlight",),
    "labels_file": ("xc", "npy"),
    **dict.fromkeys(("n_features", "n_labels", "test_rows_file"), FEATURES),
    **dict.fromkeys(("text_fields", "category_fields", "number_fields"), NAMED_FIELDS),
    **dict.fromkeys(("vector_fields", "value_fields", "fields"), NAMED_FIELDS),
    "id_field": NAMED_FIELDS,
    **dict.fromkeys(("label_field", "label_columns", "label_separator"), NAMED_FIELDS),
    "label_ids": TEXTS,
    "text": (*TEXTS, "pydocs"),
    **dict.fromkeys(("header", "columns", "delimiter"), TABLES),
    "max_field_bytes": (*TABLES, "parquet"),
    "max_line_bytes": LINES,
    "max_rows": ("xc",),
    **dict.fromkeys(("max_features", "max_labels"), FEATURES),
    **dict.fromkeys(("skip_bad", "max_errors", "max_decompressed", "max_expansion"), FILE_FORMATS),
    "synthetic": ("synthetic",),
}


def check_option_names(format: str, names: Iterable[str]) -> None:
    """Raise ParameterError for an option that the format does not have."""
    for name in sorted(names):
        formats = FORMATS_OF.get(name, FORMATS)
        if format not in formats:
            raise ParameterError(
                f"format {format} has no option {name}, which is for {', '.join(formats)}: "
                "leave it out"
            )
