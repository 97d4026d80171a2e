"""Arrow columns to rows: texts, sparse rows (two list columns), dense rows (one list column).

The work is arithmetic on whole columns. Invalid rows are reported with an error code; only they are
handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Int64, csr
from xcray.data.text.fields import cell_text, join_fields

# row of the slice, code, problem, value
RowErrorFn: TypeAlias = Callable[[int, str, str, str | None], None]
Mask: TypeAlias = NDArray[np.bool_]


def read_texts(
    columns: Mapping[str, pa.Array], values: Container[str], report: RowErrorFn
) -> tuple[list[str], Mask]:
    """Return the documents of columns, and which rows have one.

    values: the columns that can be null or numbers. Errors: NULL_VALUE, ENCODING.
    """
    valid = np.ones(len(next(iter(columns.values()))), np.bool_)
    texts = [
        [cell_text(value) for value in _strings(column, valid, report)]
        if name in values
        else _strings(column, valid, report)
        for name, column in columns.items()
    ]
    out = []
    for i, parts in enumerate(zip(*texts, strict=True)):
        if valid[i] and None in parts:
            valid[i] = False
            report(i, "NULL_VALUE", "the text is null", None)
        elif valid[i]:
            out.append(join_fields(cast("tuple[str, ...]", parts)))
    return out, valid


def sparse_rows(
    indices: pa.Array, values: pa.Array, width: int, report: RowErrorFn
) -> tuple[CSR, Mask]:
    """Return rows (n x width) of two list columns, and which rows are valid.

    Indices can come in any order within a row. Errors: NULL_VALUE, ROW_LENGTHS, INDEX_RANGE,
    DUP_INDEX, NOT_FINITE.
    """
    valid = np.ones(len(indices), np.bool_)
    (i_len, i_flat, i_null), (v_len, v_flat, v_null) = flatten_lists(indices), flatten_lists(values)
    drop_nulls(valid, "indices", indices, i_len, i_null, report)
    drop_nulls(valid, "values", values, v_len, v_null, report)
    for row in np.flatnonzero(valid & (i_len != v_len)).tolist():
        valid[row] = False
        report(row, "ROW_LENGTHS", f"{i_len[row]} indices and {v_len[row]} values", None)
    row_of = _rows(i_len)
    written = _entries_of_rows(i_flat, row_of, valid)
    numbers = _float32(_entries_of_rows(v_flat, row_of if valid.all() else _rows(v_len), valid))
    row_of = _entries_of_rows(row_of, row_of, valid)
    # compare with the original type: uint64 can be beyond int64
    for row, at in first_bad_entries(row_of, (written < 0) | (written >= width)):
        valid[row] = False
        problem = f"index {written[at]} is not from 0 to {width - 1}"
        report(row, "INDEX_RANGE", problem, str(written[at]))
    columns = written.astype(np.int64)
    columns, numbers, row_of = _sort_entries(columns, numbers, row_of, valid)
    twice = np.zeros(len(columns), np.bool_)
    twice[1:] = (columns[1:] == columns[:-1]) & (row_of[1:] == row_of[:-1])
    for row, at in first_bad_entries(row_of, twice):
        valid[row] = False
        report(row, "DUP_INDEX", f"index {columns[at]} is given twice", str(columns[at]))
    for row, at in first_bad_entries(row_of, ~np.isfinite(numbers)):
        if valid[row]:
            valid[row] = False
            problem = f"the value of feature {columns[at]} is not a finite number of float32"
            report(row, "NOT_FINITE", problem, str(numbers[at]))
    columns, numbers, row_of = (
        _entries_of_rows(each, row_of, valid) for each in (columns, numbers, row_of)
    )
    return _matrix(row_of, columns, numbers, valid, width), valid


def dense_rows(values: pa.Array, width: int, report: RowErrorFn) -> tuple[CSR, Mask]:
    """Return rows (n x width) of a column of full-length lists, and which rows are valid.

    Zeros are not stored. Errors: NULL_VALUE, DIM, NOT_FINITE.
    """
    valid = np.ones(len(values), np.bool_)
    lengths, flat, null = flatten_lists(values)
    drop_nulls(valid, "values", values, lengths, null, report)
    for row in np.flatnonzero(valid & (lengths != width)).tolist():
        valid[row] = False
        report(row, "DIM", f"{lengths[row]} values where there are {width} features", None)
    numbers = flat[valid[_rows(lengths)]].reshape(-1, width)
    return finite_rows(numbers, valid, report), valid


def finite_rows(values: NDArray[Any], valid: Mask, report: RowErrorFn) -> CSR:
    """Return those rows whose values are finite in float32, without zeros: (m, width).

    values: (n, width) numbers of the valid rows of a slice; rows with other values are reported as
    NOT_FINITE, and marked as invalid in `valid`, in place.
    """
    numbers, place = _float32(values), np.flatnonzero(valid)
    for at in np.flatnonzero(~np.isfinite(numbers).all(axis=1)):
        valid[place[at]] = False
        column = int(np.flatnonzero(~np.isfinite(numbers[at]))[0])
        problem = f"the value of feature {column} is not a finite number of float32"
        report(int(place[at]), "NOT_FINITE", problem, str(numbers[at, column]))
    numbers, place = numbers[valid[place]], place[valid[place]]
    rows, columns = np.nonzero(numbers)
    return _matrix(place[rows], columns, numbers[rows, columns], valid, values.shape[1])


def _strings(column: pa.Array, valid: Mask, report: RowErrorFn) -> list[str | None]:
    """Return a column of strings as a Python list; rows that are not UTF-8 are reported."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        out: list[str | None] = []
        for i in range(len(column)):
            try:
                out.append(column[i].as_py())
            except UnicodeDecodeError as error:
                out.append("")
                if valid[i]:
                    valid[i] = False
                    report(i, "ENCODING", f"the text is not UTF-8 at byte {error.start}", None)
        return out


