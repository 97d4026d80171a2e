"""The packed form of a posting list: labels by falling weight, in chunks that say how large their largest weight is.

A list of n weights is: the tops, 2 bytes each, of its chunks and one more; then n labels of `width` bytes. Chunks begin at
0, 1, 2, 4, 8, ... S, 2S, 3S, ... (S a power of two that grows with n), so no place is stored. The top of a chunk is its
first weight rounded up to 16 bits (sign, exponent and 7 bits of a float32); the last top is the smallest weight rounded down.
So each weight of chunk c lies between floor_at(c) and top_at(c).

A block is what a feature has: a header of 4 bytes, n; then its list. There are two families:

Narrow (2 bytes a label, up to 2**16 labels). The weights follow the labels, float32 in their order. Features with very many weights
are dense: bit 31 of the header is set, lo and step follow as float32 and the number of all weights; then a byte for every label,
weight = lo + step * byte, to half a step, clipped; then, in place of 2 m weights (m = n_clipped), the list of the n weights that
clipping cut, less what is left of them; then all labels and all weights.

Wide (3 bytes a label, 4 beyond 2**24 labels). Long lists are split: bit 31 of the header is set; the smallest weight follows as
float32; then, for each range of 2**16 labels, where its list begins (bytes from the header) and how many weights it has; then a
list of the largest weights alone (n_leading); then a list of 2 bytes a label for each range. The sums of a range fit in the
processor's cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64
from xcray.kernels.search.bits import (
    bits_of,
    float32,
    float64,
    float_of,
    int64,
    load16,
    load32,
    prefetch,
)

BUILT_ON = {"search.bits": "b69c88f5"}
Bytes = NDArray[np.uint8]

UNIT = 4  # bytes: where a block may begin
SPECIAL = np.uint32(0x80000000)  # bit 31 of a header: dense, or split
HEAD = 4  # bytes of a header
DENSE_HEAD = 16  # bytes of a dense one: header, lo, step, number of weights
NARROW = 2  # bytes of a label in lists that hold the weights too
WEIGHT = 4  # bytes of a weight
SPLIT_HEAD = 8  # bytes of a split one: header, smallest weight
PLACE = 8  # bytes that tell of a range: where, how many
RANGE = 1 << 16  # labels of a range
AHEAD = 4  # cache lines of a block that are asked for before it is read
SPLIT_FROM = 64  # weights a range from which a list is split


class Lists(NamedTuple):
    """All blocks, one after the other.

    blocks: uint8, 8 bytes longer than its content; starts: (D + 1,) uint32, where each feature's block begins, in UNIT bytes,
    equal to the next for a feature without weights. width: bytes of a label, 2 or 3 (4 beyond 2**24 labels); n_labels: K;
    least: negative weights down to -least are left out, which makes scores only appear larger.
    """

    blocks: Bytes
    starts: NDArray[np.uint32]
    width: int
    n_labels: int
    least: float


@numba.njit(nogil=True, cache=True)
def round_up(weight: float) -> np.uint16:
    """The smallest 16-bit float that is not below a float32."""
    bits = bits_of(float32(weight))
    if bits & np.uint32(0x80000000):
        return np.uint16(bits >> np.uint32(16))
    return np.uint16((bits + np.uint32(0xFFFF)) >> np.uint32(16))


@numba.njit(nogil=True, cache=True)
def round_down(weight: float) -> np.uint16:
    """The largest 16-bit float that is not above a float32."""
    bits = bits_of(float32(weight))
    if bits & np.uint32(0x80000000):
        return np.uint16((bits + np.uint32(0xFFFF)) >> np.uint32(16))
    return np.uint16(bits >> np.uint32(16))


@numba.njit(nogil=True, cache=True)
def before(bits: np.uint16) -> np.uint16:
    """The 16-bit float below another one."""
    if bits & np.uint16(0x8000):
        return np.uint16(bits + np.uint16(1))
    return np.uint16(0x8001) if bits == 0 else np.uint16(bits - np.uint16(1))


@numba.njit(nogil=True, cache=True)
def chunk_shift(n: int) -> int:
    """log2 of S for a list of n weights: 8 below 128, then twice as many for four times as many weights, at most 128."""
    shift = 3
    while shift < 7 and n >= 128 << (2 * (shift - 3)):
        shift += 1
    return shift


@numba.njit(nogil=True, cache=True)
def chunk_start(chunk: int, shift: int) -> int:
    """Where a chunk begins in its list."""
    if chunk <= shift:
        return 0 if chunk == 0 else 1 << (chunk - 1)
    return (chunk - shift) << shift


@numba.njit(nogil=True, cache=True)
def chunk_count(n: int, shift: int) -> int:
    """How many chunks n weights fill."""
    if n > 1 << shift:
        return shift + ((n + (1 << shift) - 1) >> shift)
    count = 0
    while chunk_start(count, shift) < n:
        count += 1
    return count


@numba.njit(nogil=True, cache=True)
def list_bytes(n: int, width: int) -> int:
    """Bytes of a list of n weights."""
    return 0 if n == 0 else 2 * (chunk_count(n, chunk_shift(n)) + 1) + n * width


@numba.njit(nogil=True, cache=True)
def label_mask(width: int) -> np.uint32:
    """What is left of four bytes that begin with a label of `width`."""
    return np.uint32((int64(1) << (8 * width)) - 1)


@numba.njit(nogil=True, cache=True)
def n_clipped(n_labels: int) -> int:
    """How many weights may be clipped at each end of a dense feature."""
    return n_labels >> 7


@numba.njit(nogil=True, cache=True)
def n_ranges(n_labels: int) -> int:
    """How many ranges of labels there are."""
    return (n_labels + RANGE - 1) // RANGE


@numba.njit(nogil=True, cache=True)
def n_leading(n: int) -> int:
    """How many of the largest weights of a split list are kept in a list of their own too."""
    return min(128, n >> 5)


@numba.njit(nogil=True, cache=True)
def is_split(n: int, width: int, n_labels: int) -> bool:
    """Whether a wide list of n weights is split."""
    return width != NARROW and n >= SPLIT_FROM * n_ranges(n_labels)


@numba.njit(nogil=True, cache=True)
def narrow_units(n: int, n_labels: int, dense: bool) -> int:
    """UNITs of a feature's block with n weights in narrow lists."""
    if n == 0:
        return 0
    size = HEAD + list_bytes(n, NARROW) + n * WEIGHT
    if dense:
        size = (
            DENSE_HEAD
            + n_labels
            + list_bytes(2 * n_clipped(n_labels), NARROW)
            + n * (NARROW + WEIGHT)
        )
    return (size + UNIT - 1) // UNIT


