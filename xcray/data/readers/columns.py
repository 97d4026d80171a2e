"""Columns to rows: texts, sparse rows as two columns of lists, dense rows as one; every row that is none is told, with its fault.

All of it is arithmetic on whole columns; only rows with faults are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Int64, csr

Fault: TypeAlias = Callable[
    [int, str, str, str | None], None
]  # row of the slice, code, problem, value
Mask: TypeAlias = NDArray[np.bool_]


def texts_of(columns: Sequence[pa.Array], fault: Fault) -> tuple[list[str], Mask]:
    """Texts of columns of strings, joined by blanks, and which rows have one. Faults: NULL_VALUE, ENCODING."""
    kept = np.ones(len(columns[0]), np.bool_)
    found = [_strings(column, kept, fault) for column in columns]
    out = []
    for i, parts in enumerate(zip(*found, strict=True)):
        if kept[i] and None in parts:
            kept[i] = False
            fault(i, "NULL_VALUE", "the text is null", None)
        elif kept[i]:
            out.append(" ".join(parts))
    return out, kept


def sparse_rows(indices: pa.Array, values: pa.Array, width: int, fault: Fault) -> tuple[CSR, Mask]:
    """Rows (n x width) of two columns of lists, and which rows are sound; indices may come in any order within a row.

    Faults: NULL_VALUE, ROW_LENGTHS, INDEX_RANGE, DUP_INDEX, NOT_FINITE.
    """
    kept = np.ones(len(indices), np.bool_)
    (i_len, i_flat, i_null), (v_len, v_flat, v_null) = lists_of(indices), lists_of(values)
    drop_nulls(kept, "indices", indices, i_len, i_null, fault)
    drop_nulls(kept, "values", values, v_len, v_null, fault)
    for row in np.flatnonzero(kept & (i_len != v_len)).tolist():
        kept[row] = False
        fault(
            row, "ROW_LENGTHS", f"{i_len[row]} indices and {v_len[row]} values: give as many", None
        )
    row_of = _rows(i_len)
    written = _of_kept(i_flat, row_of, kept)
    numbers = _float32(_of_kept(v_flat, row_of if kept.all() else _rows(v_len), kept))
    row_of = _of_kept(row_of, row_of, kept)
    for row, at in firsts(
        row_of, (written < 0) | (written >= width)
    ):  # as written: uint64 may be beyond int64
        kept[row] = False
        fault(
            row,
            "INDEX_RANGE",
            f"index {written[at]}: there are features 0 to {width - 1}",
            str(written[at]),
        )
    columns = written.astype(np.int64)
    columns, numbers, row_of = _ordered(columns, numbers, row_of, kept)
    twice = np.zeros(len(columns), np.bool_)
    twice[1:] = (columns[1:] == columns[:-1]) & (row_of[1:] == row_of[:-1])
    for row, at in firsts(row_of, twice):
        kept[row] = False
        fault(row, "DUP_INDEX", f"index {columns[at]} is given twice", str(columns[at]))
    for row, at in firsts(row_of, ~np.isfinite(numbers)):
        if kept[row]:
            kept[row] = False
            fault(
                row,
                "NOT_FINITE",
                f"the value of feature {columns[at]} is not a finite number of float32",
                str(numbers[at]),
            )
    columns, numbers, row_of = (_of_kept(each, row_of, kept) for each in (columns, numbers, row_of))
    return _matrix(row_of, columns, numbers, kept, width), kept


def dense_rows(values: pa.Array, width: int, fault: Fault) -> tuple[CSR, Mask]:
    """Rows (n x width) of a column of lists that hold all features, and which rows are sound; zeros are not stored.

    Faults: NULL_VALUE, DIM, NOT_FINITE.
    """
    kept = np.ones(len(values), np.bool_)
    lengths, flat, null = lists_of(values)
    drop_nulls(kept, "values", values, lengths, null, fault)
    for row in np.flatnonzero(kept & (lengths != width)).tolist():
        kept[row] = False
        fault(
            row,
            "DIM",
            f"{lengths[row]} values where there are {width} features: give all, or indices with them",
            None,
        )
    numbers = _float32(flat[kept[_rows(lengths)]]).reshape(-1, width)
    place = np.flatnonzero(kept)
    for at in np.flatnonzero(~np.isfinite(numbers).all(axis=1)):
        kept[place[at]] = False
        column = int(np.flatnonzero(~np.isfinite(numbers[at]))[0])
        problem = f"the value of feature {column} is not a finite number of float32"
        fault(int(place[at]), "NOT_FINITE", problem, str(numbers[at, column]))
    numbers, place = numbers[kept[place]], place[kept[place]]
    rows, columns = np.nonzero(numbers)
    return _matrix(place[rows], columns, numbers[rows, columns], kept, width), kept


def _strings(column: pa.Array, kept: Mask, fault: Fault) -> list[str | None]:
    """A column of strings as Python's; those that are not UTF-8 are dropped."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        out: list[str | None] = []
        for i in range(len(column)):
            try:
                out.append(column[i].as_py())
            except UnicodeDecodeError as error:
                out.append("")
                if kept[i]:
                    kept[i] = False
                    fault(i, "ENCODING", f"the text is not UTF-8 at byte {error.start}", None)
        return out


def lists_of(column: pa.Array) -> tuple[Int64, NDArray[Any], Mask]:
    """Lengths of lists (n,), 0 for null ones; their entries end to end, 0 for null ones; and which entries are null."""
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
    kept: Mask, name: str, column: pa.Array, lengths: Int64, null: Mask, fault: Fault
) -> None:
    """Drop rows whose list is null, or holds a null."""
    for row in (
        np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False) & kept).tolist()
        if column.null_count
        else ()
    ):
        kept[row] = False
        fault(row, "NULL_VALUE", f"the list of {name} is null", None)
    for row, _ in firsts(_rows(lengths), null) if null.any() else ():
        if kept[row]:
            kept[row] = False
            fault(row, "NULL_VALUE", f"the list of {name} holds a null", None)


def _rows(lengths: Int64) -> Int64:
    """The row of each entry of lists of these lengths."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _of_kept(entries: NDArray[Any], row_of: Int64, kept: Mask) -> NDArray[Any]:
    """The entries whose row is kept; as they are when all are."""
    return entries if kept.all() else entries[kept[row_of]]


def firsts(row_of: Int64, bad: Mask) -> list[tuple[int, int]]:
    """Each row with a bad entry, and where the first of them is."""
    if not bad.any():
        return []
    at = np.flatnonzero(bad)
    rows, first = np.unique(row_of[at], return_index=True)
    return list(zip(rows.tolist(), at[first].tolist(), strict=True))


def _float32(values: NDArray[Any]) -> Float32:
    """Numbers as float32; too large ones become infinite, and are found as such."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _ordered(
    columns: Int64, numbers: Float32, row_of: Int64, kept: Mask
) -> tuple[Int64, Float32, Int64]:
    """Entries of the rows kept, ascending within a row."""
    columns, numbers, row_of = (_of_kept(each, row_of, kept) for each in (columns, numbers, row_of))
    if ((np.diff(columns) < 0) & (np.diff(row_of) == 0)).any():
        order = np.lexsort((columns, row_of))
        columns, numbers = columns[order], numbers[order]
    return columns, numbers, row_of


def _matrix(row_of: Int64, columns: Any, numbers: Float32, kept: Mask, width: int) -> CSR:
    """The rows kept as a matrix; entries come by row."""
    lengths = np.bincount(row_of, minlength=len(kept))[kept]
    return csr(np.concatenate([[0], np.cumsum(lengths)]), columns, numbers, width)
