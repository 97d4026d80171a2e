"""Training rows in Parquet: a text or a row of features in one or two columns, its labels in another, read a slice at a time.

    text    one or more columns of strings (`text_fields`, default `text`)
    sparse  `indices` and `values`: lists as long as each other, indices from 0 in any order
    dense   `values` alone: lists of all features, zeros not stored

Labels (`label_field`, default `labels`) are a list of strings, a list of whole numbers, or one string with separators. Where
features are given and labels are whole numbers, these are ids as in svmlight; in all other cases they are names. Other columns
are not read. Rows are counted from 0. A slice is at most 4,096 rows or about 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import CSR, Int64, Pattern, csr, pattern
from xcray.data.documents import label_order
from xcray.data.readers.blocks import Source
from xcray.data.readers.columns import Mask, dense_rows, drop_nulls, firsts, lists_of, sparse_rows
from xcray.data.readers.error_codes import mend
from xcray.data.readers.error_log import DataErrors, Tally
from xcray.data.readers.options import MAX_INDEX, ReadOptions
from xcray.data.readers.parquet_file import check_grown, check_slice, footer_of, open_parquet, told
from xcray.data.readers.records import Record, RecordMaker
from xcray.data.readers.svmlight import Chunk
from xcray.errors import DataError
from xcray.kernels.sparse import take_pattern_rows, take_rows

SLICE: Final = 4096  # rows read at once, at most,
SLICE_BYTES: Final = 8 << 20  # and bytes, by the file's average
LISTED: Final = 20  # names of columns that an error lists


class Form(NamedTuple):
    """How rows lie in columns: names of the columns read, and whether labels are names."""

    text: tuple[str, ...]
    indices: str | None
    values: str | None
    labels: str
    named: bool
    id: str | None

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once."""
        wanted = (*self.text, self.indices, self.values, self.labels, self.id)
        return list(dict.fromkeys(name for name in wanted if name is not None))

    def told(self) -> str:
        """The form in words."""
        rows = (
            f"text in {', '.join(self.text)}"
            if self.text
            else "indices and values"
            if self.indices
            else "values"
        )
        return f"{rows}, labels as {'names' if self.named else 'numbers'}"


def parquet_form(path: Path | str, options: ReadOptions) -> Form:
    """How a file's rows lie in its columns. Raises NotFound; DataError: as `open_parquet`, PARQUET_COLUMN, PARQUET_TYPE."""
    with open_parquet(path, options) as file, told(Path(path).name):
        return _form(file.schema_arrow, options, Path(path).name)


def parquet_records(path: Path | str, options: ReadOptions, tally: Tally) -> Iterator[Record]:
    """Documents, one by one; `tally` is filled on the way. A string that the file holds once is held once.

    Raises DataErrors for bad rows (unless they are skipped), DataError as `parquet_form`, DECOMPRESSED_LIMIT, EMPTY_FILE.
    """
    source = Source(path, options, text=True, by_row=True)
    maker, form = RecordMaker(source, tally), parquet_form(path, options)
    size, grown = source.path.stat().st_size, 0
    tally.file = source.name
    with tally.collected():
        for start, batch in _slices(source, form):
            columns = {name: batch.column(name) for name in form.columns}
            for i in range(batch.num_rows):
                try:
                    found = {
                        name: _scalar(source, column, start + i, i, name)
                        for name, column in columns.items()
                    }
                    record = maker(start + i, found)
                except DataError as error:
                    tally.bad(error)
                    continue
                grown += len(record.text)
                check_grown(grown, source.name, options, size)
                tally.n_rows += 1
                tally.n_positives += len(record.labels)
                tally.warnings["rows_without_labels"] += not record.labels
                yield record
        _close(source, tally)