@numba.njit(nogil=True, cache=True)
def top_at(blocks: Bytes, tops: int, chunk: int) -> float:
    """The top of a chunk, float32; tops: the byte where the list's tops begin."""
    top: float = float_of(np.uint32(load16(blocks, tops + 2 * chunk)) << np.uint32(16))
    return top


@numba.njit(nogil=True, cache=True)
def floor_at(blocks: Bytes, tops: int, chunk: int, n_chunks: int) -> float:
    """A number not above any weight of a chunk, float32: the next chunk's top was rounded up, so one step of 16 bits below it."""
    bits = load16(blocks, tops + 2 * (chunk + 1))
    if chunk + 1 < n_chunks:
        bits = before(bits)
    least: float = float_of(np.uint32(bits) << np.uint32(16))
    return least


class Terms(NamedTuple):
    """The features of a query that have weights, one entry each.

    x: float64 values; dense: int64, the byte where the codes of a dense one begin, or of a split one the places of its ranges;
    -1 for others; lo, step: of dense ones, float64; n, n_chunks, shift: of the list (the leading one where it is split), int64;
    tops: int64, the byte where its tops begin; high: float64, the largest weight, or 0 when there is no positive one; low:
    float64, the smallest, or 0. all: int64, the byte where all labels of narrow lists begin, with all weights behind them, or
    of a split one its header; n_all: int64, how many weights there are.
    """

    x: Float64
    dense: NDArray[np.int64]
    lo: Float64
    step: Float64
    n: NDArray[np.int64]
    n_chunks: NDArray[np.int64]
    shift: NDArray[np.int64]
    tops: NDArray[np.int64]
    high: Float64
    low: Float64
    all: NDArray[np.int64]
    n_all: NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def new_terms(n: int) -> Terms:
    """Room for n terms."""
    reals = np.empty((5, n), np.float64)
    whole = np.empty((7, n), np.int64)
    return Terms(
        reals[0],
        whole[0],
        reals[1],
        reals[2],
        whole[1],
        whole[2],
        whole[3],
        whole[4],
        reals[3],
        reals[4],
        whole[5],
        whole[6],
    )


