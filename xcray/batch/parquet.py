"""Parquet files: planned from their footers, read in slices of bounded size.

Memory does not grow with the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64
from xcray.batch.plan import (
    BatchPlan,
    Chunk,
    InputFile,
    changed_error,
    make_input_file,
    rows_per_part,
)
from xcray.batch.row_schema import (
    DENSE,
    SPARSE,
    TEXT,
    RowBatch,
    RowSchema,
    TextColumns,
    infer_schema,
)
from xcray.batch.spec import BatchPredictSpec
from xcray.data.readers.columns import Mask, dense_rows, read_texts, sparse_rows
from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.parquet import is_list, is_string
from xcray.data.readers.parquet_file import check_slice, open_parquet, translate_arrow_errors
from xcray.errors import DataError, NotFound

# Rows and bytes read at once; the bytes are judged by the file's average, or by dense rows.
MAX_SLICE_ROWS: Final = 4096
MAX_SLICE_BYTES: Final = 8 << 20
SUFFIXES: Final = (".parquet", ".pq")
HIDDEN_PREFIXES: Final = (".", "_")  # files that tools add to a directory of parts


def plan_parquet(spec: BatchPredictSpec, text_fields: TextColumns | None) -> BatchPlan:
    """Return the chunks of a Parquet file, or of a directory of files in order of their names.

    Only the footers are read, and checksums computed. Raises NotFound; DataError as `open_parquet`,
    FIELD_MISSING, FIELD_TYPE.
    """
    files: list[InputFile] = []
    schema: RowSchema | None = None
    n_rows = 0
    for path in list_files(Path(spec.input)):
        with translate_arrow_errors(path.name), open_parquet(path) as source:
            file_schema = _check_schema(source.schema_arrow, spec, text_fields, path.name)
            if schema is not None and file_schema != schema:
                problem = (
                    f"column {schema.id!r} is {file_schema.id_type} here "
                    f"and {schema.id_type} in {files[0].name}"
                )
                raise DataError(
                    "FIELD_TYPE",
                    problem,
                    file=path.name,
                    hint="predict the files of each type separately",
                )
            schema = file_schema
            rows = source.metadata.num_rows
        files.append(make_input_file(path, rows, n_rows))
        n_rows += rows
    if schema is None:
        raise NotFound(f"there is no Parquet file in {Path(spec.input).name}")
    return BatchPlan(tuple(files), plan_chunks(files, spec), schema)


def list_files(path: Path) -> list[Path]:
    """Return the files of an input: itself, or those of a directory. Raises NotFound."""
    if path.is_dir():
        return sorted(
            p
            for p in path.iterdir()
            if p.suffix.lower() in SUFFIXES
            and not p.name.startswith(HIDDEN_PREFIXES)
            and p.is_file()
        )
    if not path.is_file():
        raise NotFound(f"there is no file {path.name}")
    return [path]


def read_parquet(
    plan: BatchPlan,
    chunk: Chunk,
    width: int,
    tally: ErrorCollector,
    cursor: ParquetCursor,
) -> Iterator[RowBatch]:
    """Yield the valid rows of a chunk, slice by slice; `tally` collects errors of the others.

    Raises DataErrors if invalid rows are not skipped.
    """
    file, schema = plan.files[chunk.file], plan.schema
    tally.file = file.name
    first = chunk.first_row - file.first_row
    for start, batch in cursor.read(file, schema, first, first + chunk.n_rows, width):
        report_fault = partial(_record_fault, tally, file.name, start)
        if schema.error:
            valid = _report_errors(batch.column(schema.error), tally, file.name)
            rows, _ = _decode_rows(batch.filter(pa.array(valid)), schema, width, report_fault)
        else:
            rows, valid = _decode_rows(batch, schema, width, report_fault)
        if tally.errors and not tally.skip_bad:
            tally.raise_errors()
        tally.n_rows += int(valid.sum())
        yield RowBatch(rows, _row_ids(batch, schema, file.first_row + start, valid))


class ParquetCursor:
    """Position of a worker in a file.

    Reading in the middle of a row group requires decoding the rows before it, and parts are often
    smaller than row groups. Therefore a worker continues where its last chunk ended, and decodes a
    row group once instead of once per part.
    """

    def __init__(self) -> None:
        self._path = ""
        self._name = ""
        self._source: Any = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._remaining: pa.RecordBatch | None = None  # decoded, not yet returned
        self._next_row = 0
        self._group_starts: Int64 = np.zeros(1, np.int64)

    def read(
        self, file: InputFile, schema: RowSchema, first: int, stop: int, width: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows [first, stop) of a file in slices, with their starts. Raises DataError."""
        if (
            file.path != self._path
            or not self._next_row <= first
            or self._group_of(self._next_row) < self._group_of(first)
        ):
            self._open_at(file, schema, first, width)
        while self._next_row < stop:
            batch = self._next_batch()
            begin = self._next_row
            lo, hi = min(max(first - begin, 0), batch.num_rows), min(stop - begin, batch.num_rows)
            self._next_row, self._remaining = (
                begin + hi,
                batch.slice(hi) if hi < batch.num_rows else None,
            )
            if lo < hi:
                yield begin + lo, batch.slice(lo, hi - lo)

    def _open_at(self, file: InputFile, schema: RowSchema, first: int, width: int) -> None:
        """Move to the start of the row group that contains a row."""
        path = Path(file.path)
        with translate_arrow_errors(file.name):
            self._source = open_parquet(path)
            groups = [
                self._source.metadata.row_group(i)
                for i in range(self._source.metadata.num_row_groups)
            ]
            self._group_starts = np.concatenate(
                [[0], np.cumsum([group.num_rows for group in groups])]
            ).astype(np.int64)
            groups_left = range(self._group_of(first), len(groups))
            self._path, self._name, self._remaining, self._next_row = (
                file.path,
                file.name,
                None,
                int(self._group_starts[groups_left.start]),
            )
            average = sum(groups[i].total_byte_size for i in groups_left) / max(
                1, int(self._group_starts[-1]) - self._next_row
            )
            row = max(
                average, 4.0 * width if schema.kind == DENSE else 1.0
            )  # zeros may be packed to nothing
            size = int(min(MAX_SLICE_ROWS, max(1, MAX_SLICE_BYTES // row)))
            self._batches = self._source.iter_batches(
                size, row_groups=list(groups_left), columns=schema.columns, use_threads=False
            )

    def _group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return int(np.searchsorted(self._group_starts, row, side="right")) - 1

    def _next_batch(self) -> pa.RecordBatch:
        """Return the rest of the decoded slice, or the next slice."""
        if self._remaining is not None:
            return self._remaining
        with translate_arrow_errors(self._name):
            batch = next(self._batches, None)
            if batch is not None:
                check_slice(batch)
        if batch is None:
            self._path = ""
            raise changed_error(self._name)
        return batch


def plan_chunks(files: Sequence[InputFile], spec: BatchPredictSpec) -> tuple[Chunk, ...]:
    """Return ranges of rows per file.

    If there are no rows, return one empty range, whose part defines the columns.
    """
    chunks: list[Chunk] = []
    size = rows_per_part(sum(file.n_rows for file in files), spec.top_k, spec.part_rows)
    for place, file in enumerate(files):
        for first in range(0, file.n_rows, size):
            n = min(size, file.n_rows - first)
            chunks.append(Chunk(len(chunks), place, file.first_row + first, n))
    return tuple(chunks or [Chunk(0, 0, 0, 0)])


def _check_schema(
    schema: pa.Schema, spec: BatchPredictSpec, text_fields: TextColumns | None, file: str
) -> RowSchema:
    """Return the row schema of a file after checking the types of its columns."""
    row_schema = infer_schema(schema.names, spec, text_fields, file)
    for name in row_schema.columns:
        kind = schema.field(name).type
        entry = kind.value_type if is_list(kind) else kind
        numbers = pa.types.is_integer(entry) or pa.types.is_floating(entry)
        if name == row_schema.id:
            valid, expected = (
                pa.types.is_integer(kind) or is_string(kind),
                "whole numbers or strings",
            )
        elif name in row_schema.text:
            valid = is_string(kind) or (name in row_schema.value_fields and numbers)
            expected = "strings"
        elif name == row_schema.indices:
            valid = is_list(kind) and pa.types.is_integer(entry)
            expected = "lists of whole numbers"
        else:
            valid, expected = is_list(kind) and numbers, "lists of numbers"
        if not valid:
            raise DataError(
                "FIELD_TYPE",
                f"column {name!r} is {kind}, {expected} are expected",
                file=file,
                hint="cast the column",
            )
    if row_schema.id is None:
        return row_schema
    kind = schema.field(row_schema.id).type
    return row_schema._replace(id_type="string" if is_string(kind) else str(kind))


def _decode_rows(
    batch: pa.RecordBatch, schema: RowSchema, width: int, report_fault: Any
) -> tuple[Any, Any]:
    """Return the texts or feature rows of a slice, and the mask of its valid rows."""
    if schema.kind == TEXT:
        rows, valid = read_texts(
            {name: batch.column(name) for name in schema.text}, schema.value_fields, report_fault
        )
        return rows, valid
    if schema.kind == SPARSE:
        return sparse_rows(
            batch.column(schema.indices), batch.column(schema.values), width, report_fault
        )
    return dense_rows(batch.column(schema.values), width, report_fault)


def _report_errors(errors: pa.Array, tally: ErrorCollector, file: str) -> Mask:
    """Record the rows that `lines.py` could not read, and return which rows are valid."""
    for details in errors.drop_null().to_pylist():
        tally.add(DataError(**json.loads(details), file=file))
    return np.asarray(errors.is_null(), np.bool_)


def _row_ids(batch: pa.RecordBatch, schema: RowSchema, first_row: int, valid: Any) -> pa.Array:
    """Return the ids of the valid rows: the id column, or the row numbers."""
    if schema.id is None:
        return pa.array(first_row + np.flatnonzero(valid), pa.int64())
    return batch.column(schema.id).filter(pa.array(valid)).cast(pa.type_for_alias(schema.id_type))


def _record_fault(
    tally: ErrorCollector,
    file: str,
    start: int,
    row: int,
    code: str,
    problem: str,
    value: str | None,
) -> None:
    """Record an invalid row with its number in the file."""
    tally.add(
        DataError(code, problem, file=file, row=start + row, value=value, hint=default_fix(code))
    )
