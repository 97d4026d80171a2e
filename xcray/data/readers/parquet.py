"""Training rows in Parquet, read one slice at a time.

A row is a text or a row of features in one or two columns, with its labels in another column.

    text    one or more columns of strings (`text_fields`, default `text`)
    sparse  `indices` and `values`: lists of equal length, indices from 0 in any order
    dense   `values` alone: lists of all features, zeros not stored

Labels (`label_field`, default `labels`) are a list of strings, of whole numbers or of objects, a
string, or columns of 0 and 1 (`label_columns`), see `readers.labels`. With features, lists of whole
numbers are ids as in svmlight; all other labels are names. Other columns are not read. Rows are
counted from 0. A slice has at most 4,096 rows or about 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import CSR, Int64, Pattern, pattern
from xcray.data.readers.blocks import Source
from xcray.data.readers.columns import (
    Mask,
    dense_rows,
    drop_nulls,
    first_bad_entries,
    flatten_lists,
    sparse_rows,
)
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.label_names import label_order
from xcray.data.readers.labels import (
    INDICATOR_LIST,
    MIN_INDICATORS,
    LabelReader,
    label_columns,
    label_place,
    unmatched_columns,
)
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet_file import (
    check_slice,
    check_unpacked_size,
    open_parquet,
    translate_arrow_errors,
    unpacked_bytes,
)
from xcray.data.readers.records import Record, RecordMaker
from xcray.data.readers.row_chunks import Chunk, RowErrors, to_chunk
from xcray.errors import DataError
from xcray.kernels.sparse import take_pattern_rows, take_rows

SLICE_ROWS: Final = 4096  # maximum rows per slice
SLICE_BYTES: Final = 8 << 20  # maximum bytes per slice, estimated by the file's average
MAX_LISTED_COLUMNS: Final = 20  # column names in an error message


class ColumnLayout(NamedTuple):
    """Arrangement of rows in columns: names of the columns read, and whether labels are names."""

    text: tuple[str, ...]
    indices: str | None
    values: str | None
    labels: tuple[str, ...]
    named_labels: bool
    id: str | None

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once."""
        names = (*self.text, self.indices, self.values, *self.labels, self.id)
        return list(dict.fromkeys(name for name in names if name is not None))

    def describe(self) -> str:
        """Return a description of the layout for messages."""
        rows = (
            f"text in {', '.join(self.text)}"
            if self.text
            else "indices and values"
            if self.indices
            else "values"
        )
        return f"{rows}, labels as {'names' if self.named_labels else 'numbers'}"


def parquet_layout(path: Path | str, options: ReadOptions) -> ColumnLayout:
    """Return the column layout of a file.

    Raises NotFound; DataError as `open_parquet`, PARQUET_COLUMN, PARQUET_TYPE.
    """
    with open_parquet(path) as file, translate_arrow_errors(Path(path).name):
        return _layout_of(file.schema_arrow, options, Path(path).name)


