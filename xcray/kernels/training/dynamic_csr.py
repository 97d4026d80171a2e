"""A sparse matrix by row that grows entry by entry: what a solver adds to in any order, walks by row and never holds dense.

A row's entries lie together in a flat pool, those larger than a threshold first: behind a soft threshold they are the nonzeros,
and a walk over them meets no zero. A row with many entries has a hash table of its own to find a column in. A row that is full
moves to a place with twice the room; `clear` gives every row the room that it needed, in one piece.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float64, Int32, Int64

SMALL = 8  # rows of at most so many entries are searched without a table
SCATTER = 2654435769  # 2^32 / golden ratio: neighbouring columns land far apart
LOW = 0xFFFFFFFF


class Table(NamedTuple):
    """Row j holds size[j] columns and values, the first strong[j] of them larger than the threshold in size."""

    begin: Int64  # (rows,)
    size: Int32  # (rows,)
    room: Int32  # (rows,)
    strong: Int32  # (rows,)
    slot_begin: Int64  # (rows,)
    columns: Int32
    values: Float64
    slots: Int64  # (column + 1) << 32 | place; 0: free. Twice as many as `room`, for rows that are not SMALL
    used: Int64  # (2,) places of `columns` and of `slots` given out


@numba.njit(nogil=True, cache=True)
def slot_of(slots: Int64, base: Any, mask: Any, column: Any) -> Any:
    """The slot that holds `column`, or the free one where it belongs, in the table of mask + 1 slots at `base`."""
    h = (column * SCATTER >> 8) & mask
    while slots[base + h] != 0 and (slots[base + h] >> 32) != column + 1:
        h = (h + 1) & mask
    return base + h


@numba.njit(nogil=True, cache=True)
def place_of(
    columns: Int32, slots: Int64, base: Any, size: Any, slot_begin: Any, mask: Any, column: Any
) -> int:
    """The place of `column` in a row; -1 when it is not there. mask: of its table, below 2 * SMALL for a row without one."""
    if mask < 2 * SMALL:
        for p in range(size):
            if columns[base + p] == column:
                return p
        return -1
    slot = slots[slot_of(slots, slot_begin, mask, column)]
    return int(slot & LOW) if slot != 0 else -1


@numba.njit(nogil=True, cache=True)
def hang(table: Table, j: int, p: int) -> None:
    """Note in the table of row j that its place p holds the column it does."""
    column = np.int64(table.columns[table.begin[j] + p])
    slot = slot_of(table.slots, table.slot_begin[j], 2 * np.int64(table.room[j]) - 1, column)
    table.slots[slot] = ((column + 1) << 32) | np.int64(p)


@numba.njit(nogil=True, cache=True)
def widen(table: Table, j: int) -> None:
    """Move row j to a place with twice the room; the caller has seen that the pools have it."""
    room, old, new = max(4, 2 * table.room[j]), table.begin[j], table.used[0]
    for p in range(table.size[j]):
        table.columns[new + p], table.values[new + p] = (
            table.columns[old + p],
            table.values[old + p],
        )
    table.begin[j], table.room[j] = new, room
    table.used[0] += room
    if room > SMALL:
        table.slot_begin[j] = table.used[1]
        table.used[1] += 2 * np.int64(room)
        for p in range(table.size[j]):
            hang(table, j, p)


@numba.njit(nogil=True, cache=True)
def swap(table: Table, j: int, p: int, q: int) -> None:
    """Exchange two places of row j."""
    a, b = table.begin[j] + p, table.begin[j] + q
    table.columns[a], table.columns[b] = table.columns[b], table.columns[a]
    table.values[a], table.values[b] = table.values[b], table.values[a]
    if table.room[j] > SMALL:
        hang(table, j, p)
        hang(table, j, q)


@numba.njit(nogil=True, cache=True)
def cross(table: Table, j: int, p: int, strong: bool) -> None:
    """Take place p of row j over the border between the strong entries and the others."""
    if strong:
        swap(table, j, p, int(table.strong[j]))
        table.strong[j] += 1
    else:
        table.strong[j] -= 1
        swap(table, j, p, int(table.strong[j]))


@numba.njit(nogil=True, cache=True)
def append(table: Table, j: int, column: Any, value: float, edge: float) -> None:
    """A new entry of row j; the caller has seen that the pools have room."""
    if table.size[j] == table.room[j]:
        widen(table, j)
    p = int(table.size[j])
    table.columns[table.begin[j] + p], table.values[table.begin[j] + p] = column, value
    table.size[j] += 1
    if table.room[j] > SMALL:
        hang(table, j, p)
    if abs(value) > edge:
        cross(table, j, p, True)


@numba.njit(nogil=True, cache=True)
def add(table: Table, j: int, columns: Int32, changes: Float64, x: float, edge: float) -> None:
    """Row j: add x changes[a] to the entry of columns[a], for all that are not zero."""
    held, values, slots = table.columns, table.values, table.slots
    base, slot_begin, mask = table.begin[j], table.slot_begin[j], 2 * np.int64(table.room[j]) - 1
    for a in range(len(columns)):
        if changes[a] == 0.0:
            continue
        column = np.int64(columns[a])
        p = place_of(held, slots, base, table.size[j], slot_begin, mask, column)
        if p < 0:
            append(table, j, column, x * changes[a], edge)
            base, slot_begin, mask = (
                table.begin[j],
                table.slot_begin[j],
                2 * np.int64(table.room[j]) - 1,
            )
            continue
        was = abs(values[base + p]) > edge
        values[base + p] += x * changes[a]
        now = abs(values[base + p]) > edge
        if was != now:
            cross(table, j, p, now)


@numba.njit(nogil=True, cache=True)
def past(v: float, edge: float) -> float:
    """By how much v is past the threshold, with its sign; for entries that are."""
    return v - edge if v > 0.0 else v + edge


@numba.njit(nogil=True, cache=True)
def gather(table: Table, j: int, columns: Int32, x: float, edge: float, out: Float64) -> None:
    """Row j: add to out[a] x times what the entry of columns[a] is past the threshold."""
    held, values, slots = table.columns, table.values, table.slots
    base, strong, slot_begin = table.begin[j], table.strong[j], table.slot_begin[j]
    mask = 2 * np.int64(table.room[j]) - 1
    if strong == 0:
        return
    for a in range(len(columns)):
        p = place_of(held, slots, base, strong, slot_begin, mask, np.int64(columns[a]))
        if 0 <= p < strong:
            out[a] += x * past(values[base + p], edge)


@numba.njit(nogil=True, cache=True)
def has_room(table: Table, rows: Int32, more: int) -> bool:
    """Whether every row of `rows` can take `more` columns without the pools running out."""
    entries, slots = table.used[0], table.used[1]
    for j in rows:
        room = int(table.room[j])
        while room < table.size[j] + more:  # widened step by step, each leaving its place behind
            room = max(4, 2 * room)
            entries += room
            if room > SMALL:
                slots += 2 * room
    return bool(entries <= len(table.columns) and slots <= len(table.slots))


@numba.njit(nogil=True, cache=True)
def clear(table: Table) -> None:
    """Empty all rows; each keeps room for as many entries as it had."""
    table.slots[: table.used[1]] = 0
    table.used[:] = 0
    for j in range(len(table.begin)):
        room = 0
        while room < table.size[j]:
            room = max(4, 2 * room)
        table.begin[j], table.slot_begin[j], table.room[j] = table.used[0], table.used[1], room
        table.used[0] += room
        if room > SMALL:
            table.used[1] += 2 * room
        table.size[j], table.strong[j] = 0, 0


@numba.njit(nogil=True, cache=True)
def count_past(
    table: Table, edge: float, least: float, begin: int, end: int, kept: Int64, dropped: Int64
) -> None:
    """Of the entries past `edge` in rows begin..end - 1, count by column those past it by more than `least`, and the others."""
    for j in range(begin, end):
        lo = table.begin[j]
        for p in range(lo, lo + table.strong[j]):
            if abs(past(table.values[p], edge)) > least:
                kept[table.columns[p]] += 1
            else:
                dropped[table.columns[p]] += 1


@numba.njit(nogil=True, cache=True)
def turn_past(
    table: Table,
    edge: float,
    least: float,
    begin: int,
    end: int,
    ends: Int64,
    rows: Int32,
    values: Float64,
) -> None:
    """Write those that `count_past` keeps, by column, at `ends`, which move on: row numbers, and by how much they are past."""
    for j in range(begin, end):
        lo = table.begin[j]
        for p in range(lo, lo + table.strong[j]):
            v, k = past(table.values[p], edge), table.columns[p]
            if abs(v) > least:
                rows[ends[k]] = j
                values[ends[k]] = v
                ends[k] += 1