def flatten_lists(column: pa.Array) -> tuple[Int64, NDArray[Any], Mask]:
    """Return list lengths (n,), their entries end to end, and which entries are null.

    The length of a null list and the value of a null entry are 0.
    """
    lengths = (
        pc.fill_null(pc.list_value_length(column), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    flat = pc.list_flatten(column)
    if not flat.null_count:
        return lengths, flat.to_numpy(zero_copy_only=False), np.zeros(len(flat), np.bool_)
    return (
        lengths,
        pc.fill_null(flat, 0).to_numpy(zero_copy_only=False),
        pc.is_null(flat).to_numpy(zero_copy_only=False),
    )


def drop_nulls(
    valid: Mask, name: str, column: pa.Array, lengths: Int64, null: Mask, report: RowErrorFn
) -> None:
    """Mark rows as invalid whose list is null or holds a null."""
    for row in (
        np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False) & valid).tolist()
        if column.null_count
        else ()
    ):
        valid[row] = False
        report(row, "NULL_VALUE", f"the list of {name} is null", None)
    for row, _ in first_bad_entries(_rows(lengths), null) if null.any() else ():
        if valid[row]:
            valid[row] = False
            report(row, "NULL_VALUE", f"the list of {name} holds a null", None)


def _rows(lengths: Int64) -> Int64:
    """Return the row of each entry of lists with these lengths."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _entries_of_rows(entries: NDArray[Any], row_of: Int64, valid: Mask) -> NDArray[Any]:
    """Return the entries of valid rows, without a copy if all rows are valid."""
    return entries if valid.all() else entries[valid[row_of]]


def first_bad_entries(row_of: Int64, bad: Mask) -> list[tuple[int, int]]:
    """Return each row with a bad entry, and the position of its first bad entry."""
    if not bad.any():
        return []
    at = np.flatnonzero(bad)
    rows, first = np.unique(row_of[at], return_index=True)
    return list(zip(rows.tolist(), at[first].tolist(), strict=True))


def _float32(values: NDArray[Any]) -> Float32:
    """Return numbers as float32. Too large ones become infinite and are reported later."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _sort_entries(
    columns: Int64, numbers: Float32, row_of: Int64, valid: Mask
) -> tuple[Int64, Float32, Int64]:
    """Return the entries of valid rows, ascending within each row."""
    columns, numbers, row_of = (
        _entries_of_rows(each, row_of, valid) for each in (columns, numbers, row_of)
    )
    if ((np.diff(columns) < 0) & (np.diff(row_of) == 0)).any():
        order = np.lexsort((columns, row_of))
        columns, numbers = columns[order], numbers[order]
    return columns, numbers, row_of


def _matrix(row_of: Int64, columns: Any, numbers: Float32, valid: Mask, width: int) -> CSR:
    """Return the valid rows as a matrix; entries are ordered by row."""
    lengths = np.bincount(row_of, minlength=len(valid))[valid]
    return csr(np.concatenate([[0], np.cumsum(lengths)]), columns, numbers, width)
