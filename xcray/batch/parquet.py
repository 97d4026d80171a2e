"""Parquet files: planned from their footers, read a range of rows at a time in slices, so that memory does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64
from xcray.batch.plan import Chunk, InputFile, Plan, changed, input_file, rows_of_part
from xcray.batch.row_schema import DENSE, SPARSE, TEXT, Form, Rows, form_of
from xcray.batch.spec import BulkSpec
from xcray.data.readers.columns import dense_rows, sparse_rows, texts_of
from xcray.data.readers.error_codes import mend
from xcray.data.readers.error_log import Tally
from xcray.data.readers.parquet_file import check_slice, open_parquet, told
from xcray.errors import DataError, NotFound

SLICE: Final = 4096  # rows read at once, at most,
SLICE_BYTES: Final = 8 << 20  # and bytes, by the file's average, or of dense rows
SUFFIXES: Final = (".parquet", ".pq")
HIDDEN: Final = (".", "_")  # files that tools leave beside their parts


def plan_parquet(spec: BulkSpec, reads_text: bool) -> Plan:
    """Chunks of a Parquet file, or of a directory of them in order of their names; nothing but footers is read, and checksums made.

    Raises NotFound; DataError: as `open_parquet`, FIELD_MISSING, FIELD_TYPE.
    """
    files: list[InputFile] = []
    form: Form | None = None
    n_rows = 0
    for path in files_of(Path(spec.input)):
        with told(path.name), open_parquet(path) as source:
            found = _form(source.schema_arrow, spec, reads_text, path.name)
            if form is not None and found != form:
                problem = f"column {form.id!r} is {found.id_type} here and {form.id_type} in {files[0].name}"
                raise DataError(
                    "FIELD_TYPE", problem, file=path.name, hint="give the files of one type each"
                )
            form = found
            rows = source.metadata.num_rows
        files.append(input_file(path, rows, n_rows))
        n_rows += rows
    if form is None:
        raise NotFound(f"there is no Parquet file in {Path(spec.input).name}")
    return Plan(
        tuple(files), tuple(_chunks(files, rows_of_part(n_rows, spec.k, spec.part_rows))), form
    )


def files_of(path: Path) -> list[Path]:
    """The files of an input: itself, or those of a directory. Raises NotFound."""
    if path.is_dir():
        return sorted(
            p
            for p in path.iterdir()
            if p.suffix.lower() in SUFFIXES and not p.name.startswith(HIDDEN) and p.is_file()
        )
    if not path.is_file():
        raise NotFound(f"there is no file {path.name}")
    return [path]


def read_parquet(
    plan: Plan, chunk: Chunk, spec: BulkSpec, width: int, tally: Tally, cursor: Cursor
) -> Iterator[Rows]:
    """The sound rows of a chunk, slice by slice; `tally` hears of the others. Raises DataErrors when they may not be skipped."""
    file, form = plan.files[chunk.file], plan.form
    tally.file = file.name
    first = chunk.first_row - file.first_row
    for start, batch in cursor.read(file, form, first, first + chunk.n_rows, width):
        fault = partial(_fault, tally, file.name, start)
        rows, kept = _rows(batch, form, width, fault)
        if tally.errors and not tally.skip:
            tally.close()
        tally.n_rows += int(kept.sum())
        yield Rows(rows, _ids(batch, form, file.first_row + start, kept))


class Cursor:
    """Where one worker is in a file.

    Nobody can begin in the middle of a row group but by decoding what is before, and parts are often smaller than row groups. So a
    worker goes on from where its last chunk ended, and decodes a row group once, not once a part.
    """

    def __init__(self) -> None:
        self._path = ""
        self._name = ""
        self._source: Any = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None  # decoded, and not yet asked for
        self._at = 0  # the row that comes next
        self._starts: Int64 = np.zeros(1, np.int64)  # of the row groups

    def read(
        self, file: InputFile, form: Form, first: int, stop: int, width: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows [first, stop) of a file in slices, and where each begins. Raises DataError as `told`."""
        if (
            file.path != self._path
            or not self._at <= first
            or self._group(self._at) < self._group(first)
        ):
            self._open(file, form, first, width)
        while self._at < stop:
            batch = self._next()
            begin = self._at
            lo, hi = min(max(first - begin, 0), batch.num_rows), min(stop - begin, batch.num_rows)
            self._at, self._rest = begin + hi, batch.slice(hi) if hi < batch.num_rows else None
            if lo < hi:
                yield begin + lo, batch.slice(lo, hi - lo)

    def _open(self, file: InputFile, form: Form, first: int, width: int) -> None:
        """Go to the beginning of the row group of a row."""
        path = Path(file.path)
        with told(file.name):
            self._source = open_parquet(path)
            groups = [
                self._source.metadata.row_group(i)
                for i in range(self._source.metadata.num_row_groups)
            ]
            self._starts = np.concatenate(
                [[0], np.cumsum([group.num_rows for group in groups])]
            ).astype(np.int64)
            wanted = range(self._group(first), len(groups))
            self._path, self._name, self._rest, self._at = (
                file.path,
                file.name,
                None,
                int(self._starts[wanted.start]),
            )
            average = sum(groups[i].total_byte_size for i in wanted) / max(
                1, int(self._starts[-1]) - self._at
            )
            row = max(
                average, 4.0 * width if form.kind == DENSE else 1.0
            )  # zeros may be packed to nothing
            size = int(min(SLICE, max(1, SLICE_BYTES // row)))
            self._batches = self._source.iter_batches(
                size, row_groups=list(wanted), columns=form.columns, use_threads=False
            )

    def _group(self, row: int) -> int:
        """The row group of a row."""
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _next(self) -> pa.RecordBatch:
        """What is decoded already, else the next slice."""
        if self._rest is not None:
            return self._rest
        with told(self._name):
            batch = next(self._batches, None)
            if batch is not None:
                check_slice(batch)
        if batch is None:
            self._path = ""
            raise changed(self._name)
        return batch


def _chunks(files: list[InputFile], size: int) -> Iterator[Chunk]:
    """Ranges of rows of each file; one empty range when there is no row at all, so that there is a file to tell the columns."""
    number = 0
    for place, file in enumerate(files):
        for first in range(0, file.n_rows, size):
            n = min(size, file.n_rows - first)
            yield Chunk(number, place, file.first_row + first, n, 0, 0, 0, first + n == file.n_rows)
            number += 1
    if not number:
        yield Chunk(0, 0, 0, 0, 0, 0, 0, True)


def _form(schema: pa.Schema, spec: BulkSpec, reads_text: bool, file: str) -> Form:
    """The form of a file's rows, its columns' types checked."""
    form = form_of(schema.names, spec, reads_text, file)
    for name in form.columns:
        kind = schema.field(name).type
        if name == form.id:
            sound, wanted = (
                pa.types.is_integer(kind) or _is_string(kind),
                "whole numbers or strings",
            )
        elif name in form.text:
            sound, wanted = _is_string(kind), "strings"
        else:
            numbers = _is_list(kind) and (
                pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
            )
            whole = name != form.indices or (
                _is_list(kind) and pa.types.is_integer(kind.value_type)
            )
            sound, wanted = (
                numbers and whole,
                f"lists of {'whole ' if name == form.indices else ''}numbers",
            )
        if not sound:
            raise DataError(
                "FIELD_TYPE",
                f"column {name!r} is {kind}, {wanted} are expected",
                file=file,
                hint="cast the column",
            )
    if form.id is None:
        return form
    kind = schema.field(form.id).type
    return form._replace(id_type="string" if _is_string(kind) else str(kind))


def _is_string(kind: pa.DataType) -> bool:
    """Whether values are strings, however they are stored."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _rows(batch: pa.RecordBatch, form: Form, width: int, fault: Any) -> tuple[Any, Any]:
    """Texts or feature rows of a slice, and which of its rows they are."""
    if form.kind == TEXT:
        rows, kept = texts_of([batch.column(name) for name in form.text], fault)
        return rows, kept
    if form.kind == SPARSE:
        return sparse_rows(batch.column(form.indices), batch.column(form.values), width, fault)
    return dense_rows(batch.column(form.values), width, fault)


def _ids(batch: pa.RecordBatch, form: Form, first_row: int, kept: Any) -> pa.Array:
    """What the answers of the rows kept are called: the column of ids, else the row's number."""
    if form.id is None:
        return pa.array(first_row + np.flatnonzero(kept), pa.int64())
    return batch.column(form.id).filter(pa.array(kept)).cast(pa.type_for_alias(form.id_type))


def _fault(
    tally: Tally, file: str, start: int, row: int, code: str, problem: str, value: str | None
) -> None:
    """Note a bad row, by its number in the file."""
    tally.bad(DataError(code, problem, file=file, row=start + row, value=value, hint=mend(code)))
