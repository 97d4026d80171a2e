"""Files of lines: one pass copies their rows into a Parquet file, which the workers read.

The readers of data sets read the lines, so the same lines are accepted and the same errors are
reported. Rows are numbered from 0. Blank lines and comments are not rows, except in format text, in
which every line is a row. A row that cannot be read is null next to its error, which the reading of
its chunk counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xcray.arrays import CSR, csr
from xcray.batch.parquet import plan_chunks
from xcray.batch.plan import BatchPlan, changed_error, file_stamp, make_input_file
from xcray.batch.row_schema import DENSE, SPARSE, TEXT, RowSchema, TextColumns, infer_schema
from xcray.batch.spec import BatchPredictSpec
from xcray.data.readers.blocks import Source
from xcray.data.readers.columns import Mask, dense_rows, sparse_rows
from xcray.data.readers.csv_fields import read_fields
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.labels import field_value, has_half_surrogate
from xcray.data.readers.lines import text_lines
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.records import fasttext_fields, json_fields
from xcray.data.readers.svmlight import read_svmlight
from xcray.data.readers.xc import read_xc_file
from xcray.data.text.fields import cell_text
from xcray.errors import DataError
from xcray.storage.atomic import replacing

DELIMITERS: Final = {"csv": ",", "tsv": "\t"}
MATRICES: Final = ("svmlight", "xc")
MAX_INTEGER: Final = (1 << 62) - 1  # larger ones do not fit into a column
MAX_GROUP_ROWS: Final = 4096  # rows written at once
MAX_GROUP_CELLS: Final = 1 << 22  # characters and numbers of these rows

# of the file that is written for rows of features
FEATURES: Final = RowSchema(SPARSE, indices="indices", values="values", error="error")


def plan_lines(
    spec: BatchPredictSpec,
    text_fields: TextColumns | None,
    width: int,
    target: Path,
    tick: Callable[[], None] = lambda: None,
) -> BatchPlan:
    """Write the rows of a file of lines to the Parquet file `target`, and return its chunks.

    width: features of the model. tick: called regularly. text_fields: see `infer_schema`. Raises
    NotFound; DataErrors for invalid rows that are not skipped; DataError for files that are not
    text or have another format, EMPTY_FILE, XC_ROW_COUNT.
    """
    path, format = Path(spec.input), str(spec.format)
    options = ReadOptions(
        zero_based=spec.zero_based, n_features=width, skip_bad=spec.on_error == "skip"
    )
    is_matrix, stamp = format in MATRICES, file_stamp(path)
    source = Source(path, options, text=not is_matrix, format=None if format == "xc" else format)
    # another attempt can write the file at the same time, and its workers read it
    with replacing(target) as partial, _RowWriter(partial, options, tick) as out:
        if is_matrix:
            schema = _write_matrix(source, out)
        else:
            schema = _write_records(spec, text_fields, source, out)
    file = make_input_file(target, out.n_written, 0, source=path)
    if file.stamp != stamp:
        raise changed_error(file.name)
    return BatchPlan((file,), plan_chunks([file], spec), schema)


class _RowWriter(ErrorCollector):
    """Writer of the Parquet file, which also keeps the errors between the rows."""

    def __init__(self, path: Path, options: ReadOptions, tick: Callable[[], None]) -> None:
        super().__init__(options.max_errors, options.skip_bad)
        self._path = path
        self._tick = tick
        self._errors: list[tuple[int, str]] = []  # with the number of pending rows before it
        self.n_written = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> _RowWriter:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def add(self, error: DataError) -> None:
        """Count and keep the error of a row. Blank lines of svmlight are not rows."""
        if error.code != "SVM_BLANK_LINE" or not self.skip_bad:
            super().add(error)
            self._errors.append((self.pending_rows, _to_json(error)))

    def write(self, columns: Mapping[str, pa.Array], valid: Mask) -> None:
        """Write rows, and the errors between them, as one row group.

        valid: which of the pending rows these are.
        """
        self._tick()
        errors = sorted(self._errors, key=itemgetter(0))
        before = np.concatenate([[0], np.cumsum(valid)])  # valid ones among the first pending rows
        row_of = np.insert(np.arange(before[-1]), [before[place] for place, _ in errors], -1)
        self._errors, self.pending_rows = [], 0
        table = pa.table(columns).take(pa.array(row_of, mask=row_of < 0))
        details = np.full(len(row_of), None)
        details[row_of < 0] = [error for _, error in errors]
        table = table.append_column("error", pa.array(details, pa.string()))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, use_dictionary=False)
        self._writer.write_table(table)
        self.n_written += len(row_of)


def _matrix_columns(rows: CSR) -> dict[str, pa.Array]:
    """Return rows of features as columns."""
    offsets = pa.array(rows.indptr)
    return {
        "indices": pa.LargeListArray.from_arrays(offsets, pa.array(rows.indices)),
        "values": pa.LargeListArray.from_arrays(offsets, pa.array(rows.data)),
    }


def _text_column(texts: Sequence[str]) -> pa.Array:
    """Return texts as a column, without lone surrogates: no term has them, no file can."""
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "ignore").decode() for text in texts]
        return pa.array(encoded, pa.large_string())


def _to_json(error: DataError) -> str:
    """Return an error of a row as `parquet.read_parquet` reads it."""
    names = ("code", "problem", "line", "column", "value", "hint")
    return json.dumps({name: getattr(error, name) for name in names})


def _write_matrix(source: Source, out: _RowWriter) -> RowSchema:
    """Write the rows of an svmlight or XC file; their labels are ignored."""
    if source.format is None:
        chunks = read_xc_file(source, out)
    else:
        chunks = read_svmlight(source.path, source.options, out)
    with out.reading():
        for X, _ in chunks:
            out.write(_matrix_columns(X), np.ones(X.n_rows, np.bool_))
    out.write(_matrix_columns(csr([0], [], [], 1)), np.ones(0, np.bool_))  # the last errors
    return FEATURES


def _write_records(
    spec: BatchPredictSpec, text_fields: TextColumns | None, source: Source, out: _RowWriter
) -> RowSchema:
    """Write rows of named values; the names in the first one, or in a header, decide their form."""
    schema = RowSchema(TEXT, text=("text",))
    columns, is_first = schema.columns, True
    rows: list[tuple[int, list[Any]]] = []
    cells = 0
    with out.reading():
        for line, names, fields in _read_fields(spec, source, out):
            if is_first and spec.format in ("jsonl", *DELIMITERS):
                schema = infer_schema(list(names), spec, text_fields, source.name)
                columns = schema.columns
            is_first = False
            try:
                if spec.format == "jsonl" or schema.kind != TEXT:
                    values = [_check_field(source, line, fields, name, schema) for name in columns]
                else:  # fields of other formats are strings
                    values = [fields[name] for name in columns]
            except DataError as error:
                out.add(error)
                continue
            rows.append((line, values))
            out.pending_rows = len(rows)
            cells += sum(map(len, values))
            if len(rows) == MAX_GROUP_ROWS or cells > MAX_GROUP_CELLS:
                _write_group(rows, schema, source, out)
                rows, cells = [], 0
        _write_group(rows, schema, source, out)
        out.errors.sort(key=lambda error: error.line or 0)  # features were checked after the lines
        out.finish(source)
    written = FEATURES
    if schema.kind == TEXT:
        names = tuple(map(str, range(len(schema.text))))
        written = RowSchema(TEXT, text=names, error="error")
    return written if schema.id is None else written._replace(id="id", id_type="string")


def _read_fields(
    spec: BatchPredictSpec, source: Source, out: _RowWriter
) -> Iterator[tuple[int, Iterable[str], Mapping[str, Any]]]:
    """Yield the line number of each row, the names of its fields, and their values."""
    if spec.format in DELIMITERS:
        yield from _table_fields(spec, source, out)
        return
    rows: Iterator[tuple[int, dict[str, Any]]]
    if spec.format == "text":
        rows = ((line.number, {"text": line.text}) for line in text_lines(source, out))
    else:
        rows = json_fields(source, out) if spec.format == "jsonl" else fasttext_fields(source, out)
    yield from ((line, fields, fields) for line, fields in rows)


def _table_fields(
    spec: BatchPredictSpec, source: Source, out: _RowWriter
) -> Iterator[tuple[int, Iterable[str], Mapping[str, Any]]]:
    """Yield the rows of a table; its header can have a name twice that is not read."""
    delimiter = spec.delimiter or DELIMITERS[str(spec.format)]
    names: list[str] | None = None
    for fields in read_fields(source, out, delimiter, quoted=spec.format == "csv"):
        if names is None:
            names = [name.strip() for name in fields.values]
        elif len(fields.values) != len(names):
            problem = f"the row has {len(fields.values)} fields, {len(names)} are expected"
            out.add(source.error("CSV_FIELDS", problem, line=fields.line))
        else:
            yield fields.line, names, dict(zip(names, fields.values, strict=True))


def _write_group(
    rows: list[tuple[int, list[Any]]], schema: RowSchema, source: Source, out: _RowWriter
) -> None:
    """Write rows whose values have the right types; features are checked here."""
    columns = dict(
        zip(schema.columns, zip(*(values for _, values in rows), strict=True), strict=False)
    )

    def column(name: str) -> Sequence[Any]:
        return columns.get(name, ())

    def report(row: int, code: str, problem: str, value: str | None) -> None:
        out.pending_rows = row
        out.add(source.error(code, problem, line=rows[row][0], value=value))

    valid, width = np.ones(len(rows), np.bool_), int(source.options.n_features or 0)
    if schema.kind == TEXT:
        written = {str(i): _text_column(column(name)) for i, name in enumerate(schema.text)}
    else:
        numbers = [list(map(float, row)) for row in column(schema.values)]
        values = pa.array(numbers, pa.list_(pa.float64()))
        if schema.kind == DENSE:
            X, valid = dense_rows(values, width, report)
        else:
            indices = pa.array(column(schema.indices), pa.list_(pa.int64()))
            X, valid = sparse_rows(indices, values, width, report)
        written = _matrix_columns(X)
    if schema.id is not None:
        written["id"] = pa.array(column(schema.id), pa.string()).filter(pa.array(valid))
    out.n_rows += int(np.count_nonzero(valid))
    out.write(written, valid)


def _check_field(
    source: Source, line: int, fields: Mapping[str, Any], name: str, schema: RowSchema
) -> Any:
    """Return the value of a field, which must have the type that the schema requires.

    An id is returned as a string. Raises DataError FIELD_MISSING, FIELD_TYPE, ENCODING.
    """
    value = fields.get(name)
    if type(value) is str and name in schema.text:
        return value
    if name in schema.value_fields:
        value = cell_text(value)
        if value is not None:
            return value
    value = field_value(source, line, fields, name)
    if name == schema.id:
        valid = isinstance(value, str | int) and not isinstance(value, bool)
        expected = "a string or a whole number"
    elif name in schema.text:
        valid, expected = False, "a string"
    else:
        integers = name == schema.indices
        types = {int} if integers else {int, float}
        expected = "a list of whole numbers" if integers else "a list of numbers"
        valid = isinstance(value, list) and types.issuperset(map(type, value))
        valid = valid and all(abs(each) <= MAX_INTEGER for each in value if type(each) is int)
    if not valid:
        problem = f"field '{name}' is not {expected}"
        raise source.error("FIELD_TYPE", problem, line=line, value=str(value)[:100])
    if name != schema.id:
        return value
    if has_half_surrogate(str(value)):
        problem = f"field '{name}' holds half of a surrogate pair"
        raise source.error("ENCODING", problem, line=line, value=str(value)[:100])
    return str(value)