def read_parquet(
    path: Path | str,
    options: ReadOptions,
    tally: Tally,
    numbers: Mapping[str, int] | None = None,
    *,
    all_known: bool = True,
) -> Iterator[Chunk]:
    """Rows of features, slice by slice: X (n x d) float32 and Y (n x k), as wide as the ids seen so far.

    numbers: ids of labels that are names; all_known: whether another name is an error (LABEL_UNKNOWN), or left out and counted.
    `tally` is filled on the way. Raises as `parquet_records`.
    """
    source = Source(path, options, by_row=True)
    form = parquet_form(path, options)
    tally.n_labels = len(numbers or ())
    tally.file = source.name
    with tally.collected():
        for start, batch in _slices(source, form):
            faults = _Faults(source, tally, start)
            X, kept_x = _features(batch, form, options, tally, faults)
            Y, kept_y = _labels(
                batch.column(form.labels), form, options, numbers, all_known, tally, faults
            )
            faults.tell()
            kept = kept_x & kept_y
            if kept.any():
                yield _counted(
                    tally,
                    take_rows(X, np.flatnonzero(kept[kept_x])),
                    take_pattern_rows(Y, np.flatnonzero(kept)),
                )
        _close(source, tally)


def label_names(path: Path | str, options: ReadOptions) -> list[str]:
    """All names in the column of labels, in the order of documents' labels; rows that can't be read are passed over.

    Raises DataError as `parquet_form`.
    """
    source, form = Source(path, options, by_row=True), parquet_form(path, options)
    maker, names = RecordMaker(source, Tally()), dict[str, None]()
    for _, batch in _slices(source, form._replace(text=(), indices=None, values=None, id=None)):
        column = batch.column(form.labels)
        for i in range(batch.num_rows):
            try:
                names.update(
                    dict.fromkeys(maker.labels(i, _scalar(source, column, i, i, form.labels)))
                )
            except DataError:  # the pass over the rows tells it
                continue
    return sorted(names, key=label_order)


class _Faults:
    """The first fault of each row of a slice, for the tally to hear of in the order of the rows."""

    def __init__(self, source: Source, tally: Tally, start: int) -> None:
        self.source = source
        self.tally = tally
        self.start = start
        self.found: dict[int, DataError] = {}

    def __call__(self, row: int, code: str, problem: str, value: str | None) -> None:
        """Note a bad row, by its number in the slice."""
        if row in self.found:
            return
        options, hint = self.source.options, mend(code)
        if (
            code == "INDEX_RANGE"
            and options.n_features is None
            and value is not None
            and 0 <= int(value) <= MAX_INDEX
        ):
            code, hint = "DIM_LIMIT", "if that is meant, raise max_features"
        if code == "LABEL_RANGE":
            limited = (
                options.n_labels is None and value is not None and 0 <= int(value) <= MAX_INDEX
            )
            code, hint = (
                ("DIM_LIMIT", "if that is meant, raise max_labels") if limited else (code, hint)
            )
        self.found[row] = self.source.error(
            code, problem, line=self.start + row, value=value, hint=hint
        )

    def tell(self) -> None:
        """Tell the tally. Raises DataErrors as it does."""
        for row in sorted(self.found):
            self.tally.bad(self.found[row])


