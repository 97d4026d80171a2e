"""Sparse matrix by row that grows entry by entry.

A solver adds to entries in any order and iterates over rows; the matrix is never dense. The entries
of a row are contiguous in a pool, those larger than a threshold first. Behind a soft threshold
these are the non-zeros, so iterating over them meets no zeros. A row with many entries has its own
hash table to find columns. A full row moves to another part of the pool with twice the capacity.
`clear` compacts the pool and gives every row the capacity that it needed.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float64, Int32, Int64
from xcray.kernels.inner import inner

MAX_LINEAR = 8  # rows of at most this capacity are searched linearly
HASH_MULTIPLIER = 2654435769  # 2^32 / golden ratio: spreads neighbouring columns
LOW_MASK = 0xFFFFFFFF


class DynamicRows(NamedTuple):
    """Row j holds size[j] columns and values; |value| > threshold for the first n_large[j]."""

    begin: Int64  # (rows,)
    size: Int32  # (rows,)
    capacity: Int32  # (rows,)
    n_large: Int32  # (rows,)
    slot_begin: Int64  # (rows,)
    columns: Int32
    values: Float64
    # (column + 1) << 32 | position; 0: free. Twice the capacity, for rows above MAX_LINEAR
    slots: Int64
    used: Int64  # (2,) allocated entries of `columns` and of `slots`


@inner()
def find_slot(slots: Int64, base: Any, mask: Any, column: Any) -> Any:
    """Return the slot with `column`, or the free slot for it.

    The table has mask + 1 slots, starting at `base`.
    """
    h = (column * HASH_MULTIPLIER >> 8) & mask
    while slots[base + h] != 0 and (slots[base + h] >> 32) != column + 1:
        h = (h + 1) & mask
    return base + h


@inner()
def find_column(
    columns: Int32, slots: Int64, base: Any, size: Any, slot_begin: Any, mask: Any, column: Any
) -> int:
    """Return the position of `column` in a row, or -1.

    mask: of the row's table; below 2 * MAX_LINEAR for a row without table.
    """
    if mask < 2 * MAX_LINEAR:
        for p in range(size):
            if columns[base + p] == column:
                return p
        return -1
    slot = slots[find_slot(slots, slot_begin, mask, column)]
    return int(slot & LOW_MASK) if slot != 0 else -1


@inner()
def insert_slot(table: DynamicRows, j: int, p: int) -> None:
    """Record in the table of row j that position p holds its column."""
    column = np.int64(table.columns[table.begin[j] + p])
    slot = find_slot(table.slots, table.slot_begin[j], 2 * np.int64(table.capacity[j]) - 1, column)
    table.slots[slot] = ((column + 1) << 32) | np.int64(p)


@inner()
def grow_row(table: DynamicRows, j: int) -> None:
    """Move row j to entries with twice the capacity; the pools must have them."""
    capacity, old, new = max(4, 2 * table.capacity[j]), table.begin[j], table.used[0]
    for p in range(table.size[j]):
        table.columns[new + p], table.values[new + p] = (
            table.columns[old + p],
            table.values[old + p],
        )
    table.begin[j], table.capacity[j] = new, capacity
    table.used[0] += capacity
    if capacity > MAX_LINEAR:
        table.slot_begin[j] = table.used[1]
        table.used[1] += 2 * np.int64(capacity)
        for p in range(table.size[j]):
            insert_slot(table, j, p)


@numba.njit(nogil=True, cache=True)
def swap(table: DynamicRows, j: int, p: int, q: int) -> None:
    """Exchange two positions of row j."""
    a, b = table.begin[j] + p, table.begin[j] + q
    table.columns[a], table.columns[b] = table.columns[b], table.columns[a]
    table.values[a], table.values[b] = table.values[b], table.values[a]
    if table.capacity[j] > MAX_LINEAR:
        insert_slot(table, j, p)
        insert_slot(table, j, q)


@inner()
def move_across_threshold(table: DynamicRows, j: int, p: int, is_large: bool) -> None:
    """Move position p of row j across the border between large and other entries.

    is_large: whether the entry is above the threshold now.
    """
    if is_large:
        swap(table, j, p, int(table.n_large[j]))
        table.n_large[j] += 1
    else:
        table.n_large[j] -= 1
        swap(table, j, p, int(table.n_large[j]))


@numba.njit(nogil=True, cache=True)
def append(table: DynamicRows, j: int, column: Any, value: float, threshold: float) -> None:
    """Append an entry to row j; the pools must have the capacity."""
    if table.size[j] == table.capacity[j]:
        grow_row(table, j)
    p = int(table.size[j])
    table.columns[table.begin[j] + p], table.values[table.begin[j] + p] = column, value
    table.size[j] += 1
    if table.capacity[j] > MAX_LINEAR:
        insert_slot(table, j, p)
    if abs(value) > threshold:
        move_across_threshold(table, j, p, True)


@numba.njit(nogil=True, cache=True)
def add(
    table: DynamicRows, j: int, columns: Int32, changes: Float64, x: float, threshold: float
) -> None:
    """Add x changes[a] to the entry of columns[a] in row j, for all non-zero changes."""
    row_columns, values, slots = table.columns, table.values, table.slots
    base, slot_begin, mask = (
        table.begin[j],
        table.slot_begin[j],
        2 * np.int64(table.capacity[j]) - 1,
    )
    for a in range(len(columns)):
        if changes[a] == 0.0:
            continue
        column = np.int64(columns[a])
        p = find_column(row_columns, slots, base, table.size[j], slot_begin, mask, column)
        if p < 0:
            append(table, j, column, x * changes[a], threshold)
            base, slot_begin, mask = (
                table.begin[j],
                table.slot_begin[j],
                2 * np.int64(table.capacity[j]) - 1,
            )
            continue
        was_large = abs(values[base + p]) > threshold
        values[base + p] += x * changes[a]
        is_large_now = abs(values[base + p]) > threshold
        if was_large != is_large_now:
            move_across_threshold(table, j, p, is_large_now)


@inner()
def soft_threshold(v: float, threshold: float) -> float:
    """Return v moved towards zero by the threshold, for |v| above it."""
    return v - threshold if v > 0.0 else v + threshold


@numba.njit(nogil=True, cache=True)
def gather(
    table: DynamicRows, j: int, columns: Int32, x: float, threshold: float, out: Float64
) -> None:
    """Add x times the soft-thresholded entry of columns[a] in row j to out[a]."""
    row_columns, values, slots = table.columns, table.values, table.slots
    base, n_large, slot_begin = table.begin[j], table.n_large[j], table.slot_begin[j]
    mask = 2 * np.int64(table.capacity[j]) - 1
    if n_large == 0:
        return
    for a in range(len(columns)):
        p = find_column(row_columns, slots, base, n_large, slot_begin, mask, np.int64(columns[a]))
        if 0 <= p < n_large:
            out[a] += x * soft_threshold(values[base + p], threshold)


@numba.njit(nogil=True, cache=True)
def has_capacity(table: DynamicRows, rows: Int32, more: int) -> bool:
    """Return whether the pools suffice to add `more` columns to every row of `rows`."""
    entries, slots = table.used[0], table.used[1]
    for j in rows:
        capacity = int(table.capacity[j])
        while capacity < table.size[j] + more:  # each enlargement leaves its old entries unused
            capacity = max(4, 2 * capacity)
            entries += capacity
            if capacity > MAX_LINEAR:
                slots += 2 * capacity
    return bool(entries <= len(table.columns) and slots <= len(table.slots))


@numba.njit(nogil=True, cache=True)
def clear(table: DynamicRows) -> None:
    """Empty all rows; each keeps capacity for as many entries as it had."""
    table.slots[: table.used[1]] = 0
    table.used[:] = 0
    for j in range(len(table.begin)):
        capacity = 0
        while capacity < table.size[j]:
            capacity = max(4, 2 * capacity)
        table.begin[j], table.slot_begin[j], table.capacity[j] = (
            table.used[0],
            table.used[1],
            capacity,
        )
        table.used[0] += capacity
        if capacity > MAX_LINEAR:
            table.used[1] += 2 * capacity
        table.size[j], table.n_large[j] = 0, 0
