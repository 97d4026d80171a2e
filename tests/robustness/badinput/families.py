"""The rows of the catalogue by format."""

from __future__ import annotations

from tests.robustness.badinput import (
    fasttext,
    json_lines,
    numpy_arrays,
    parquet,
    svmlight,
    tables,
    xc,
)

FAMILIES = {
    "svmlight": svmlight,
    "xc": xc,
    "parquet": parquet,
    "csv": tables,
    "jsonl": json_lines,
    "fasttext": fasttext,
    "npz": numpy_arrays,
}
