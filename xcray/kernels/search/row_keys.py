"""Exact scores of single labels, through rows of two bytes per feature.

`keys` are the low 16 bits of the features of each weight, in the order of the weights by label.
`segments` holds, for each label, the number of weights with features below 2**16, 2 * 2**16 and so
on, so that a key within a segment is one feature. A score reads a quarter of the bytes of a row and
the few weights that it adds; most of its time is the wait for memory.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import float64, int64

Keys = NDArray[np.uint16]
Segments = NDArray[np.uint32]

KEY_BITS = 16
CACHE_LINE_KEYS = 32
PREFETCH_KEYS = 2048  # maximum per label
WINDOW = 64  # keys that are compared together


@inner(allocates=False)
def n_bounds(n_features: int) -> int:
    """Return the number of segment bounds per label: none up to 2**16 features."""
    return (n_features - 1) >> KEY_BITS if n_features > 0 else 0


@numba.njit(nogil=True, cache=True)
def count_segments(W: CSR, first: int, stop: int, out: Segments) -> None:
    """Write the segment bounds of labels [first, stop): ((stop - first) * n_bounds,)."""
    bounds = n_bounds(W.n_cols)
    for label in range(first, stop):
        lo, hi = W.indptr[label], W.indptr[label + 1]
        p = lo
        for s in range(bounds):
            while p < hi and W.indices[p] < (s + 1) << KEY_BITS:
                p += 1
            out[(label - first) * bounds + s] = p - lo


@numba.njit(nogil=True, cache=True)
def first_mismatch(W: CSR, keys: Keys, segments: Segments) -> int:
    """Return the first label whose keys or segments are not those of W, or -1."""
    bounds = n_bounds(W.n_cols)
    for label in range(len(W.indptr) - 1):
        lo, hi = W.indptr[label], W.indptr[label + 1]
        for s in range(bounds):
            bound = int64(segments[label * bounds + s])
            if bound > hi - lo:
                return label
            if bound > 0 and W.indices[lo + bound - 1] >= (s + 1) << KEY_BITS:
                return label
            if bound < hi - lo and W.indices[lo + bound] < (s + 1) << KEY_BITS:
                return label
        for p in range(lo, hi):
            if np.uint16(W.indices[p]) != keys[p]:
                return label
    return -1


@inner(allocates=False)
def prefetch_bounds(W: CSR, segments: Segments, label: int) -> None:
    """Prefetch where the row of a label begins, and its segments."""
    prefetch(W.indptr, label)
    bounds = n_bounds(W.n_cols)
    if bounds:
        prefetch(segments, label * bounds)


@inner(allocates=False)
def prefetch_keys(W: CSR, keys: Keys, label: int) -> None:
    """Prefetch the first PREFETCH_KEYS keys of a label."""
    begin, end = W.indptr[label], W.indptr[label + 1]
    for entry in range(begin, min(end, begin + PREFETCH_KEYS), CACHE_LINE_KEYS):
        prefetch(keys, entry)


@inner(allocates=False)
def place_of(keys: Keys, begin: int, end: int, key: int) -> int:
    """Return the position of the first key in [begin, end) that is not smaller, or end."""
    while begin + WINDOW < end and keys[begin + WINDOW] <= key:
        begin += WINDOW
    if end - begin < WINDOW:
        while begin < end and keys[begin] < key:
            begin += 1
        return begin
    window = keys[begin : begin + WINDOW]
    below = np.uint16(0)
    for i in range(WINDOW):
        below = np.uint16(below + np.uint16(window[i] < np.uint16(key)))
    place: int = begin + int64(below)
    return place


@numba.njit(nogil=True, cache=True)
def find_weights(
    indices: Int32, W: CSR, keys: Keys, segments: Segments, label: int, places: Int64
) -> None:
    """Write the positions in W.data of a label's weights, and prefetch them; -1 without a weight.

    indices: (m,) features of a query. places: (m,).
    """
    bounds = n_bounds(W.n_cols)
    lo, end = int64(W.indptr[label]), int64(W.indptr[label + 1])
    begin, stop, segment = lo, end if bounds == 0 else lo, int64(-1 if bounds else 0)
    for j in range(len(indices)):
        feature = int64(indices[j])
        if feature >> KEY_BITS != segment:
            segment = feature >> KEY_BITS
            at = label * bounds + segment
            begin = lo + int64(segments[at - 1]) if segment > 0 else lo
            stop = lo + int64(segments[at]) if segment < bounds else end
        begin = place_of(keys, begin, stop, feature & 0xFFFF)
        places[j] = -1
        if begin < stop and keys[begin] == feature & 0xFFFF:
            places[j] = begin
            prefetch(W.data, begin)


@inner(allocates=False)
def sum_weights(values: Float32, data: Float32, places: Int64) -> float:
    """Return the sum of values times the weights at `places`, in their order."""
    total = 0.0
    for j in range(len(values)):
        if places[j] >= 0:
            total += float64(values[j]) * float64(data[places[j]])
    return total
