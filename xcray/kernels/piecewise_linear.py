"""Piecewise-linear interpolation with many curves at many points."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import Float64, Int32, Int64


@numba.njit(nogil=True, cache=True)
def interpolate(
    labels: Int32,
    scores: Float64,
    groups: Int64,
    bins: Int32,
    n_bins: int,
    starts: Int64,
    xs: Float64,
    ys: Float64,
) -> Float64:
    """Return curve groups[j] * n_bins + bins[labels[i, j]] at scores[i, j]: (n, k) float64.

    Curves are constant beyond their ends. labels: (n, k) int32; scores: (n, k); groups: (k,); bins:
    (K,). Curve c has the knots starts[c] to starts[c + 1] of xs and ys, xs strictly ascending.
    numpy's interpolation would be called once per curve: 13 us for five labels instead of 1.3 us.
    """
    out = np.empty(scores.shape)
    for i in range(len(scores)):
        for j in range(scores.shape[1]):
            curve, x = groups[j] * n_bins + bins[labels[i, j]], scores[i, j]
            lo, hi = starts[curve], starts[curve + 1] - 1
            if x <= xs[lo]:
                out[i, j] = ys[lo]
            elif not x < xs[hi]:
                out[i, j] = ys[hi]
            else:
                while hi - lo > 1:
                    middle = (lo + hi) // 2
                    if xs[middle] <= x:
                        lo = middle
                    else:
                        hi = middle
                out[i, j] = ys[lo] + (ys[hi] - ys[lo]) * ((x - xs[lo]) / (xs[hi] - xs[lo]))
    return out
