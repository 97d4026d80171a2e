"""Data sets from and to tables in memory: pandas, polars, Hugging Face `datasets`, Arrow.

Any object with the Arrow C stream interface (`__arrow_c_stream__`) is a table; none of these
libraries is imported. Columns and rules are those of Parquet files: see `readers.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset, Split
from xcray.errors import InputError

BATCH_ROWS: Final = 4096
SCHEMA: Final = pa.schema(
    {
        "indices": pa.large_list(pa.int32()),
        "values": pa.large_list(pa.float32()),
        "labels": pa.large_list(pa.large_string()),
    }
)


def build_from_tables(
    train: Any, target: str | Path, options: BuildOptions | None = None, *, test: Any = None
) -> Dataset:
    """Build the data set `target` from one table, or two, batch by batch.

    train, test: tables with `text`, or `values` with or without `indices`, and with `labels` or
    `label_columns`. A
    Hugging Face `Dataset` is given as `dataset.with_format("arrow")[:]`. Rows of errors are counted
    from 0. The rows pass through temporary Parquet files next to `target`. Raises InputError for
    another object, and as `build`.
    """
    folder = Path(target).absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".xcray-", dir=folder) as temporary:
        sources = {}
        for part, table in (("train", train), ("test", test)):
            if table is not None:
                sources[part] = Path(temporary, f"{part}.parquet")
                _write_parquet(table, sources[part])
        return build("parquet", sources, target, options)


def to_table(dataset: Dataset, part: str = "train") -> pa.RecordBatchReader:
    """Return the rows of a part of a data set as a stream of record batches.

    Columns: `indices` and `values` of the features, and `labels`, the names. `polars.from_arrow`,
    `reader.read_pandas()` and `datasets.Dataset(reader.read_all())` make frames of it.
    """
    return pa.RecordBatchReader.from_batches(SCHEMA, _batches(dataset, dataset[part]))


def _batches(dataset: Dataset, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows."""
    for start in range(0, split.n_rows, BATCH_ROWS):
        X, Y = split.take(start, min(start + BATCH_ROWS, split.n_rows))
        names = dataset.label_names.take(Y.indices)
        items = [(X.indptr, X.indices), (X.indptr, X.data), (Y.indptr, names)]
        columns = [pa.LargeListArray.from_arrays(*map(pa.array, each)) for each in items]
        yield pa.record_batch(columns, schema=SCHEMA)


def _write_parquet(table: Any, path: Path) -> None:
    """Write a table batch by batch. Raises InputError if it is not one."""
    if not hasattr(table, "__arrow_c_stream__"):
        raise InputError(
            f"{type(table).__name__} is not an Arrow table; of a Hugging Face Dataset give "
            'dataset.with_format("arrow")[:]'
        )
    with pa.RecordBatchReader.from_stream(table) as batches:
        schema = pa.schema([(each.name, _stored_type(each.type)) for each in batches.schema])
        with pq.ParquetWriter(path, schema) as writer:
            for batch in batches:
                rows = pa.Table.from_batches([batch]).cast(schema)
                writer.write_table(rows, row_group_size=BATCH_ROWS)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Parquet stores a column: views become plain strings and lists."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _stored_type(each.type)) for each in kind])
    return kind