@numba.njit(nogil=True, cache=True)
def read_terms(
    indices: NDArray[np.int32], values: NDArray[np.float32], lists: Lists, terms: Terms
) -> int:
    """Fill in the terms of a row; returns how many there are. Values of 0 and features without weights make none."""
    count, blocks = 0, lists.blocks
    for i in range(len(indices)):  # two passes: the headers come from memory while we go on
        begin = int64(lists.starts[indices[i]])
        if values[i] == 0 or lists.starts[indices[i] + 1] == begin:
            continue
        for line in range(AHEAD):
            prefetch(blocks, begin * UNIT + 64 * line)
        terms.all[count], terms.x[count] = begin * UNIT, values[i]
        count += 1
    for t in range(count):
        place = terms.all[t]
        head = load32(blocks, place)
        n = int64(head & np.uint32(0x7FFFFFFF))
        terms.n[t], terms.n_all[t], terms.dense[t], terms.lo[t], terms.step[t] = n, n, -1, 0.0, 0.0
        if not head & SPECIAL:
            _open_list(lists, terms, t, place + HEAD)
            terms.all[t] = terms.tops[t] + 2 * (terms.n_chunks[t] + 1)
        elif lists.width == NARROW:
            _open_dense(lists, terms, t, place)
        else:
            terms.dense[t], terms.n[t] = place + SPLIT_HEAD, n_leading(n)
            _open_list(lists, terms, t, place + SPLIT_HEAD + PLACE * n_ranges(lists.n_labels))
            terms.low[t] = min(0.0, float64(float_of(load32(blocks, place + 4))))
    return count


@numba.njit(nogil=True, cache=True)
def _open_list(lists: Lists, terms: Terms, t: int, place: int) -> None:
    """Fill in what a list tells; its tops begin at `place`."""
    shift = chunk_shift(terms.n[t])
    chunks = chunk_count(terms.n[t], shift)
    terms.shift[t], terms.n_chunks[t], terms.tops[t] = shift, chunks, place
    terms.high[t], terms.low[t] = 0.0, 0.0
    if terms.n[t] > 0:
        terms.high[t] = max(0.0, float64(top_at(lists.blocks, place, int64(0))))
        terms.low[t] = min(0.0, float64(top_at(lists.blocks, place, chunks)))


@numba.njit(nogil=True, cache=True)
def _open_dense(lists: Lists, terms: Terms, t: int, place: int) -> None:
    """Fill in what a dense feature tells; `place` is its header."""
    blocks = lists.blocks
    lo, step = (
        float64(float_of(load32(blocks, place + 4))),
        float64(float_of(load32(blocks, place + 8))),
    )
    terms.lo[t], terms.step[t], terms.n_all[t] = lo, step, load32(blocks, place + 12)
    place += DENSE_HEAD
    terms.dense[t] = place
    place += lists.n_labels
    _open_list(lists, terms, t, place)
    terms.all[t] = place + list_bytes(2 * n_clipped(lists.n_labels), lists.width)
    terms.high[t] += lo + 255 * step
    terms.low[t] += lo
