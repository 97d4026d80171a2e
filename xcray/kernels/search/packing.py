"""Weights by feature put into packed lists (`lists`): counted, sorted by falling weight, written."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float32, Int32, Int64
from xcray.kernels.search.bits import bits_of, float32, float64, float_of, int64
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
    before,
    chunk_count,
    chunk_shift,
    chunk_start,
    is_split,
    list_bytes,
    n_clipped,
    n_leading,
    n_ranges,
    round_down,
    round_up,
)

BUILT_ON = {"search.bits": "b69c88f5", "search.lists": "e4c3b501"}
INSERTION = 48  # lists up to this long are sorted by insertion


@numba.njit(nogil=True, cache=True)
def kept_counts(indices: Int32, data: Float32, least: float, n_cols: int) -> tuple[Int64, Int64]:
    """Entries of each column, and those that are kept: positive, or below -least. (n_cols,) int64 both."""
    counts, kept = np.zeros(n_cols, np.int64), np.zeros(n_cols, np.int64)
    for p in range(len(indices)):
        counts[indices[p]] += 1
        kept[indices[p]] += (data[p] > 0) | (data[p] < -least)
    return counts, kept


@numba.njit(nogil=True, cache=True)
def exponents(data: Float32) -> tuple[Int64, Int64]:
    """How many weights are not below zero, by sixteenth of a power of two; and how many are, by the same of their size: (4096,)
    int64 both."""
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
    """Write the blocks of features [first, stop) to `out`, whose first byte is where the block of `first` begins.

    starts: (D + 1,) as in `Lists`; ends: (stop - first,) where the entries of each feature end in rows and data; they begin
    where the one before ends. dense_from: features with at least so many kept weights are dense.
    """
    begin = int64(0)
    origin = int64(starts[first]) * UNIT
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
        place = int64(starts[first + f]) * UNIT - origin
        _sort(keys, labels, weights, n)
        if n >= dense_from:
            _write_dense(labels[0, :n], weights[0, :n], width, n_labels, out, place)
        elif is_split(n, width, n_labels):
            _write_split(labels, weights, n, width, n_labels, out, place)
        else:
            _put(out, place, 4, n)
            place = _write_list(labels[0, :n], weights[0, :n], width, out, place + HEAD)
            if width == NARROW:
                _write_weights(weights[0, :n], out, place)


@numba.njit(nogil=True, cache=True)
def _sort(keys: NDArray[np.uint16], labels: Int32, weights: Float32, n: int) -> None:
    """Sort row 0 by falling 16-bit weight, equal ones by label as they come; row 1 is used on the way."""
    for i in range(n):
        keys[0, i] = _falling(weights[0, i])
    if n <= INSERTION:
        _insertion(keys[0], labels[0], weights[0], n)
        return
    counts = np.zeros((2, 257), np.int64)
    for i in range(n):
        key = int64(keys[0, i])
        counts[0, (key & 255) + 1] += 1
        counts[1, (key >> 8) + 1] += 1
    for half in range(2):
        for b in range(256):
            counts[half, b + 1] += counts[half, b]
        source, goal = half, 1 - half
        for i in range(n):
            key = keys[source, i]
            b = (int64(key) >> (8 * half)) & 255
            at = counts[half, b]
            counts[half, b] = at + 1
            keys[goal, at], labels[goal, at], weights[goal, at] = (
                key,
                labels[source, i],
                weights[source, i],
            )


@numba.njit(nogil=True, cache=True)
def _insertion(keys: NDArray[np.uint16], labels: Int32, weights: Float32, n: int) -> None:
    """Sort by key, stable."""
    for i in range(1, n):
        key, label, weight = keys[i], labels[i], weights[i]
        at = i
        while at > 0 and keys[at - 1] > key:
            keys[at], labels[at], weights[at] = keys[at - 1], labels[at - 1], weights[at - 1]
            at -= 1
        keys[at], labels[at], weights[at] = key, label, weight


@numba.njit(nogil=True, cache=True)
def _falling(weight: float) -> np.uint16:
    """A key that falls as the weight, rounded up to 16 bits, grows."""
    bits = round_up(weight)
    return bits if bits & np.uint16(0x8000) else np.uint16(0x7FFF) - bits


@numba.njit(nogil=True, cache=True)
def _write_list(labels: Int32, weights: Float32, width: int, out: Bytes, place: int) -> int:
    """Tops, then labels; returns where they end. Within a key weights may be in any order, so tops are the largest of their chunk,
    rounded."""
    n = len(labels)
    shift = chunk_shift(n)
    count = chunk_count(n, shift)
    smallest = weights[n - 1]
    for chunk in range(count):
        _put(
            out, place + 2 * chunk, 2, int64(round_up(weights[chunk_start(chunk, shift)]))
        )  # equal keys round up to equal tops
    for i in range(n):
        smallest = min(smallest, weights[i])
    _put(out, place + 2 * count, 2, int64(round_down(smallest)))
    return _write_labels(labels, width, out, place + 2 * (count + 1))


@numba.njit(nogil=True, cache=True)
def _write_labels(labels: Int32, width: int, out: Bytes, place: int) -> int:
    """Labels of `width` bytes; returns where they end."""
    for i in range(len(labels)):
        _put(out, place + i * width, width, labels[i])
    return place + len(labels) * width


@numba.njit(nogil=True, cache=True)
def _write_weights(weights: Float32, out: Bytes, place: int) -> None:
    """Weights as float32."""
    for i in range(len(weights)):
        _put(out, place + i * WEIGHT, WEIGHT, int64(bits_of(weights[i])))


@numba.njit(nogil=True, cache=True)
def _write_dense(
    labels: Int32, weights: Float32, width: int, n_labels: int, out: Bytes, place: int
) -> None:
    """A byte for every label, and a list of what does not fit between lo and hi."""
    n, most = len(labels), n_clipped(n_labels)
    hi = max(
        float32(0.0), float_of(np.uint32(round_up(weights[most])) << np.uint32(16))
    )  # at most `most` are above it
    lo = min(
        float32(0.0), float_of(np.uint32(before(round_up(weights[n - 1 - most]))) << np.uint32(16))
    )  # or below this
    step = float32((float64(hi) - float64(lo)) / 255.0 * 1.000001)
    scale = 1.0 / float64(step) if step > 0 else 0.0
    codes = out[place + DENSE_HEAD : place + DENSE_HEAD + n_labels]
    codes[:] = np.uint8(min(255, int64(-float64(lo) * scale + 0.5)))
    left, rest, keys = (
        np.empty((2, 2 * most), np.int32),
        np.empty((2, 2 * most), np.float32),
        np.empty((2, 2 * most), np.uint16),
    )
    kept = 0
    for i in range(n):
        weight = min(max(weights[i], lo), hi)
        codes[labels[i]] = np.uint8(min(255, int64((float64(weight) - float64(lo)) * scale + 0.5)))
        if weights[i] != weight:
            left[0, kept], rest[0, kept] = labels[i], weights[i] - weight
            kept += 1
    _put(out, place, 4, int64(kept) | int64(SPECIAL))
    _put(out, place + 4, 4, int64(bits_of(lo)))
    _put(out, place + 8, 4, int64(bits_of(step)))
    _put(out, place + 12, 4, n)
    place += DENSE_HEAD + n_labels
    if kept:
        _sort(keys, left, rest, kept)
        _write_list(left[0, :kept], rest[0, :kept], width, out, place)
    place += list_bytes(2 * most, width)
    _write_weights(weights, out, _write_labels(labels, width, out, place))


@numba.njit(nogil=True, cache=True)
def _write_split(
    labels: Int32, weights: Float32, n: int, width: int, n_labels: int, out: Bytes, place: int
) -> None:
    """The largest weights, then a list for each range of labels. Row 0 holds the list, row 1 is used to put it into ranges."""
    ranges = n_ranges(n_labels)
    ends = np.zeros(ranges + 1, np.int64)
    for i in range(n):
        ends[labels[0, i] // RANGE + 1] += 1
    for r in range(ranges):
        ends[r + 1] += ends[r]
    smallest = weights[0, 0]
    for i in range(n):
        r = labels[0, i] // RANGE
        labels[1, ends[r]], weights[1, ends[r]] = labels[0, i] - r * RANGE, weights[0, i]
        ends[r] += 1
        smallest = min(smallest, weights[0, i])
    _put(out, place, 4, int64(n) | int64(SPECIAL))
    _put(out, place + 4, 4, int64(bits_of(smallest)))
    leading = n_leading(n)
    goal = _write_list(
        labels[0, :leading], weights[0, :leading], width, out, place + SPLIT_HEAD + PLACE * ranges
    )
    begin = int64(0)
    for r in range(ranges):
        _put(out, place + SPLIT_HEAD + PLACE * r, 4, goal - place)
        _put(out, place + SPLIT_HEAD + PLACE * r + 4, 4, ends[r] - begin)
        if ends[r] > begin:
            goal = _write_list(
                labels[1, begin : ends[r]], weights[1, begin : ends[r]], NARROW, out, goal
            )
        begin = ends[r]


@numba.njit(nogil=True, cache=True)
def wide_bytes(
    indices: Int32, indptr: Int64, data: Float32, least: float, width: int, kept: Int64
) -> Int64:
    """Bytes of each feature's block in wide lists: (D,) int64. kept: weights of each feature, (D,); the matrix is by label."""
    n_labels = len(indptr) - 1
    sizes = np.zeros(len(kept), np.int64)
    for f in range(len(kept)):
        n = kept[f]
        if is_split(n, width, n_labels):
            sizes[f] = SPLIT_HEAD + PLACE * n_ranges(n_labels) + list_bytes(n_leading(n), width)
        elif n > 0:
            sizes[f] = HEAD + list_bytes(n, width)
    counts = np.zeros(len(kept), np.int64)
    for begin in range(0, n_labels, RANGE):
        for p in range(indptr[begin], indptr[min(begin + RANGE, n_labels)]):
            counts[indices[p]] += (data[p] > 0) | (data[p] < -least)
        for f in range(len(kept)):
            if counts[f] > 0 and is_split(kept[f], width, n_labels):
                sizes[f] += list_bytes(counts[f], NARROW)
            counts[f] = 0
    return sizes


@numba.njit(nogil=True, cache=True)
def _put(out: Bytes, place: int, width: int, value: int) -> None:
    """`width` bytes of a whole number, lowest first."""
    for byte in range(width):
        out[place + byte] = np.uint8((int64(value) >> (8 * byte)) & 255)
