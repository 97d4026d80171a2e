"""A dense block of weights as sparse rows of labels: small weights dropped, or all but the largest of each label.

The block is read in its own order, a feature a row, a few times; beside it and the result there are 24 bytes a label and half
a megabyte. A weight's size is compared by its bits: those of a float32 without its sign ascend with it, NaN beyond infinity.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Int32, Int64, csr, frozen
from xcray.errors import ParameterError, ShapeMismatch

UInt32 = NDArray[np.uint32]

SIZE = np.uint32(0x7FFFFFFF)  # all bits but the sign
STRIP = (
    256  # labels that are filled side by side: each has a cache line of its own that is written to
)
RANKED = 64  # labels that are ranked side by side: their counts stay in the second cache
DIGITS = (
    (20, 11),
    (10, 10),
    (0, 10),
)  # (shift, bits): the size of a weight, its leading bits first


@numba.njit(nogil=True, cache=True)
def _count(bits: UInt32, first: int, stop: int, limit: int) -> tuple[Int64, Int64]:
    """Weights of labels [first, stop) that are not zero, and those larger than the float32 whose bits are `limit`."""
    some, above = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.int64)
    bar = np.uint32(limit)
    for f in range(bits.shape[0]):
        row = bits[f, first:stop]
        for j in range(len(row)):
            size = row[j] & SIZE
            some[j] += size != 0
            above[j] += size > bar
    return some, above


@numba.njit(nogil=True, cache=True)
def _rank(bits: UInt32, labels: Int64, keep: int, bars: UInt32, ties: Int64, first: int) -> None:
    """For each of a few labels, which have more than `keep` weights above their bar: the size of the keep-th largest as the new
    bar, and how many weights of just this size are among the largest. bars and ties count from label `first`.
    """
    prefix, rest = np.zeros(len(labels), np.uint32), np.full(len(labels), keep, np.int64)
    counts = np.empty((len(labels), 1 << 11), np.int32)
    for shift, width in DIGITS:
        counts[:] = 0
        mask, above = np.uint32((1 << width) - 1), np.uint32(shift + width)
        for f in range(bits.shape[0]):
            for c in range(len(labels)):
                size = bits[f, labels[c]] & SIZE
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
    """Weights above their label's bar, and the first `ties` of just its size, go to the label's row; ties is used up."""
    n = len(bars)
    cursors = indptr[:n].copy()
    for begin in range(0, n, STRIP):
        end = min(begin + STRIP, n)
        for f in range(bits.shape[0]):
            for j in range(begin, end):
                size = bits[f, first + j] & SIZE
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
    """The weights of a dense block by label, without the small ones: CSR ((stop - first) x D) of float32, and what was lost.

    W: (D, n) float32, a row a feature, C-contiguous (other arrays are copied). prune: weights of at most this size are dropped, 0
    drops zeros alone. keep: of the others, at most so many of each label stay, the largest, equal ones by lower feature; 0
    keeps all. first, stop: a range of labels, all by default, for results that had better be made piece by piece.
    Features ascend in each row. The second array, (stop - first,) int64, says how many weights other than 0 each label lost.
    Values that are not finite count as the largest and stay, for whoever checks the model to see. Takes W's memory, the
    result's, and little more. Raises ParameterError, ShapeMismatch.
    """
    if np.ndim(W) != 2:
        raise ShapeMismatch(
            f"a block of weights has 2 dimensions, features x labels; this one has {np.ndim(W)}"
        )
    W = frozen(W, np.float32)
    stop = W.shape[1] if stop is None else stop
    if not prune >= 0 or keep < 0 or not 0 <= first <= stop <= W.shape[1]:
        raise ParameterError(
            f"prune {prune} and keep {keep} must not be below 0, and labels {first} to {stop} must be some of {W.shape[1]}"
        )
    bits, limit = W.view(np.uint32), _limit(prune)
    some, above = _count(bits, first, stop, limit)
    bars, ties = np.full(stop - first, limit, np.uint32), np.zeros(stop - first, np.int64)
    if keep:
        crowded = first + np.flatnonzero(above > keep)
        for begin in range(0, len(crowded), RANKED):
            _rank(bits, frozen(crowded[begin : begin + RANKED], np.int64), keep, bars, ties, first)
        above = np.minimum(above, keep)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(above)])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    _fill(bits, W, first, bars, ties, indptr, indices, data)
    return csr(indptr, indices, data, W.shape[0]), frozen(some - above, np.int64)


def _limit(prune: float) -> int:
    """The bits of the largest float32 that is not above `prune`."""
    with np.errstate(over="ignore"):
        near = np.float32(prune)
    if float(near) > prune:
        near = np.nextafter(near, np.float32(0.0))
    return int(near.view(np.uint32))
