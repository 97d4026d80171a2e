"""Format of packed posting lists: labels by descending weight, in chunks with weight bounds.

A list of n weights consists of the tops of its chunks and one more, 2 bytes each, then n labels of
`width` bytes. Chunks start at 0, 1, 2, 4, 8, ... S, 2S, 3S, ... (S is a power of two that grows
with n), so no positions are stored. The top of a chunk is its first weight rounded up to 16 bits
(sign, exponent and 7 bits of a float32). The last top is the smallest weight rounded down. So each
weight of chunk c lies between floor_at(c) and top_at(c).

A block is the data of one feature: a header of 4 bytes with n, then its list. There are two
families.

Narrow (2 bytes per label, up to 2**16 labels). The weights follow the labels, float32 in their
order. From MIN_CURVE_WEIGHTS weights on, a curve precedes the list. Features with very many weights
are dense: bit 31 of the header is set, and lo and step follow as float32, then the number of all
weights and the curve. Then one byte per label, weight = lo + step * byte, to half a step, clipped.
Then, in the space of 2 m weights (m = max_clipped), the list of the n weights that were clipped,
with the clipped amounts. Then the list of all weights, and the weights.

Wide (3 bytes per label, 4 beyond 2**24 labels). Long lists are split: bit 31 of the header is set;
the smallest weight follows as float32. Then the curve. Then, for each range of 2**15 labels, the
position of its list (bytes from the header) and its number of weights. Then a list of the largest
weights only (n_leading). Then a list with 2 bytes per label for each range.

A curve is CURVE_POINTS times a cut (16 bits, from 0, ascending) and the share of all weights above
it (in 1/65535, rounded up, descending): the corners of the lower convex hull of share over cut.
Unused points are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import bits_of, float32, float64, float_of, int64, load16, load32

Bytes = NDArray[np.uint8]

UNIT_BYTES = 4  # blocks start at multiples of it
SPECIAL_BIT = np.uint32(0x80000000)  # bit 31 of a header: dense or split
HEADER_BYTES = 4
DENSE_HEADER_BYTES = 16  # header, lo, step, number of weights
NARROW_BYTES = 2  # per label in narrow lists, which also contain the weights
WEIGHT_BYTES = 4
CURVE_POINTS = 8
CURVE_OFFSET = 8  # of the curve in a split block, after header and smallest weight
CURVE_BYTES = 4 * CURVE_POINTS
SPLIT_HEADER_BYTES = CURVE_OFFSET + CURVE_BYTES
MIN_CURVE_WEIGHTS = 48  # of a narrow list with a curve
MAX_SHARE = 65535.0
RANGE_ENTRY_BYTES = 8  # per range: position, number of weights
RANGE_LABELS = 1 << 15
PREFETCH_LINES = 4  # cache lines of a block to prefetch
SPLIT_WEIGHTS_PER_RANGE = 48  # lists with more weights per range are split


class PackedLists(NamedTuple):
    """All blocks, concatenated.

    blocks: uint8, 8 bytes longer than its content; starts: (D + 1,) uint32, start of each feature's
    block in units of UNIT_BYTES, equal to the next one for a feature without weights. width: bytes
    per label, 2 or 3 (4 beyond 2**24 labels); n_labels: K; dropped_below: negative weights down to
    -dropped_below are left out, which only makes scores appear larger.
    """

    blocks: Bytes
    starts: NDArray[np.uint32]
    width: int
    n_labels: int
    dropped_below: float


@inner()
def round_up(weight: float) -> np.uint16:
    """Return the smallest 16-bit float that is not below a float32."""
    bits = bits_of(float32(weight))
    if bits & np.uint32(0x80000000):
        return np.uint16(bits >> np.uint32(16))
    return np.uint16((bits + np.uint32(0xFFFF)) >> np.uint32(16))


@inner()
def round_down(weight: float) -> np.uint16:
    """Return the largest 16-bit float that is not above a float32."""
    bits = bits_of(float32(weight))
    if bits & np.uint32(0x80000000):
        return np.uint16((bits + np.uint32(0xFFFF)) >> np.uint32(16))
    return np.uint16(bits >> np.uint32(16))


@inner(allocates=False)
def next_below(bits: np.uint16) -> np.uint16:
    """Return the next smaller 16-bit float."""
    if bits & np.uint16(0x8000):
        return np.uint16(bits + np.uint16(1))
    return np.uint16(0x8001) if bits == 0 else np.uint16(bits - np.uint16(1))


@inner(allocates=False)
def chunk_shift(n: int) -> int:
    """Return log2 of S for a list of n weights.

    S is 8 below 128 weights, doubles with four times as many weights, and is at most 128.
    """
    shift = 3
    while shift < 7 and n >= 128 << (2 * (shift - 3)):
        shift += 1
    return shift


@inner(allocates=False)
def chunk_start(chunk: int, shift: int) -> int:
    """Return the start of a chunk in its list."""
    if chunk <= shift:
        return 0 if chunk == 0 else 1 << (chunk - 1)
    return (chunk - shift) << shift


@inner(allocates=False)
def chunk_count(n: int, shift: int) -> int:
    """Return the number of chunks of n weights."""
    if n > 1 << shift:
        return shift + ((n + (1 << shift) - 1) >> shift)
    count = 0
    while chunk_start(count, shift) < n:
        count += 1
    return count


@inner(allocates=False)
def list_bytes(n: int, width: int) -> int:
    """Return the size of a list of n weights in bytes."""
    return 0 if n == 0 else 2 * (chunk_count(n, chunk_shift(n)) + 1) + n * width


@inner(allocates=False)
def label_mask(width: int) -> np.uint32:
    """Return the mask of a label of `width` bytes in four bytes."""
    return np.uint32((int64(1) << (8 * width)) - 1)


@inner()
def max_clipped(n_labels: int) -> int:
    """Return the maximum number of clipped weights at each end of a dense feature."""
    return n_labels >> 7


@inner()
def clipped_bytes(n_labels: int) -> int:
    """Return the bytes for the list of clipped weights of a dense feature in narrow lists.

    A list just below a change of the chunk size has more chunks than one just above it.
    """
    n = 2 * max_clipped(n_labels)
    shift = chunk_shift(n)
    size = list_bytes(n, NARROW_BYTES)
    if shift > 3:
        size = max(size, list_bytes((128 << (2 * (shift - 4))) - 1, NARROW_BYTES))
    return size


@inner(allocates=False)
def n_ranges(n_labels: int) -> int:
    """Return the number of ranges of labels."""
    return (n_labels + RANGE_LABELS - 1) // RANGE_LABELS


@inner(allocates=False)
def n_leading(n: int) -> int:
    """Return the number of largest weights of a split list that also have their own list."""
    return min(128, n >> 5)


@inner()
def is_split(n: int, width: int, n_labels: int) -> bool:
    """Return whether a wide list of n weights is split."""
    return width != NARROW_BYTES and n >= SPLIT_WEIGHTS_PER_RANGE * n_ranges(n_labels)


@inner()
def curve_bytes(n: int, width: int) -> int:
    """Return the bytes between the header and the list of n weights that is not special."""
    return CURVE_BYTES if width == NARROW_BYTES and n >= MIN_CURVE_WEIGHTS else 0


@numba.njit(nogil=True, cache=True)
def narrow_units(n: int, n_labels: int, dense: bool) -> int:
    """Return the units of a feature's block with n weights in narrow lists."""
    if n == 0:
        return 0
    size = HEADER_BYTES + curve_bytes(n, NARROW_BYTES)
    if dense:
        size = DENSE_HEADER_BYTES + CURVE_BYTES + n_labels + clipped_bytes(n_labels)
    size += list_bytes(n, NARROW_BYTES) + n * WEIGHT_BYTES
    return (size + UNIT_BYTES - 1) // UNIT_BYTES