def _slices(source: Source, form: Form) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The columns of a form in slices, and the row each begins at."""
    with open_parquet(
        source.path, None, [*form.text, *([form.labels] if form.named else [])]
    ) as file:
        footer, start = footer_of(source.path), 0
        check_grown(
            footer.grown(form.columns), source.name, source.options, source.path.stat().st_size
        )
        rows = int(min(SLICE, max(1, SLICE_BYTES // footer.largest(form.columns))))
        with told(source.name):
            batches = file.iter_batches(rows, columns=form.columns, use_threads=False)
        while True:
            with told(source.name):
                batch = next(batches, None)
                if batch is not None:
                    check_slice(batch)
            if batch is None:
                return
            yield start, batch
            start += batch.num_rows


def _form(schema: pa.Schema, options: ReadOptions, file: str) -> Form:
    """The form that the columns of a schema have, their types checked."""
    there = schema.names
    twice = next((name for i, name in enumerate(there) if name in there[:i]), None)
    if twice is not None:
        raise DataError(
            "PARQUET_COLUMN",
            f"two columns are called '{twice}'",
            file=file,
            value=twice,
            hint="rename one of them",
        )
    text = set(options.text_fields) <= set(there)
    if not text and "values" not in there:
        raise _lacking(options.text_fields[0], there, file)
    for name in (options.label_field, *([options.id_field] if options.id_field else [])):
        if name not in there:
            raise _lacking(name, there, file)
    indices = "indices" if not text and "indices" in there else None
    fields = tuple(options.text_fields) if text else ()
    form = Form(
        fields,
        indices,
        None if text else "values",
        options.label_field,
        True,
        options.id_field if text else None,
    )
    for name in form.columns:
        _check_kind(name, schema.field(name).type, form, file)
    labels = schema.field(form.labels).type
    return form._replace(named=text or is_string(labels) or is_string(labels.value_type))


def _lacking(name: str, there: list[str], file: str) -> DataError:
    """The error for a column that is not there."""
    near = next((other for other in there if other.lower() == name.lower()), None)
    hint = (
        f"is it '{near}'? rename it, or"
        if near
        else "give text, or indices and values, or values; and labels;"
    )
    problem = f"there is no column '{name}'; there are: {', '.join(there[:LISTED]) or 'none'}"
    return DataError(
        "PARQUET_COLUMN",
        problem,
        file=file,
        value=name,
        hint=f"{hint} name columns by text_fields, label_field",
    )


def _check_kind(name: str, kind: pa.DataType, form: Form, file: str) -> None:
    """Raise PARQUET_TYPE when a column is not of a type that is read."""
    entry = kind.value_type if is_list(kind) else None
    whole = entry is not None and pa.types.is_integer(entry)
    if name in form.text:
        sound, wanted = is_string(kind), "strings"
    elif name == form.labels:
        sound, wanted = (
            whole or is_string(kind) or (entry is not None and is_string(entry)),
            "lists of strings or of whole numbers",
        )
    elif name == form.id:
        sound, wanted = is_string(kind) or pa.types.is_integer(kind), "strings or whole numbers"
    elif name == form.indices:
        sound, wanted = whole, "lists of whole numbers"
    else:
        sound = whole or (
            entry is not None and (pa.types.is_float32(entry) or pa.types.is_float64(entry))
        )
        wanted = "lists of numbers (float32, float64 or whole)"
    if not sound:
        shown = str(kind)[:60]
        raise DataError(
            "PARQUET_TYPE",
            f"column '{name}' is {shown}, {wanted} are expected",
            file=file,
            value=shown,
            hint="cast it",
        )


def is_string(kind: pa.DataType) -> bool:
    """Whether values are strings, however they are stored."""
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
    """One value as Python's. Raises DataError NULL_VALUE, ENCODING, FIELD_TOO_LONG."""
    try:
        limit = source.options.max_field_bytes
        if _n_bytes(column[at]) > limit:
            problem = f"column '{name}' is longer than {limit} bytes"
            raise source.error(
                "FIELD_TOO_LONG", problem, line=row, hint="raise max_field_bytes, if that is meant"
            )
        value = column[at].as_py()
    except UnicodeDecodeError as error:
        problem = f"column '{name}' is not UTF-8 at byte {error.start}"
        raise source.error("ENCODING", problem, line=row) from None
    if value is None or (isinstance(value, list) and None in value):
        problem = f"column '{name}' {'is' if value is None else 'holds a'} null"
        raise source.error("NULL_VALUE", problem, line=row)
    return value


def _n_bytes(value: pa.Scalar) -> int:
    """Bytes of a string, or of all strings of a list; 0 for what is neither. Dictionaries are not unpacked for it."""
    if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        entries = value.values
        if entries is None or not is_string(entries.type):
            return 0
        if isinstance(entries, pa.DictionaryArray):
            lengths = pc.binary_length(entries.dictionary).take(entries.indices)
        else:
            lengths = pc.binary_length(entries)
        return int(pc.sum(lengths).as_py() or 0)
    held = value.value if isinstance(value, pa.DictionaryScalar) else value
    return (
        int(held.as_buffer().size)
        if held is not None and held.is_valid and is_string(held.type)
        else 0
    )


