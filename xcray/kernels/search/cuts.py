"""Cuts of posting lists: the fewest postings for a given total of unread contributions.

A list f that is cut at c_f is read down to the weight c_f; its unread weights add at most x_f c_f
to a score. The cuts that minimise the number of postings read, subject to sum of x_f c_f <= R,
save the same number of postings per unit of R in all lists (a Lagrangian). Long lists contain a
convex curve of weights read over cuts. The segments of all curves are taken in order of what they
save per unit, until R is used up; a histogram of the savings takes the place of sorting. Lists that
have no curve are short and are not cut.
"""

from __future__ import annotations

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import bits_of, float32, float64, float_of, int64, load16
from xcray.kernels.search.lists import (
    CURVE_POINTS,
    MAX_SHARE,
    Bytes,
    PackedLists,
    Terms,
)

BUCKETS = 512  # of savings: exponent and the first bit of the mantissa of a float32
BUCKET_SHIFT = np.uint32(22)
N_SEGMENTS = CURVE_POINTS - 1
MIN_SAVED_SHARE = 0.05  # of all postings; if cuts save less, do not cut


@inner()
def plan_cuts(terms: Terms, n_terms: int, lists: PackedLists, most: float) -> Float64:
    """Return cuts c_f >= 0, (n_terms,), whose sum of x_f c_f is at most `most`.

    All are 0 if cuts leave little unread. Values of terms must be positive.
    """
    cuts = np.zeros(n_terms, np.float64)
    costs, savings = np.empty((2, n_terms, N_SEGMENTS))
    sums, buckets = np.zeros(BUCKETS, np.float64), np.empty((n_terms, N_SEGMENTS), np.int64)
    whole = 0.0
    for t in range(n_terms):
        whole += terms.n_all[t]
        if terms.curve[t] >= 0:
            read_segments(lists.blocks, terms, t, costs[t], savings[t], buckets[t], sums)
    last, left = last_bucket(sums, most)
    saved = 0.0
    for t in range(n_terms):
        if terms.curve[t] >= 0:
            for j in range(N_SEGMENTS):
                if buckets[t, j] < last or (buckets[t, j] == last and costs[t, j] > left):
                    break
                left -= costs[t, j] if buckets[t, j] == last else 0.0
                cuts[t] += costs[t, j]
                saved += savings[t, j]
            cuts[t] = min(terms.high[t], cuts[t] / terms.x[t])
    if saved < MIN_SAVED_SHARE * whole:
        cuts[:] = 0.0
    return cuts


@inner(allocates=False)
def read_segments(
    blocks: Bytes,
    terms: Terms,
    t: int,
    costs: Float64,
    savings: Float64,
    buckets: Int64,
    sums: Float64,
) -> None:
    """Write the segments of a curve, and add their costs to the sum of their bucket.

    costs: x * (cut - cut before); savings: postings above the cut before, but not above the cut.
    buckets: higher for more postings per unit; -1 after the last segment.
    """
    curve = terms.curve[t]
    cut, above = 0.0, float64(load16(blocks, curve + 2))
    for j in range(N_SEGMENTS):
        bits = load16(blocks, curve + 4 * (j + 1))
        if bits == 0:
            buckets[j:] = -1
            return
        top = float64(float_of(np.uint32(bits) << np.uint32(16)))
        share = float64(load16(blocks, curve + 4 * (j + 1) + 2))
        costs[j] = terms.x[t] * (top - cut)
        savings[j] = terms.n_all[t] * (above - share) / MAX_SHARE
        buckets[j] = int64(bits_of(float32(min(savings[j] / costs[j], 1e30))) >> BUCKET_SHIFT)
        sums[buckets[j]] += costs[j]
        cut, above = top, share


@inner(allocates=False)
def last_bucket(sums: Float64, most: float) -> tuple[int, float]:
    """Return the first bucket from above that does not fit, and what is left of `most` for it."""
    left = most
    for bucket in range(BUCKETS - 1, -1, -1):
        if sums[bucket] > left:
            return bucket, left
        left -= sums[bucket]
    return 0, left
