"""Exact scores of single labels: the features of a row are found among those of a label.

Most weights of a label are on features that the row does not have, and both are in ascending order.
Features are compared many at a time. A score reads the features of its label and the few weights
that it adds; most of its time is the wait for memory.
"""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import float64, int64

CACHE_LINE_FEATURES = 16
PREFETCH_FEATURES = 2048  # maximum per label
WINDOW = 16  # features that are compared together


@inner(allocates=False)
def prefetch_features(W: CSR, label: int) -> None:
    """Prefetch the first PREFETCH_FEATURES features of a label."""
    begin, end = W.indptr[label], W.indptr[label + 1]
    for entry in range(begin, min(end, begin + PREFETCH_FEATURES), CACHE_LINE_FEATURES):
        prefetch(W.indices, entry)


@inner(allocates=False)
def place_of(features: Int32, begin: int, end: int, feature: int) -> int:
    """Return the position of the first one in [begin, end) that is not smaller, or end."""
    while begin + WINDOW < end and features[begin + WINDOW] <= feature:
        begin += WINDOW
    if end - begin < WINDOW:
        while begin < end and features[begin] < feature:
            begin += 1
        return begin
    window = features[begin : begin + WINDOW]
    below = np.int32(0)
    for i in range(WINDOW):
        below = np.int32(below + np.int32(window[i] < np.int32(feature)))
    place: int = begin + int64(below)
    return place


@numba.njit(nogil=True, cache=True)
def find_weights(indices: Int32, W: CSR, label: int, places: Int64) -> None:
    """Write the positions in W.data of a label's weights, and prefetch them; -1 without a weight.

    indices: (m,) features of a query. places: (m,).
    """
    begin, end = int64(W.indptr[label]), int64(W.indptr[label + 1])
    for j in range(len(indices)):
        begin = place_of(W.indices, begin, end, int64(indices[j]))
        places[j] = -1
        if begin < end and W.indices[begin] == indices[j]:
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
