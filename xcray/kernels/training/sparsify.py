"""Conversion of a dense block of weights to sparse rows of labels, without small weights.

The block is read in its memory order, one feature per row, a few times. Apart from the block and
the result, this takes 24 bytes per label and half a megabyte. Sizes of weights are compared by
their bits: those of a float32 without its sign ascend with its size, with NaN above infinity.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Int32, Int64, csr, frozen
from xcray.errors import ParameterError, ShapeMismatch

UInt32 = NDArray[np.uint32]

SIZE_MASK = np.uint32(0x7FFFFFFF)  # all bits except the sign
# labels that are filled together: each writes to its own cache line
FILL_LABELS = 256
RANK_LABELS = 64  # labels that are ranked together: their counts fit in the L2 cache
# (shift, bits) of the digits of a weight's size, leading digit first
DIGITS = ((20, 11), (10, 10), (0, 10))


@numba.njit(nogil=True, cache=True)
def _count(bits: UInt32, first: int, stop: int, limit: int) -> tuple[Int64, Int64]:
    """Count the non-zero weights of labels [first, stop), and those above a threshold.

    limit: bits of the float32 threshold.
    """
    some, above = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.int64)
    bar = np.uint32(limit)
    for f in range(bits.shape[0]):
        row = bits[f, first:stop]
        for j in range(len(row)):
            size = row[j] & SIZE_MASK
            some[j] += size != 0
            above[j] += size > bar
    return some, above


@numba.njit(nogil=True, cache=True)
def _rank(bits: UInt32, labels: Int64, keep: int, bars: UInt32, ties: Int64, first: int) -> None:
    """Set the bar of each label to the size of its keep-th largest weight.

    labels: a few labels with more than `keep` weights above their bar. ties: number of weights of
    exactly this size among the largest. bars and ties start at label `first`.
    """
    prefix, rest = np.zeros(len(labels), np.uint32), np.full(len(labels), keep, np.int64)
    counts = np.empty((len(labels), 1 << 11), np.int32)
    for shift, width in DIGITS:
        counts[:] = 0
        mask, above = np.uint32((1 << width) - 1), np.uint32(shift + width)
        for f in range(bits.shape[0]):
            for c in range(len(labels)):
                size = bits[f, labels[c]] & SIZE_MASK
                if size >> above == prefix[c]:
                    counts[c, (size >> np.uint32(shift)) & mask] += 1
        for c in range(len(labels)):
            digit = mask
            while counts[c, digit] < rest[c]:
                rest[c] -= counts[c, digit]
                digit -= np.uint32(1)
            prefix[c] = (prefix[c] << np.uint32(width)) | digit
    for c in range(len(labels)):
        bars[labels[c] - first], ties[labels[c] - first] = prefix[c], rest[c]


@numba.njit(nogil=True, cache=True)
def _fill(
    bits: UInt32,
    W: Float32,
    first: int,
    bars: UInt32,
    ties: Int64,
    indptr: Int64,
    indices: Int32,
    data: Float32,
) -> None:
    """Write weights above their label's bar, and the first `ties` equal to it, to the label's row.

    ties is used up.
    """
    n = len(bars)
    cursors = indptr[:n].copy()
    for begin in range(0, n, FILL_LABELS):
        end = min(begin + FILL_LABELS, n)
        for f in range(bits.shape[0]):
            for j in range(begin, end):
                size = bits[f, first + j] & SIZE_MASK
                if size < bars[j]:
                    continue
                if size == bars[j]:
                    if ties[j] == 0:
                        continue
                    ties[j] -= 1
                at = cursors[j]
                indices[at], data[at] = f, W[f, first + j]
                cursors[j] = at + 1


def sparse_rows(
    W: Float32, prune: float = 0.0, keep: int = 0, *, first: int = 0, stop: int | None = None
) -> tuple[CSR, Int64]:
    """Return the weights of a dense block by label, and the number of dropped weights per label.

    W: (D, n) float32, one row per feature, C-contiguous (other arrays are copied). prune: weights
    of at most this size are dropped; 0 drops zeros only. keep: maximum number of weights per label,
    the largest, ties by lower feature; 0 keeps all. first, stop: a range of labels, all by default,
    to build the result piece by piece.

    The result is a CSR ((stop - first), D) float32 with ascending features, and (stop - first,)
    int64 numbers of dropped non-zero weights. Non-finite values count as the largest and are kept,
    so that checks of the model find them. Memory: W, the result, and little more. Raises
    ParameterError, ShapeMismatch.
    """
    if np.ndim(W) != 2:
        raise ShapeMismatch(
            f"a block of weights has 2 dimensions, features x labels; this one has {np.ndim(W)}"
        )
    W = frozen(W, np.float32)
    stop = W.shape[1] if stop is None else stop
    if not prune >= 0 or keep < 0 or not 0 <= first <= stop <= W.shape[1]:
        raise ParameterError(
            f"prune {prune} and keep {keep} must not be below 0, "
            f"and labels {first} to {stop} must be some of {W.shape[1]}"
        )
    bits, limit = W.view(np.uint32), _threshold_bits(prune)
    some, above = _count(bits, first, stop, limit)
    bars, ties = np.full(stop - first, limit, np.uint32), np.zeros(stop - first, np.int64)
    if keep:
        long_labels = first + np.flatnonzero(above > keep)
        for begin in range(0, len(long_labels), RANK_LABELS):
            _rank(
                bits,
                frozen(long_labels[begin : begin + RANK_LABELS], np.int64),
                keep,
                bars,
                ties,
                first,
            )
        above = np.minimum(above, keep)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(above)])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    _fill(bits, W, first, bars, ties, indptr, indices, data)
    return csr(indptr, indices, data, W.shape[0]), frozen(some - above, np.int64)


def _threshold_bits(prune: float) -> int:
    """Return the bits of the largest float32 that is not above `prune`."""
    with np.errstate(over="ignore"):
        near = np.float32(prune)
    if float(near) > prune:
        near = np.nextafter(near, np.float32(0.0))
    return int(near.view(np.uint32))
