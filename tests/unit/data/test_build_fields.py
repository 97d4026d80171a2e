"""Data sets of documents with several fields, from every format; models answer the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.text.fields import Field, document
from xcray.errors import DataError, ParameterError

ROWS = [
    {
        "title": "Rows",
        "abstract": "of houses",
        "lang": "en",
        "year": 1990,
        "by": "A",
        "labels": "x",
    },
    {
        "title": "Häuser",
        "abstract": "und Dächer",
        "lang": "de",
        "year": 2010,
        "by": "B",
        "labels": "y",
    },
    {"title": "Haus", "abstract": "", "lang": None, "year": None, "by": None, "labels": "x|y"},
]
OPTIONS = {
    "text_fields": ["title:2", "abstract"],
    "category_fields": ["by"],
    "number_fields": "year",
    "text": {"language": "lang"},
}


def write(folder: Path, format: str) -> Path:
    """Write the rows in a format."""
    path = folder / f"rows.{format}"
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        lines = [",".join(ROWS[0])]
        lines += [
            ",".join("" if value is None else str(value) for value in row.values()) for row in ROWS
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


def built(folder: Path, format: str = "jsonl", **options: object) -> Dataset:
    """Build the data set."""
    how = BuildOptions.from_dict({**OPTIONS, **options})
    return build(format, {"train": write(folder, format)}, folder / f"data-{format}", how)


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    data = [built(tmp_path, format) for format in ("jsonl", "csv", "parquet")]
    names = data[0].feature_names.array.to_pylist()
    assert {"title:haus", "haus", "by:A", "year"} <= set(names)
    assert "häuser" not in names
    for other in data[1:]:
        assert other.feature_names.array.to_pylist() == names
        for ours, theirs in zip(other.train.X, data[0].train.X, strict=True):
            assert np.array_equal(ours, theirs)


def test_the_data_set_knows_how_its_rows_are_read(tmp_path: Path) -> None:
    data = built(tmp_path)
    assert data.reading == {
        "text_fields": ["title", "abstract", "by", "year", "lang"],
        "value_fields": ["by", "year", "lang"],
    }
    assert data.text is not None
    names = data.reading["text_fields"]
    texts = [document({name: row[name] for name in names}, names) for row in ROWS]
    for ours, theirs in zip(data.text.transform(texts), data.train.X, strict=True):
        assert np.array_equal(ours, theirs)
    how = BuildOptions(like=str(data.path))
    again = build("jsonl", {"train": write(tmp_path, "jsonl")}, tmp_path / "again", how)
    for ours, theirs in zip(again.train.X, data.train.X, strict=True):
        assert np.array_equal(ours, theirs)


def test_fields_as_objects(tmp_path: Path) -> None:
    options = BuildOptions.from_dict({"text_fields": {"title": {"weight": 2}, "abstract": {}}})
    assert options.fields == (Field("title", weight=2), Field("abstract"))
    assert options.read.text_fields == ("title", "abstract")
    plain = BuildOptions.from_dict({"text_fields": "title,abstract"})
    assert (plain.fields, plain.read.value_fields) == ((), ())
    with pytest.raises(ParameterError, match="has no option 'wait'"):
        BuildOptions.from_dict({"text_fields": {"title": {"wait": 2}}})
    for name in ("text", "synthetic"):
        with pytest.raises(ParameterError, match=f"{name} is '5': name its options"):
            BuildOptions.from_dict({name: 5})


def test_a_language_that_is_neither_known_nor_a_field(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="klingon"):
        built(tmp_path, "csv", text={"language": "klingon"})


def test_without_fields_texts_are_joined_as_before(tmp_path: Path) -> None:
    data = built(
        tmp_path,
        category_fields=[],
        number_fields=[],
        text_fields="title,abstract",
        text={"ngram_max": 2},
    )
    assert "rows of" in data.feature_names.array.to_pylist()
