"""Data sets from tables in memory, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.frames import build_from_tables, to_table
from xcray.data.readers.error_log import DataErrors
from xcray.data.synthetic import SyntheticParams
from xcray.errors import InputError

STRING = pa.string()
TEXTS = {"text": ["a red apple", "a blue sky", None], "labels": [["fruit"], ["air", "high"], []]}


class OnlyStream:
    """A table of which nothing is known but the Arrow stream, such as a frame of polars."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def texts(rows: int, kind: pa.DataType = STRING) -> OnlyStream:
    """Return a table of texts with strings of a type."""
    schema = pa.schema({"text": kind, "labels": pa.large_list(kind)})
    table = pa.table({name: column[:rows] for name, column in TEXTS.items()})
    return OnlyStream(table.cast(schema))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_table_of_texts_is_the_data_set_of_its_file(tmp_path: Path, kind: pa.DataType) -> None:
    lines = '{"text": "a red apple", "labels": ["fruit"]}\n{"text": "a blue sky", "labels": ["air", "high"]}\n'
    (tmp_path / "rows.jsonl").write_text(lines)
    want = build("jsonl", {"train": tmp_path / "rows.jsonl"}, tmp_path / "want")
    data = build_from_tables(texts(2, kind), tmp_path / "data", test=texts(1))
    assert data.label_names.to_pylist() == want.label_names.to_pylist()
    for name in ("X", "Y"):
        got, expected = getattr(data.train, name), getattr(want.train, name)
        assert (got.to_scipy() != expected.to_scipy()).nnz == 0
    assert data.test.n_rows == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "rows.jsonl", "want"]


def test_columns_of_0_and_1_and_objects_of_a_table_are_labels(tmp_path: Path) -> None:
    rows = {"text": ["a red apple", "a blue sky"], "fruit": [1, 0], "air": [False, True]}
    columns = BuildOptions.from_dict({"label_columns": ["fruit", "air"]})
    data = build_from_tables(OnlyStream(pa.table(rows)), tmp_path / "columns", columns)
    assert data.label_names.to_pylist() == ["air", "fruit"]
    assert data.train.Y.to_scipy().toarray().tolist() == [[0, 1], [1, 0]]
    kind = pa.list_(pa.struct([("uri", pa.string_view())]))
    subjects = pa.array([[{"uri": "u:1"}], [{"uri": "u:2"}, {"uri": "u:1"}]], kind)
    table = OnlyStream(pa.table({"text": rows["text"], "subjects": subjects}))
    objects = BuildOptions.from_dict({"label_field": "subjects.uri"})
    data = build_from_tables(table, tmp_path / "objects", objects)
    assert data.label_names.to_pylist() == ["u:1", "u:2"]


def test_rows_come_back_from_a_data_set(tmp_path: Path) -> None:
    options = BuildOptions(synthetic=SyntheticParams(rows=9000, features=50, labels=20, seed=3))
    data = build("synthetic", {}, tmp_path / "data", options)
    table = OnlyStream(to_table(data).read_all())
    back = build_from_tables(table, tmp_path / "back")
    assert back.train.n_rows == data.train.n_rows > 4096
    np.testing.assert_array_equal(back.train.X.data, data.train.X.data)
    np.testing.assert_array_equal(back.train.X.indices, data.train.X.indices)
    rows = table._table.column("labels").to_pylist()
    names = data.label_names.to_pylist()
    assert rows == [[names[k] for k in data.train.Y.row(i)] for i in range(data.train.n_rows)]


def test_errors_name_the_row_and_publish_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataErrors) as caught:
        build_from_tables(texts(3), tmp_path / "data")
    assert (caught.value.errors[0].code, caught.value.errors[0].row) == ("NULL_VALUE", 2)
    with pytest.raises(InputError, match="with_format"):
        build_from_tables([{"text": "a"}], tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
