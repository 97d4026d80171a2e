"""Packed lists checked: searches read them without looking where they read, so nothing in them may point outside."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.kernels.search.bits import float32, float_of, int64, load16, load32
from xcray.kernels.search.lists import (
    DENSE_HEAD,
    HEAD,
    NARROW,
    PLACE,
    RANGE,
    SPECIAL,
    SPLIT_HEAD,
    UNIT,
    WEIGHT,
    Bytes,
    Lists,
    chunk_count,
    chunk_shift,
    label_mask,
    list_bytes,
    n_clipped,
    n_leading,
    n_ranges,
    top_at,
)

BUILT_ON = {"search.bits": "b69c88f5", "search.lists": "e4c3b501"}


@numba.njit(nogil=True, cache=True)
def first_bad(lists: Lists) -> int:
    """The first feature whose block is not sound; -1 when all are. Lengths of starts and blocks must fit already."""
    for f in range(len(lists.starts) - 1):
        begin, end = int64(lists.starts[f]) * UNIT, int64(lists.starts[f + 1]) * UNIT
        if end < begin or end + 8 > len(lists.blocks):
            return f
        if end > begin and not _sound(lists, begin, end):
            return f
    return -1


@numba.njit(nogil=True, cache=True)
def _sound(lists: Lists, begin: int, end: int) -> bool:
    """One block, from its header to its end."""
    blocks, width, n_labels = lists.blocks, lists.width, lists.n_labels
    head = load32(blocks, begin)
    n = int64(head & np.uint32(0x7FFFFFFF))
    if n > n_labels:
        return False
    if not head & SPECIAL:
        body = list_bytes(n, width)
        weights = n * WEIGHT if width == NARROW else 0
        if (
            n == 0
            or begin + HEAD + body + weights > end
            or not _sound_list(blocks, begin + HEAD, n, width, n_labels)
        ):
            return False
        return _finite(blocks, begin + HEAD + body, weights // WEIGHT)
    if width == NARROW:
        return _sound_dense(lists, begin, end, n)
    return _sound_split(lists, begin, end, n)


@numba.njit(nogil=True, cache=True)
def _sound_dense(lists: Lists, begin: int, end: int, n: int) -> bool:
    """A dense block; n: of its list."""
    blocks, room = lists.blocks, list_bytes(2 * n_clipped(lists.n_labels), NARROW)
    if begin + DENSE_HEAD + lists.n_labels + room > end or n > 2 * n_clipped(lists.n_labels):
        return False
    n_all = int64(load32(blocks, begin + 12))
    place = begin + DENSE_HEAD + lists.n_labels
    full = place + room
    if (
        n_all > lists.n_labels
        or full + n_all * (NARROW + WEIGHT) > end
        or not _finite(blocks, begin + 4, 2)
    ):
        return False
    if n > 0 and not _sound_list(blocks, place, n, NARROW, lists.n_labels):
        return False
    for i in range(n_all):
        if load16(blocks, full + NARROW * i) >= lists.n_labels:
            return False
    return _finite(blocks, full + NARROW * n_all, n_all)


@numba.njit(nogil=True, cache=True)
def _sound_split(lists: Lists, begin: int, end: int, n: int) -> bool:
    """A block that is split."""
    blocks, ranges, leading = lists.blocks, n_ranges(lists.n_labels), n_leading(n)
    place = begin + SPLIT_HEAD + PLACE * ranges
    if (
        place + list_bytes(leading, lists.width) > end
        or leading == 0
        or not _finite(blocks, begin + 4, 1)
    ):
        return False
    if not _sound_list(blocks, place, leading, lists.width, lists.n_labels):
        return False
    total = 0
    for r in range(ranges):
        goal = begin + int64(load32(blocks, begin + SPLIT_HEAD + PLACE * r))
        count = int64(load32(blocks, begin + SPLIT_HEAD + PLACE * r + 4))
        labels = min(RANGE, lists.n_labels - r * RANGE)
        if count > labels or goal > end or goal + list_bytes(count, NARROW) > end:
            return False
        if count > 0 and not _sound_list(blocks, goal, count, NARROW, labels):
            return False
        total += count
    return total == n


@numba.njit(nogil=True, cache=True)
def _sound_list(blocks: Bytes, tops: int, n: int, width: int, n_labels: int) -> bool:
    """Tops are numbers that fall, labels are below n_labels. The list lies within its block."""
    chunks = chunk_count(n, chunk_shift(n))
    before = float32(np.inf)
    for chunk in range(chunks + 1):
        top = top_at(blocks, tops, chunk)
        if not top <= before:
            return False
        before = top
    place = tops + 2 * (chunks + 1)
    mask = label_mask(width)
    for _i in range(n):
        if load32(blocks, place) & mask >= n_labels:
            return False
        place += width
    return True


@numba.njit(nogil=True, cache=True)
def _finite(blocks: Bytes, place: int, n: int) -> bool:
    """Whether n float32 are finite."""
    sound = True
    for i in range(n):
        sound &= np.isfinite(float_of(load32(blocks, place + 4 * i)))
    return sound


@numba.njit(nogil=True, cache=True)
def is_order(order: NDArray[np.int32]) -> bool:
    """Whether these are all labels, each once."""
    seen = np.zeros(len(order), np.uint8)
    for label in order:
        if label < 0 or label >= len(order) or seen[label]:
            return False
        seen[label] = 1
    return True
