"""Options of builds: each format refuses those that it does not have."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.source import ROOT
from xcray.data.build import BuildOptions, build
from xcray.data.readers.formats import FILE_FORMATS, FORMATS, FORMATS_OF, GENERATED_FORMATS
from xcray.data.readers.options import ReadOptions
from xcray.data.synthetic import SyntheticParams
from xcray.errors import ParameterError


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("jsonl", {"text": {"fields": [{"name": "title"}]}}, "text.fields cannot be given"),
        ("svmlight", {"text": {"ngram_max": 2}}, "svmlight has no option text, which is for jsonl"),
        ("fasttext", {"text_fields": ["title:2"]}, "fasttext has no option text_fields"),
        (
            "jsonl",
            {"test_fractoin": 0.1},
            "no option 'test_fractoin'; did you mean 'test_fraction'",
        ),
        ("jsonl", {"categry_fields": "a"}, "did you mean 'category_fields'"),
        ("jsonl", {"text": {"fields": "a"}}, "text.fields cannot be given"),
        ("jsonl", {"fields": "a"}, "name the fields with text_fields"),
        ("jsonl", {"text": {"stemmer": "x"}}, "text has no parameter 'stemmer'; there are: lower"),
        ("csv", {"category_fields": "a", "zero_based": True}, "csv has no option zero_based"),
        ("npz", {"category_fields": "a"}, "npz has no option category_fields"),
        ("svmlight", {"test_fraction": 1}, "test_fraction is 1; it must be at least 0 and below 1"),
        ("svmlight", {"test_fraction": "0.1"}, "test_fraction is '0.1'"),
        ("svmlight", {"name": 5}, "data set name '5'"),
        ("svmlight", {"seed": "x"}, "seed is 'x'"),
        ("svmlight", {"test_rows_file": 5}, "test_rows_file must be a text, not '5'"),
    ],
)
def test_options_that_a_build_cannot_use_are_refused(
    format: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1 1:1\n")
    with pytest.raises(ParameterError, match=message):
        build(format, {"train": tmp_path / "f"}, tmp_path / "ds", BuildOptions.from_dict(options))


def test_formats_refuse_the_options_of_others() -> None:
    for name, formats in FORMATS_OF.items():
        for format in FORMATS:
            options = BuildOptions(given=frozenset({name}))
            if format in formats:
                options.check(format, ())
            else:
                with pytest.raises(ParameterError, match=f"{format} has no option {name}, which"):
                    options.check(format, ())
    read = ReadOptions(delimiter=";")
    for options in (BuildOptions(read=read), BuildOptions(synthetic=SyntheticParams(rows=5))):
        with pytest.raises(ParameterError, match="jsonl has no option"):
            options.check("jsonl", ())
    # a new option says which formats have it
    assert {each.name for each in fields(ReadOptions)} <= FORMATS_OF.keys()


def test_docs_list_the_options_of_formats() -> None:
    section = (ROOT / "docs" / "formats.md").read_text().split("## Options of formats\n")[1]
    rows = [line.split("|") for line in section.split("\n## ")[0].splitlines() if "| `" in line]
    documented = {
        name: set(re.findall(r"`(\w+)`", formats))
        for _, names, formats, _ in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    every = {
        name: set(GENERATED_FORMATS if formats == FILE_FORMATS else formats)
        for name, formats in FORMATS_OF.items()
        if name not in ("fields", "value_fields")
    }
    assert documented == every


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"values": [[1.0, 2.0]]}, {"id_field": "id"}, "the file has features: leave out id_field"),
        ({"values": [[1.0, 2.0]]}, {"text": {"min_df": 1}}, "has features: leave out text"),
        ({"text": ["a b"]}, {"n_features": 3}, "the file has texts: leave out n_features"),
        ({"text": ["a b"]}, {"test_rows_file": "rows"}, "has texts: leave out test_rows_file"),
    ],
)
def test_parquet_files_refuse_the_options_of_the_other_content(
    columns: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({**columns, "labels": [["a"]], "id": ["1"]}), tmp_path / "f.parquet")
    with pytest.raises(ParameterError, match=message):
        build(
            *("parquet", {"train": tmp_path / "f.parquet"}, tmp_path / "ds"),
            BuildOptions.from_dict(options),
        )
