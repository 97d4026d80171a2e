"""Validation of packed lists: searches read them without bounds checks."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.kernels.inner import inner
from xcray.kernels.search.bits import float32, float_of, int64, load16, load32
from xcray.kernels.search.lists import (
    CURVE_BYTES,
    CURVE_OFFSET,
    CURVE_POINTS,
    DENSE_HEADER_BYTES,
    HEADER_BYTES,
    MAX_SHARE,
    NARROW_BYTES,
    RANGE_ENTRY_BYTES,
    RANGE_LABELS,
    SPECIAL_BIT,
    SPLIT_HEADER_BYTES,
    UNIT_BYTES,
    WEIGHT_BYTES,
    Bytes,
    PackedLists,
    chunk_count,
    chunk_shift,
    clipped_bytes,
    curve_bytes,
    label_mask,
    list_bytes,
    max_clipped,
    n_leading,
    n_ranges,
    top_at,
)

INFINITY = 0x7F80  # as a 16-bit float


@numba.njit(nogil=True, cache=True)
def first_invalid(lists: PackedLists) -> int:
    """Return the first feature whose block is invalid, or -1.

    The lengths of starts and blocks must have been checked.
    """
    for f in range(len(lists.starts) - 1):
        begin, end = int64(lists.starts[f]) * UNIT_BYTES, int64(lists.starts[f + 1]) * UNIT_BYTES
        if end < begin or end + 8 > len(lists.blocks):
            return f
        if end > begin and not _is_valid_block(lists, begin, end):
            return f
    return -1


@inner()
def _is_valid_block(lists: PackedLists, begin: int, end: int) -> bool:
    """Return whether one block is valid."""
    blocks, width, n_labels = lists.blocks, lists.width, lists.n_labels
    head = load32(blocks, begin)
    n = int64(head & np.uint32(0x7FFFFFFF))
    if n > n_labels:
        return False
    if not head & SPECIAL_BIT:
        tops = begin + HEADER_BYTES + curve_bytes(n, width)
        body = list_bytes(n, width)
        weights = n * WEIGHT_BYTES if width == NARROW_BYTES else 0
        if (
            n == 0
            or tops + body + weights > end
            or (curve_bytes(n, width) and not _is_valid_curve(blocks, begin + HEADER_BYTES))
            or not _is_valid_list(blocks, tops, n, width, n_labels)
        ):
            return False
        return _are_finite(blocks, tops + body, weights // WEIGHT_BYTES)
    if width == NARROW_BYTES:
        return _is_valid_dense(lists, begin, end, n)
    return _is_valid_split(lists, begin, end, n)


@inner()
def _is_valid_dense(lists: PackedLists, begin: int, end: int, n: int) -> bool:
    """Return whether a dense block is valid; n: size of its list."""
    blocks, room = lists.blocks, clipped_bytes(lists.n_labels)
    position = begin + DENSE_HEADER_BYTES + CURVE_BYTES + lists.n_labels
    full = position + room
    if full > end or n > 2 * max_clipped(lists.n_labels):
        return False
    n_all = int64(load32(blocks, begin + 12))
    weights = full + list_bytes(n_all, NARROW_BYTES)
    if (
        not 0 < n_all <= lists.n_labels
        or weights + n_all * WEIGHT_BYTES > end
        or not _are_finite(blocks, begin + 4, 2)
        or not _is_valid_curve(blocks, begin + DENSE_HEADER_BYTES)
        or not _is_valid_list(blocks, full, n_all, NARROW_BYTES, lists.n_labels)
    ):
        return False
    if n > 0 and not _is_valid_list(blocks, position, n, NARROW_BYTES, lists.n_labels):
        return False
    return _are_finite(blocks, weights, n_all)


@inner()
def _is_valid_split(lists: PackedLists, begin: int, end: int, n: int) -> bool:
    """Return whether a split block is valid."""
    blocks, ranges, leading = lists.blocks, n_ranges(lists.n_labels), n_leading(n)
    position = begin + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * ranges
    if (
        position + list_bytes(leading, lists.width) > end
        or leading == 0
        or not _are_finite(blocks, begin + 4, 1)
        or not _is_valid_curve(blocks, begin + CURVE_OFFSET)
    ):
        return False
    if not _is_valid_list(blocks, position, leading, lists.width, lists.n_labels):
        return False
    total = 0
    for r in range(ranges):
        start = begin + int64(load32(blocks, begin + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * r))
        count = int64(load32(blocks, begin + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * r + 4))
        labels = min(RANGE_LABELS, lists.n_labels - r * RANGE_LABELS)
        if count > labels or start > end or start + list_bytes(count, NARROW_BYTES) > end:
            return False
        if count > 0 and not _is_valid_list(blocks, start, count, NARROW_BYTES, labels):
            return False
        total += count
    return total == n


@inner()
def _is_valid_curve(blocks: Bytes, position: int) -> bool:
    """Return whether the cuts of a curve ascend, finite, and the shares descend."""
    cut, share = int64(-1), int64(MAX_SHARE)
    for j in range(CURVE_POINTS):
        bits = int64(load16(blocks, position + 4 * j))
        above = int64(load16(blocks, position + 4 * j + 2))
        if j > 0 and bits == 0 and above == 0:
            continue
        if bits <= cut or bits >= INFINITY or above > share:
            return False
        cut, share = bits, above
    return True


@inner()
def _is_valid_list(blocks: Bytes, tops: int, n: int, width: int, n_labels: int) -> bool:
    """Return whether tops descend and labels are below n_labels.

    The list must lie within its block.
    """
    chunks = chunk_count(n, chunk_shift(n))
    before = float32(np.inf)
    for chunk in range(chunks + 1):
        top = top_at(blocks, tops, chunk)
        if not top <= before:
            return False
        before = top
    position = tops + 2 * (chunks + 1)
    mask = label_mask(width)
    for _i in range(n):
        if load32(blocks, position) & mask >= n_labels:
            return False
        position += width
    return True


@inner()
def _are_finite(blocks: Bytes, position: int, n: int) -> bool:
    """Return whether n float32 are finite."""
    valid = True
    for i in range(n):
        valid &= np.isfinite(float_of(load32(blocks, position + 4 * i)))
    return valid


@numba.njit(nogil=True, cache=True)
def is_permutation(order: NDArray[np.int32]) -> bool:
    """Return whether these are all labels, each once."""
    seen = np.zeros(len(order), np.uint8)
    for label in order:
        if label < 0 or label >= len(order) or seen[label]:
            return False
        seen[label] = 1
    return True