def _features(
    batch: pa.RecordBatch, form: Form, options: ReadOptions, tally: Tally, fault: _Faults
) -> tuple[CSR, Mask]:
    """The rows of a slice, and which are sound."""
    values = batch.column(form.values)
    if form.indices is not None:
        return sparse_rows(
            batch.column(form.indices), values, options.n_features or options.max_features, fault
        )
    width = options.n_features or tally.n_features
    if not width:
        lengths = lists_of(values)[0]
        width = max(1, int(lengths[np.argmax(lengths > 0)]))  # that of the first row which has any
    if width > options.max_features:
        problem = f"rows have {width} values, more than the limit of {options.max_features}"
        raise fault.source.error(
            "DIM_LIMIT", problem, line=fault.start, hint="if that is meant, raise max_features"
        )
    tally.n_features = max(tally.n_features, width)
    return dense_rows(values, width, fault)


def _labels(
    column: pa.Array,
    form: Form,
    options: ReadOptions,
    numbers: Mapping[str, int] | None,
    all_known: bool,
    tally: Tally,
    fault: _Faults,
) -> tuple[Pattern, Mask]:
    """Label sets of all rows of a slice, empty where they can't be read, and which can."""
    if not form.named:
        return _label_ids(column, options, tally, fault)
    assert numbers is not None
    maker = RecordMaker(fault.source, tally)
    kept, rows = np.ones(len(column), np.bool_), []
    for i in range(len(column)):
        try:
            found = maker.labels(
                fault.start + i, _scalar(fault.source, column, fault.start + i, i, form.labels)
            )
        except DataError as error:
            kept[i], found = False, ()
            fault(i, error.code, error.problem, error.value)
        unknown = [name for name in found if name not in numbers]
        if unknown and all_known:
            kept[i] = False
            fault(
                i,
                "LABEL_UNKNOWN",
                f"label '{unknown[0][:60]}' is not in the file of names",
                unknown[0],
            )
        tally.warnings["labels_unseen_in_train"] += 0 if all_known else len(unknown)
        rows.append(sorted(numbers[name] for name in found if name in numbers))
    starts = np.cumsum([0, *map(len, rows)])
    return pattern(starts, np.array([k for row in rows for k in row], np.int32), len(numbers)), kept


def _label_ids(
    column: pa.Array, options: ReadOptions, tally: Tally, fault: _Faults
) -> tuple[Pattern, Mask]:
    """Label sets of whole numbers; a repeated one is kept once and counted."""
    kept = np.ones(len(column), np.bool_)
    lengths, ids, null = lists_of(column)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    drop_nulls(kept, "labels", column, lengths, null, fault)
    most = options.n_labels or options.max_labels
    for row, at in firsts(row_of, (ids < 0) | (ids >= most)):
        kept[row] = False
        fault(row, "LABEL_RANGE", f"label {ids[at]} is not from 0 to {most - 1}", str(ids[at]))
    sound = kept[row_of]
    row_of, ids = row_of[sound], ids[sound].astype(np.int64)
    order = np.lexsort((ids, row_of))
    row_of, ids = row_of[order], ids[order]
    first = np.ones(len(ids), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]) | (row_of[1:] != row_of[:-1])
    tally.warnings["duplicate_labels"] += int(np.count_nonzero(~first))
    counts = np.bincount(row_of[first], minlength=len(column))
    starts: Int64 = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return pattern(starts, ids[first].astype(np.int32), int(ids.max(initial=-1)) + 1), kept


def _counted(tally: Tally, X: CSR, Y: Pattern) -> Chunk:
    """The sound rows of a slice, as wide as the ids seen so far; the tally is brought up to date."""
    tally.n_rows += X.n_rows
    tally.n_entries += X.nnz
    tally.n_positives += Y.nnz
    tally.n_features = max(tally.n_features, int(X.indices.max(initial=-1)) + 1)
    tally.n_labels = max(tally.n_labels, int(Y.indices.max(initial=-1)) + 1)
    tally.warnings["rows_without_features"] += int(np.count_nonzero(np.diff(X.indptr) == 0))
    tally.warnings["rows_without_labels"] += int(np.count_nonzero(np.diff(Y.indptr) == 0))
    return csr(X.indptr, X.indices, X.data, tally.n_features), pattern(
        Y.indptr, Y.indices, tally.n_labels
    )


def _close(source: Source, tally: Tally) -> None:
    """The end of the file: errors that are not to be skipped, and at least one row."""
    tally.close()
    if not tally.n_rows:
        raise (
            DataErrors(tally.errors)
            if tally.errors
            else source.error("EMPTY_FILE", "no rows in it")
        )
