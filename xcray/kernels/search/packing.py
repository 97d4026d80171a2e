"""Packing of weights by feature into lists (`lists`): counting, sorting, writing."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import bits_of, float32, float64, float_of, int64
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
    chunk_count,
    chunk_shift,
    chunk_start,
    clipped_bytes,
    curve_bytes,
    is_split,
    list_bytes,
    max_clipped,
    n_leading,
    n_ranges,
    next_below,
    round_down,
    round_up,
)

CURVE_SAMPLES = 32  # shares of the positive weights, squared, of which the curve is the hull
MAX_INSERTION_SORT = 48  # longer lists are sorted by radix


@numba.njit(nogil=True, cache=True)
def count_kept(indices: Int32, data: Float32, least: float, n_cols: int) -> tuple[Int64, Int64]:
    """Count the entries of each column, and the kept ones: positive, or below -least.

    Both are (n_cols,) int64.
    """
    counts, kept = np.zeros(n_cols, np.int64), np.zeros(n_cols, np.int64)
    for p in range(len(indices)):
        counts[indices[p]] += 1
        kept[indices[p]] += (data[p] > 0) | (data[p] < -least)
    return counts, kept


@numba.njit(nogil=True, cache=True)
def exponent_histograms(data: Float32) -> tuple[Int64, Int64]:
    """Count non-negative and negative weights by size, in sixteenths of a power of two.

    Both are (4096,) int64.
    """
    above, below = np.zeros(4096, np.int64), np.zeros(4096, np.int64)
    for p in range(len(data)):
        bits = bits_of(data[p])
        bin_ = (bits & np.uint32(0x7FFFFFFF)) >> np.uint32(19)
        if bits & np.uint32(0x80000000):
            below[bin_] += 1
        else:
            above[bin_] += 1
    return above, below


@numba.njit(nogil=True, cache=True)
def pack(
    starts: NDArray[np.uint32],
    first: int,
    stop: int,
    ends: Int64,
    rows: Int32,
    data: Float32,
    least: float,
    dense_from: int,
    width: int,
    n_labels: int,
    out: Bytes,
) -> None:
    """Write the blocks of features [first, stop) to `out`, which starts with the block of `first`.

    starts: (D + 1,) as in `PackedLists`; ends: (stop - first,) end of the entries of each feature
    in rows and data, which start at the end of the previous one. dense_from: features with at least
    this number of kept weights are dense.
    """
    begin = int64(0)
    origin = int64(starts[first]) * UNIT_BYTES
    longest = int64(0)
    for f in range(stop - first):
        longest = max(longest, ends[f] - begin)
        begin = ends[f]
    labels, weights = np.empty((2, longest), np.int32), np.empty((2, longest), np.float32)
    keys = np.empty((2, longest), np.uint16)
    begin = int64(0)
    for f in range(stop - first):
        n = 0
        for p in range(begin, ends[f]):
            if data[p] > 0 or data[p] < -least:
                labels[0, n], weights[0, n] = rows[p], data[p]
                n += 1
        begin = ends[f]
        if n == 0:
            continue
        position = int64(starts[first + f]) * UNIT_BYTES - origin
        _sort(keys, labels, weights, n)
        if n >= dense_from:
            _write_dense(labels[0, :n], weights[0, :n], width, n_labels, out, position)
        elif is_split(n, width, n_labels):
            _write_split(labels, weights, n, width, n_labels, out, position)
        else:
            _write_integer(out, position, 4, n)
            position += HEADER_BYTES
            if curve_bytes(n, width):
                _write_curve(weights[0, :n], out, position)
                position += CURVE_BYTES
            position = _write_list(labels[0, :n], weights[0, :n], width, out, position)
            if width == NARROW_BYTES:
                _write_weights(weights[0, :n], out, position)


@inner()
def _sort(keys: NDArray[np.uint16], labels: Int32, weights: Float32, n: int) -> None:
    """Sort row 0 by descending 16-bit weight; ties keep their order by label.

    Row 1 is scratch memory.
    """
    for i in range(n):
        keys[0, i] = _descending_key(weights[0, i])
    if n <= MAX_INSERTION_SORT:
        _insertion_sort(keys[0], labels[0], weights[0], n)
        return
    counts = np.zeros((2, 257), np.int64)
    for i in range(n):
        key = int64(keys[0, i])
        counts[0, (key & 255) + 1] += 1
        counts[1, (key >> 8) + 1] += 1
    for half in range(2):
        for b in range(256):
            counts[half, b + 1] += counts[half, b]
        source, target = half, 1 - half
        for i in range(n):
            key = keys[source, i]
            b = (int64(key) >> (8 * half)) & 255
            at = counts[half, b]
            counts[half, b] = at + 1
            keys[target, at], labels[target, at], weights[target, at] = (
                key,
                labels[source, i],
                weights[source, i],
            )


@inner()
def _insertion_sort(keys: NDArray[np.uint16], labels: Int32, weights: Float32, n: int) -> None:
    """Sort by key, stable."""
    for i in range(1, n):
        key, label, weight = keys[i], labels[i], weights[i]
        at = i
        while at > 0 and keys[at - 1] > key:
            keys[at], labels[at], weights[at] = keys[at - 1], labels[at - 1], weights[at - 1]
            at -= 1
        keys[at], labels[at], weights[at] = key, label, weight


@inner()
def _descending_key(weight: float) -> np.uint16:
    """Return a key that descends as the weight, rounded up to 16 bits, ascends."""
    bits = round_up(weight)
    return bits if bits & np.uint16(0x8000) else np.uint16(0x7FFF) - bits


@inner()
def _write_list(labels: Int32, weights: Float32, width: int, out: Bytes, position: int) -> int:
    """Write tops, then labels; return their end.

    Weights with equal keys are in any order, so tops are the largest of their chunk, rounded.
    """
    n = len(labels)
    shift = chunk_shift(n)
    count = chunk_count(n, shift)
    smallest = weights[n - 1]
    for chunk in range(count):
        _write_integer(
            out, position + 2 * chunk, 2, int64(round_up(weights[chunk_start(chunk, shift)]))
        )
    for i in range(n):
        smallest = min(smallest, weights[i])
    _write_integer(out, position + 2 * count, 2, int64(round_down(smallest)))
    return _write_labels(labels, width, out, position + 2 * (count + 1))


@inner()
def _write_labels(labels: Int32, width: int, out: Bytes, position: int) -> int:
    """Write labels of `width` bytes; return their end."""
    for i in range(len(labels)):
        _write_integer(out, position + i * width, width, labels[i])
    return position + len(labels) * width


@inner()
def _write_weights(weights: Float32, out: Bytes, position: int) -> None:
    """Write weights as float32."""
    for i in range(len(weights)):
        _write_integer(out, position + i * WEIGHT_BYTES, WEIGHT_BYTES, int64(bits_of(weights[i])))


@inner()
def _write_dense(
    labels: Int32, weights: Float32, width: int, n_labels: int, out: Bytes, position: int
) -> None:
    """Write one byte per label, a list of what exceeds lo and hi, and the list of all weights."""
    n, max_cut = len(labels), max_clipped(n_labels)
    hi = max(float32(0.0), float_of(np.uint32(round_up(weights[max_cut])) << np.uint32(16)))
    lo = min(
        float32(0.0),
        float_of(np.uint32(next_below(round_up(weights[n - 1 - max_cut]))) << np.uint32(16)),
    )
    step = float32((float64(hi) - float64(lo)) / 255.0 * 1.000001)
    scale = 1.0 / float64(step) if step > 0 else 0.0
    first_code = position + DENSE_HEADER_BYTES + CURVE_BYTES
    codes = out[first_code : first_code + n_labels]
    codes[:] = np.uint8(min(255, int64(-float64(lo) * scale + 0.5)))
    cut_labels, rest, keys = (
        np.empty((2, 2 * max_cut), np.int32),
        np.empty((2, 2 * max_cut), np.float32),
        np.empty((2, 2 * max_cut), np.uint16),
    )
    kept = 0
    for i in range(n):
        weight = min(max(weights[i], lo), hi)
        codes[labels[i]] = np.uint8(min(255, int64((float64(weight) - float64(lo)) * scale + 0.5)))
        if weights[i] != weight:
            cut_labels[0, kept], rest[0, kept] = labels[i], weights[i] - weight
            kept += 1
    _write_integer(out, position, 4, int64(kept) | int64(SPECIAL_BIT))
    _write_integer(out, position + 4, 4, int64(bits_of(lo)))
    _write_integer(out, position + 8, 4, int64(bits_of(step)))
    _write_integer(out, position + 12, 4, n)
    _write_curve(weights, out, position + DENSE_HEADER_BYTES)
    position = first_code + n_labels
    if kept:
        _sort(keys, cut_labels, rest, kept)
        _write_list(cut_labels[0, :kept], rest[0, :kept], width, out, position)
    position += clipped_bytes(n_labels)
    _write_weights(weights, out, _write_list(labels, weights, width, out, position))


@numba.njit(nogil=True, cache=True)
def _write_split(
    labels: Int32, weights: Float32, n: int, width: int, n_labels: int, out: Bytes, position: int
) -> None:
    """Write the largest weights, then a list for each range of labels.

    Row 0 contains the list; row 1 is scratch memory for the ranges.
    """
    ranges = n_ranges(n_labels)
    ends = np.zeros(ranges + 1, np.int64)
    for i in range(n):
        ends[labels[0, i] // RANGE_LABELS + 1] += 1
    for r in range(ranges):
        ends[r + 1] += ends[r]
    smallest = weights[0, 0]
    for i in range(n):
        r = labels[0, i] // RANGE_LABELS
        labels[1, ends[r]], weights[1, ends[r]] = labels[0, i] - r * RANGE_LABELS, weights[0, i]
        ends[r] += 1
        smallest = min(smallest, weights[0, i])
    _write_integer(out, position, 4, int64(n) | int64(SPECIAL_BIT))
    _write_integer(out, position + 4, 4, int64(bits_of(smallest)))
    _write_curve(weights[0, :n], out, position + CURVE_OFFSET)
    leading = n_leading(n)
    target = _write_list(
        labels[0, :leading],
        weights[0, :leading],
        width,
        out,
        position + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * ranges,
    )
    begin = int64(0)
    for r in range(ranges):
        _write_integer(
            out, position + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * r, 4, target - position
        )
        _write_integer(
            out, position + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * r + 4, 4, ends[r] - begin
        )
        if ends[r] > begin:
            target = _write_list(
                labels[1, begin : ends[r]], weights[1, begin : ends[r]], NARROW_BYTES, out, target
            )
        begin = ends[r]


@inner()
def _write_curve(weights: Float32, out: Bytes, position: int) -> None:
    """Write the curve of a list, whose 16-bit weights descend."""
    n, positive = len(weights), 0
    while positive < n and weights[positive] > 0:
        positive += 1
    cut, read = np.zeros(CURVE_SAMPLES + 1), np.zeros(CURVE_SAMPLES + 1)
    read[0], size = float64(positive), 1
    for j in range(CURVE_SAMPLES - 1, -1, -1):
        above = (positive * j * j) // (CURVE_SAMPLES * CURVE_SAMPLES)
        if above < positive:
            top = float64(float_of(np.uint32(round_up(weights[above])) << np.uint32(16)))
            size = _add_to_hull(cut, read, size, top, float64(above))
    while size > CURVE_POINTS:
        size = _drop_flattest(cut, read, size)
    for j in range(CURVE_POINTS):
        bits, share = np.uint32(0), 0.0
        if j < size:
            bits, share = bits_of(float32(cut[j])) >> np.uint32(16), read[j] / n
        _write_integer(out, position + 4 * j, 2, int64(bits))
        _write_integer(out, position + 4 * j + 2, 2, int64(np.ceil(share * MAX_SHARE)))


@inner()
def _add_to_hull(cut: Float64, read: Float64, size: int, c: float, n: float) -> int:
    """Append a point to the lower convex hull of `size` points with smaller cuts; return its size.

    n: weights above the cut c, fewer than at the points before.
    """
    if c <= cut[size - 1]:
        return size
    while size > 1 and (read[size - 2] - read[size - 1]) * (c - cut[size - 1]) <= (
        read[size - 1] - n
    ) * (cut[size - 1] - cut[size - 2]):
        size -= 1
    cut[size], read[size] = c, n
    return size + 1


@inner()
def _drop_flattest(cut: Float64, read: Float64, size: int) -> int:
    """Remove the inner point of a hull that the line between its neighbours misses least."""
    flattest, least = 1, np.inf
    for j in range(1, size - 1):
        slope = (read[j - 1] - read[j + 1]) / (cut[j + 1] - cut[j - 1])
        miss = read[j - 1] - slope * (cut[j] - cut[j - 1]) - read[j]
        if miss < least:
            flattest, least = j, miss
    for j in range(flattest, size - 1):
        cut[j], read[j] = cut[j + 1], read[j + 1]
    return size - 1


@numba.njit(nogil=True, cache=True)
def wide_block_bytes(
    indices: Int32, indptr: Int64, data: Float32, least: float, width: int, kept_counts: Int64
) -> Int64:
    """Return the size of each feature's block in wide lists in bytes: (D,) int64.

    kept_counts: (D,) weights of each feature; the matrix is by label.
    """
    n_labels = len(indptr) - 1
    sizes = np.zeros(len(kept_counts), np.int64)
    for f in range(len(kept_counts)):
        n = kept_counts[f]
        if is_split(n, width, n_labels):
            sizes[f] = (
                SPLIT_HEADER_BYTES
                + RANGE_ENTRY_BYTES * n_ranges(n_labels)
                + list_bytes(n_leading(n), width)
            )
        elif n > 0:
            sizes[f] = HEADER_BYTES + list_bytes(n, width)
    counts = np.zeros(len(kept_counts), np.int64)
    for begin in range(0, n_labels, RANGE_LABELS):
        for p in range(indptr[begin], indptr[min(begin + RANGE_LABELS, n_labels)]):
            counts[indices[p]] += (data[p] > 0) | (data[p] < -least)
        for f in range(len(kept_counts)):
            if counts[f] > 0 and is_split(kept_counts[f], width, n_labels):
                sizes[f] += list_bytes(counts[f], NARROW_BYTES)
            counts[f] = 0
    return sizes


@inner()
def _write_integer(out: Bytes, position: int, width: int, value: int) -> None:
    """Write an integer as `width` bytes, little-endian."""
    for byte in range(width):
        out[position + byte] = np.uint8((int64(value) >> (8 * byte)) & 255)