@inner(allocates=False)
def top_at(blocks: Bytes, tops: int, chunk: int) -> float:
    """Return the top of a chunk, float32; tops: position of the first top of the list."""
    top: float = float_of(np.uint32(load16(blocks, tops + 2 * chunk)) << np.uint32(16))
    return top


@inner(allocates=False)
def floor_at(blocks: Bytes, tops: int, chunk: int, n_chunks: int) -> float:
    """Return a lower bound of the weights of a chunk, float32.

    The next chunk's top was rounded up, so it is one 16-bit step below that.
    """
    bits = load16(blocks, tops + 2 * (chunk + 1))
    if chunk + 1 < n_chunks:
        bits = next_below(bits)
    least: float = float_of(np.uint32(bits) << np.uint32(16))
    return least


class Terms(NamedTuple):
    """The features of a query that have weights, one entry each.

    x: float64 values; dense: int64, position of the codes of a dense feature, or of the range
    entries of a split one; -1 for others; lo, step: of dense features, float64; n_clipped: int64,
    size of their list of clipped weights. n, n_chunks, shift: of the list (the leading one if it is
    split), int64; tops: int64, position of its tops; curve: int64, position of the curve, -1
    without one; high: float64, the largest weight, or 0 if none is positive; low: float64, the
    smallest, or 0. all: int64, position of all labels of a narrow list, followed by all weights, or
    of the header of a split one; n_all: int64, number of all weights.
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
    curve: NDArray[np.int64]
    n_clipped: NDArray[np.int64]


@inner()
def new_terms(n: int) -> Terms:
    """Allocate n terms."""
    reals = np.empty((5, n), np.float64)
    whole = np.empty((9, n), np.int64)
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
        whole[7],
        whole[8],
    )


@inner(allocates=False)
def read_terms(
    indices: NDArray[np.int32], values: NDArray[np.float32], lists: PackedLists, terms: Terms
) -> int:
    """Fill in the terms of a row; return their number.

    Values of 0 and features without weights have no term.
    """
    count, blocks = 0, lists.blocks
    # two passes: headers are loaded while the first pass continues
    for i in range(len(indices)):
        begin = int64(lists.starts[indices[i]])
        if values[i] == 0 or lists.starts[indices[i] + 1] == begin:
            continue
        for line in range(PREFETCH_LINES):
            prefetch(blocks, begin * UNIT_BYTES + 64 * line)
        terms.all[count], terms.x[count] = begin * UNIT_BYTES, values[i]
        count += 1
    for t in range(count):
        position = terms.all[t]
        head = load32(blocks, position)
        n = int64(head & np.uint32(0x7FFFFFFF))
        terms.n[t], terms.n_all[t], terms.dense[t], terms.lo[t], terms.step[t] = n, n, -1, 0.0, 0.0
        terms.curve[t], terms.n_clipped[t] = -1, 0
        if not head & SPECIAL_BIT:
            before = curve_bytes(n, lists.width)
            terms.curve[t] = position + HEADER_BYTES if before else -1
            _read_list(lists, terms, t, position + HEADER_BYTES + before)
            terms.all[t] = terms.tops[t] + 2 * (terms.n_chunks[t] + 1)
        elif lists.width == NARROW_BYTES:
            _read_dense(lists, terms, t, position)
        else:
            terms.dense[t], terms.n[t] = position + SPLIT_HEADER_BYTES, n_leading(n)
            terms.curve[t] = position + CURVE_OFFSET
            _read_list(
                lists,
                terms,
                t,
                position + SPLIT_HEADER_BYTES + RANGE_ENTRY_BYTES * n_ranges(lists.n_labels),
            )
            terms.low[t] = min(0.0, float64(float_of(load32(blocks, position + 4))))
    return count


@inner(allocates=False)
def _read_list(lists: PackedLists, terms: Terms, t: int, position: int) -> None:
    """Fill in the fields of a list whose tops start at `position`."""
    shift = chunk_shift(terms.n[t])
    chunks = chunk_count(terms.n[t], shift)
    terms.shift[t], terms.n_chunks[t], terms.tops[t] = shift, chunks, position
    terms.high[t], terms.low[t] = 0.0, 0.0
    if terms.n[t] > 0:
        terms.high[t] = max(0.0, float64(top_at(lists.blocks, position, int64(0))))
        terms.low[t] = min(0.0, float64(top_at(lists.blocks, position, chunks)))


@inner(allocates=False)
def exact_list(
    blocks: Bytes, starts: NDArray[np.uint32], feature: int, n_labels: int
) -> tuple[int, int]:
    """Return the position of all labels of a feature in narrow lists, and their number.

    Their weights follow. starts: of the lists.
    """
    begin = int64(starts[feature])
    if starts[feature + 1] == begin:
        return int64(0), int64(0)
    position = begin * UNIT_BYTES
    head = load32(blocks, position)
    n = int64(head & np.uint32(0x7FFFFFFF))
    if head & SPECIAL_BIT:
        n = int64(load32(blocks, position + 12))
        position += DENSE_HEADER_BYTES + CURVE_BYTES + n_labels + clipped_bytes(n_labels)
    else:
        position += HEADER_BYTES + curve_bytes(n, NARROW_BYTES)
    return position + 2 * (chunk_count(n, chunk_shift(n)) + 1), n


@inner(allocates=False)
def _read_dense(lists: PackedLists, terms: Terms, t: int, position: int) -> None:
    """Fill in the fields of a dense feature with its header at `position`."""
    blocks = lists.blocks
    lo, step = (
        float64(float_of(load32(blocks, position + 4))),
        float64(float_of(load32(blocks, position + 8))),
    )
    terms.lo[t], terms.step[t], terms.n_clipped[t] = lo, step, terms.n[t]
    terms.n[t] = terms.n_all[t] = load32(blocks, position + 12)
    terms.curve[t] = position + DENSE_HEADER_BYTES
    terms.dense[t] = terms.curve[t] + CURVE_BYTES
    clipped = terms.dense[t] + lists.n_labels
    _read_list(lists, terms, t, clipped + clipped_bytes(lists.n_labels))
    terms.all[t] = terms.tops[t] + 2 * (terms.n_chunks[t] + 1)