def parquet_records(
    path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> Iterator[Record]:
    """Yield the documents of a file and update `collector`.

    A string that the file stores once is held in memory once. Raises DataErrors for bad rows
    (unless they are skipped), DataError as `parquet_layout`, DECOMPRESSED_LIMIT, EMPTY_FILE.
    """
    source = Source(path, options, text=True, by_row=True)
    maker, layout = RecordMaker(source, collector), parquet_layout(path, options)
    size, n_bytes = source.path.stat().st_size, 0
    collector.file = source.name
    with collector.reading():
        for start, batch in _slices(source, layout):
            for i in range(batch.num_rows):
                try:
                    fields = _fields(source, batch, start + i, i, layout.columns)
                    record = maker(start + i, fields)
                except DataError as error:
                    collector.add(error)
                    continue
                n_bytes += len(record.text)
                check_unpacked_size(n_bytes, source.name, options, size)
                collector.n_rows += 1
                collector.n_positives += len(record.labels)
                collector.warnings["rows_without_labels"] += not record.labels
                yield record
        collector.finish(source)


def read_parquet(
    path: Path | str,
    options: ReadOptions,
    collector: ErrorCollector,
    label_ids: Mapping[str, int] | None = None,
    *,
    refuse_unknown: bool = True,
) -> Iterator[Chunk]:
    """Yield rows of features, slice by slice, and update `collector`.

    A chunk is X (n x d) float32 and Y (n x k), as wide as the ids so far. label_ids: ids of
    labels that are names; refuse_unknown: whether another name is an error (LABEL_UNKNOWN) or
    is left out and counted. Raises as `parquet_records`.
    """
    source = Source(path, options, by_row=True)
    layout = parquet_layout(path, options)
    collector.n_labels = len(label_ids or ())
    collector.file = source.name
    with collector.reading():
        for start, batch in _slices(source, layout):
            row_errors = RowErrors(source, collector, start)
            X, valid_x = _features(batch, layout, options, collector, row_errors)
            Y, valid_y = _labels(
                batch,
                layout,
                options,
                label_ids,
                refuse_unknown,
                collector,
                row_errors,
            )
            row_errors.flush()
            valid = valid_x & valid_y
            if valid.any():
                yield to_chunk(
                    collector,
                    take_rows(X, np.flatnonzero(valid[valid_x])),
                    take_pattern_rows(Y, np.flatnonzero(valid)),
                )
        collector.finish(source)


def label_names(path: Path | str, options: ReadOptions) -> list[str]:
    """Return all names in the label column, in the label order of documents.

    Rows that cannot be read are ignored. Raises DataError as `parquet_layout`.
    """
    source, layout = Source(path, options, by_row=True), parquet_layout(path, options)
    reader, names = LabelReader(source, ErrorCollector()), dict[str, None]()
    for _, batch in _slices(source, layout._replace(text=(), indices=None, values=None, id=None)):
        for i in range(batch.num_rows):
            try:
                names.update(dict.fromkeys(reader(i, _fields(source, batch, i, i, layout.labels))))
            except DataError:  # the pass over the rows reports it
                continue
    return sorted(names, key=label_order)


def _fields(
    source: Source, batch: pa.RecordBatch, row: int, at: int, names: Sequence[str]
) -> dict[str, Any]:
    """Return the values of one row by column. Raises DataError as `_scalar`."""
    return {name: _scalar(source, batch.column(name), row, at, name) for name in names}


def _slices(source: Source, layout: ColumnLayout) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns of a layout in slices, each with the number of its first row."""
    options = source.options
    are_strings = layout.labels == (options.label_field,) or bool(options.label_columns)
    strings = [*layout.text, *(layout.labels if layout.named_labels and are_strings else ())]
    with open_parquet(source.path, strings) as file:
        start, size = 0, source.path.stat().st_size
        n_bytes, row_bytes = unpacked_bytes(file)
        check_unpacked_size(n_bytes, source.name, source.options, size)
        numeric, n_bytes = [name for name in (layout.indices, layout.values) if name], 0
        rows = int(min(SLICE_ROWS, max(1, SLICE_BYTES // row_bytes)))
        with translate_arrow_errors(source.name):
            batches = file.iter_batches(rows, columns=layout.columns, use_threads=False)
        while True:
            with translate_arrow_errors(source.name):
                batch = next(batches, None)
                if batch is not None:
                    check_slice(batch)
            if batch is None:
                return
            # run lengths can be shorter than the footer's bytes
            n_bytes += sum(batch.column(name).nbytes for name in numeric)
            check_unpacked_size(n_bytes, source.name, source.options, size)
            yield start, batch
            start += batch.num_rows


def _layout_of(schema: pa.Schema, options: ReadOptions, file: str) -> ColumnLayout:
    """Return the layout of a schema's columns after checking their types."""
    names = schema.names
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise DataError(
            "PARQUET_COLUMN",
            f"two columns are called '{repeated}'",
            file=file,
            value=repeated,
            hint="rename one of them",
        )
    text = set(options.text_fields) <= set(names)
    if not text and "values" not in names:
        raise _missing_column_error(options.text_fields[0], names, file)
    missing = unmatched_columns(options, names)
    labels = tuple(label_columns(options, names) or [label_place(options, names)[0]])
    for name in (missing or labels[0], options.id_field):
        if name is not None and name not in names:
            raise _missing_column_error(name, names, file)
    indices = "indices" if not text and "indices" in names else None
    fields = tuple(options.text_fields) if text else ()
    layout = ColumnLayout(
        fields,
        indices,
        None if text else "values",
        labels,
        True,
        options.id_field if text else None,
    )
    for name in layout.columns:
        _check_type(name, schema.field(name).type, layout, options, file)
    kind = schema.field(labels[0]).type
    are_ids = is_list(kind) and pa.types.is_integer(kind.value_type)
    return layout._replace(named_labels=text or bool(options.label_columns) or not are_ids)


def _missing_column_error(name: str, names: list[str], file: str) -> DataError:
    """Return the error for a missing column."""
    similar = next((other for other in names if other.lower() == name.lower()), None)
    hint = (
        f"did you mean '{similar}'? rename it, or"
        if similar
        else "give labels, and text, values, or indices with values;"
    )
    problem = (
        f"there is no column '{name}'; there are: {', '.join(names[:MAX_LISTED_COLUMNS]) or 'none'}"
    )
    return DataError(
        "PARQUET_COLUMN",
        problem,
        file=file,
        value=name,
        hint=f"{hint} name columns by text_fields, label_field, or label_columns for 0 and 1",
    )


def _check_type(
    name: str, kind: pa.DataType, layout: ColumnLayout, options: ReadOptions, file: str
) -> None:
    """Raise PARQUET_TYPE if the type of a column is not supported."""
    entry = kind.value_type if is_list(kind) else None
    is_integer_list = entry is not None and pa.types.is_integer(entry)
    if name in layout.text:
        is_valid = is_string(kind) or (name in options.value_fields and _is_number(entry or kind))
        expected = "strings"
    elif name in layout.labels and options.label_columns:
        is_valid, expected = is_string(kind) or _is_number(kind), "0 and 1"
    elif name in layout.labels:
        is_valid, expected = _is_label_type(kind, label_place(options, [name])[1])
    elif name == layout.id:
        is_valid, expected = (
            is_string(kind) or pa.types.is_integer(kind),
            "strings or whole numbers",
        )
    elif name == layout.indices:
        is_valid, expected = is_integer_list, "lists of whole numbers"
    else:
        is_valid = entry is not None and _is_number(entry) and not pa.types.is_boolean(entry)
        expected = "lists of numbers (float32, float64 or whole)"
    if not is_valid:
        shown = str(kind)[:60]
        raise DataError(
            "PARQUET_TYPE",
            f"column '{name}' has type {shown}, {expected} are expected",
            file=file,
            value=shown,
            hint=f"name the field that is the label, like label_field={name}.{entry[0].name}"
            if name in layout.labels and entry is not None and pa.types.is_struct(entry)
            else "cast the column",
        )


def _is_label_type(kind: pa.DataType, key: str | None) -> tuple[bool, str]:
    """Return whether a type is one of labels, and what is expected.

    key: the field of objects that is the label.
    """
    entry = kind.value_type if is_list(kind) else kind
    if key is not None:
        names = [each.name for each in entry] if pa.types.is_struct(entry) else []
        return key in names or is_string(kind), f"lists of objects with a field '{key}'"
    is_valid = is_string(entry) or (is_list(kind) and pa.types.is_integer(entry))
    return is_valid, "lists of strings or of whole numbers"


def _is_number(kind: pa.DataType) -> bool:
    """Whether values are whole numbers, float32, float64 or booleans."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
    )


def is_string(kind: pa.DataType) -> bool:
    """Whether values are strings, including dictionary encoding."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _scalar(source: Source, column: pa.Array, row: int, at: int, name: str) -> Any:
    """Return one value as a Python object.

    Raises DataError NULL_VALUE, ENCODING, FIELD_TOO_LONG.
    """
    try:
        limit = source.options.max_field_bytes
        if _n_bytes(column[at]) > limit:
            problem = f"column '{name}' is longer than {limit} bytes"
            raise source.error("FIELD_TOO_LONG", problem, line=row)
        value = column[at].as_py()
    except UnicodeDecodeError as error:
        problem = f"column '{name}' is not UTF-8 at byte {error.start}"
        raise source.error("ENCODING", problem, line=row) from None
    if value is None and name in source.options.value_fields:
        return None
    if value is None or (isinstance(value, list) and None in value):
        problem = f"column '{name}' {'is' if value is None else 'holds a'} null"
        raise source.error("NULL_VALUE", problem, line=row)
    return value


def _n_bytes(value: pa.Scalar) -> int:
    """Return the bytes of a string or of all strings of a list; 0 for other values.

    Dictionaries are not unpacked for it.
    """
    if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return 0 if value.values is None else _array_bytes(value.values)
    scalar = value.value if isinstance(value, pa.DictionaryScalar) else value
    return (
        int(scalar.as_buffer().size)
        if scalar is not None and scalar.is_valid and is_string(scalar.type)
        else 0
    )


def _array_bytes(entries: pa.Array) -> int:
    """Return the bytes of all strings in an array of strings or of objects."""
    if pa.types.is_struct(entries.type):
        return sum(_array_bytes(each) for each in entries.flatten())
    if not is_string(entries.type):
        return 0
    if isinstance(entries, pa.DictionaryArray):
        lengths = pc.binary_length(entries.dictionary).take(entries.indices)
    else:
        lengths = pc.binary_length(entries)
    return int(pc.sum(lengths).as_py() or 0)


def _features(
    batch: pa.RecordBatch,
    layout: ColumnLayout,
    options: ReadOptions,
    collector: ErrorCollector,
    row_errors: RowErrors,
) -> tuple[CSR, Mask]:
    """Return the rows of a slice, and which are valid."""
    values = batch.column(layout.values)
    if layout.indices is not None:
        indices = batch.column(layout.indices)
        return sparse_rows(indices, values, options.feature_limit, row_errors)
    width = options.n_features or collector.n_features
    if not width:
        lengths = flatten_lists(values)[0]
        # the width of the first row that is not empty
        width = max(1, int(lengths[np.argmax(lengths > 0)]))
    if width > options.max_features:
        problem = f"rows have {width} values, more than max_features={options.max_features}"
        raise row_errors.source.error("DIM_LIMIT", problem, line=row_errors.start)
    collector.n_features = max(collector.n_features, width)
    return dense_rows(values, width, row_errors)


def _labels(
    batch: pa.RecordBatch,
    layout: ColumnLayout,
    options: ReadOptions,
    numbers: Mapping[str, int] | None,
    all_known: bool,
    collector: ErrorCollector,
    row_errors: RowErrors,
) -> tuple[Pattern, Mask]:
    """Return the label sets of all rows of a slice, and which are valid.

    Invalid rows have an empty set.
    """
    if not layout.named_labels:
        return _numeric_labels(batch.column(layout.labels[0]), options, collector, row_errors)
    assert numbers is not None
    source, reader = row_errors.source, LabelReader(row_errors.source, collector)
    valid, rows = np.ones(batch.num_rows, np.bool_), []
    for i in range(batch.num_rows):
        row = row_errors.start + i
        try:
            names = reader(row, _fields(source, batch, row, i, layout.labels))
        except DataError as error:
            valid[i], names = False, ()
            row_errors(i, error.code, error.problem, error.value)
        unknown = [name for name in names if name not in numbers]
        if unknown and all_known:
            valid[i] = False
            problem = f"label '{unknown[0][:60]}' is not in the names file"
            row_errors(i, "LABEL_UNKNOWN", problem, unknown[0])
        collector.warnings["labels_unseen_in_train"] += 0 if all_known else len(unknown)
        rows.append(sorted({numbers[name] for name in names if name in numbers}))
    starts, flat = np.cumsum([0, *map(len, rows)]), [k for own in rows for k in own]
    n_labels = max(numbers.values(), default=-1) + 1
    return pattern(starts, np.array(flat, np.int32), n_labels), valid


def _numeric_labels(
    column: pa.Array, options: ReadOptions, collector: ErrorCollector, row_errors: RowErrors
) -> tuple[Pattern, Mask]:
    """Return label sets of whole numbers; repeats are dropped and counted."""
    valid = np.ones(len(column), np.bool_)
    lengths, ids, null = flatten_lists(column)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    drop_nulls(valid, "labels", column, lengths, null, row_errors)
    limit = options.label_limit
    for row, at in first_bad_entries(row_of, (ids < 0) | (ids >= limit)):
        valid[row] = False
        problem = f"label {ids[at]} is not from 0 to {limit - 1}"
        row_errors(row, "LABEL_RANGE", problem, str(ids[at]))
    ones = np.bincount(row_of[(ids == 0) | (ids == 1)], minlength=len(column))
    for row in np.flatnonzero(valid & (lengths >= MIN_INDICATORS) & (ones == lengths)).tolist():
        valid[row] = False
        row_errors(row, "LABEL_INDICATORS", INDICATOR_LIST, None)
    entry_valid = valid[row_of]
    row_of, ids = row_of[entry_valid], ids[entry_valid].astype(np.int64)
    order = np.lexsort((ids, row_of))
    row_of, ids = row_of[order], ids[order]
    first = np.ones(len(ids), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]) | (row_of[1:] != row_of[:-1])
    collector.warnings["duplicate_labels"] += int(np.count_nonzero(~first))
    counts = np.bincount(row_of[first], minlength=len(column))
    starts: Int64 = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return pattern(starts, ids[first].astype(np.int32), int(ids.max(initial=-1)) + 1), valid
