"""Exact top-k of models with label groups, whose biases depend on the row.

A group is scored like a label. The bias of a label for a row is its own bias, plus `share` times
the score of each of its groups, added one after the other in float64. The score of the label is the
float64 sum over its weights, as in `postings`, plus that bias.

Few groups have a high score for a row. These *lift* the bounds of their labels; `rest` is what all
others can add at most. The search is then that of any model, whose candidates get a bound with
their own groups before they are scored.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.maximum import maximum
from xcray.kernels.search.bits import float32, float64, int64
from xcray.kernels.search.bounded_scan import (
    UNLIMITED,
    SearchEngine,
    SearchOutput,
    SearchScratch,
    score_all,
)
from xcray.kernels.search.bounded_scan_wide import MAX_THRESHOLD_K
from xcray.kernels.search.choose_scan import (
    SHORT_LABELS,
    begin_row,
    end_row,
    needs_scores_of_all,
    search_narrow_row,
    search_wide_row,
)
from xcray.kernels.search.lists import NARROW_BYTES, Bytes

# share of the highest score of a size above which groups lift their labels: with a lower one more
# bounds are changed, with a higher one more labels reach the threshold
LIFTED_SHARE = 0.4


class GroupArrays(NamedTuple):
    """The arrays of label groups.

    postings: (D, G), weights of the groups by feature; bias: (G,) float32; members: (K, S) int32,
    the groups of each label; labels: (K * S,) int32, those of group g are
    labels[starts[g]:starts[g + 1]]; ends: (S,) int64, the groups of each size end before these;
    share: factor of the scores of the groups.
    """

    postings: CSR
    bias: Float32
    members: Int32
    labels: Int32
    starts: Int64
    ends: Int64
    share: float


class GroupScratch(NamedTuple):
    """Working memory of one thread, any content: scores: (G,) float64; bounds: (K,) float32."""

    scores: Float64
    bounds: Float32


@inner(allocates=False)
def add_group_postings(X: CSR, i: int, postings: CSR, sums: Float64) -> int:
    """Write x . w of row i for all groups to `sums`; return the number of postings read.

    Numbers of groups are unsigned, which spares numba a check for negative ones, a third of the
    time.
    """
    sums[:] = 0.0
    n_read: int = int64(0)
    for p in range(X.indptr[i], X.indptr[i + 1]):
        x, feature = float64(X.data[p]), X.indices[p]
        for q in range(postings.indptr[feature], postings.indptr[feature + 1]):
            sums[np.uintp(postings.indices[q])] += x * float64(postings.data[q])
        n_read += postings.indptr[feature + 1] - postings.indptr[feature]
    return n_read


@inner(allocates=False)
def lift_bounds(
    groups: GroupArrays, scratch: GroupScratch, lifted_share: float
) -> tuple[float, float]:
    """Add the lifts to the bounds, and turn the sums of the groups into scores.

    lifted_share: see LIFTED_SHARE, 1 for no lifts. Returns `rest`, and the largest |lift| or
    |score without bias| of the sizes together.
    """
    rest, largest, begin = 0.0, 0.0, int64(0)
    for end in groups.ends:
        sums, bias = scratch.scores[begin:end], groups.bias[begin:end]
        highest, size = 0.0, 0.0
        for g in range(len(sums)):
            highest = maximum(highest, sums[g])
            size = maximum(size, abs(sums[g]))
        limit = lifted_share * highest
        for g in range(len(sums)):
            if sums[g] > limit:
                lift = float32(groups.share * (sums[g] - limit))
                for p in range(groups.starts[begin + g], groups.starts[begin + g + 1]):
                    scratch.bounds[np.uintp(groups.labels[p])] += lift
        for g in range(len(sums)):
            sums[g] = groups.share * (sums[g] + float64(bias[g]))
        rest, largest, begin = rest + groups.share * limit, largest + groups.share * size, end
    return rest, largest


@numba.njit(nogil=True, cache=True)
def search_grouped_rows(
    X: CSR,
    first: int,
    stop: int,
    engine: SearchEngine,
    groups: GroupArrays,
    allowed: Bytes,
    n_allowed: int,
    budget: int,
    work: SearchScratch,
    scratch: GroupScratch,
    out: SearchOutput,
) -> None:
    """Search rows [first, stop) into the same rows of `out`; arguments as `search_narrow_rows`.

    engine: of `make_grouped_engine`. The scores of all groups are always computed; the rest of the
    budget is for the lists of the labels.
    """
    narrow, n_labels = engine.lists.width == NARROW_BYTES, len(engine.bias)
    # otherwise the scores of all labels are summed, by `scan_exact`
    few = not narrow or (n_labels > SHORT_LABELS and out.labels.shape[1] <= MAX_THRESHOLD_K)
    for i in range(first, stop):
        n_read = add_group_postings(X, i, groups.postings, scratch.scores)
        scratch.bounds[:] = engine.initial_bounds
        rest, largest = lift_bounds(groups, scratch, LIFTED_SHARE if few else 1.0)
        limit = UNLIMITED if budget < 0 else max(int64(0), budget - n_read)
        own = SearchEngine(
            engine.lists,
            engine.W,
            engine.bias,
            scratch.bounds,
            engine.bias_order,
            engine.empty_labels,
            engine.row_cost,
            engine.large_bias_labels,
            engine.max_other_bias,
            engine.min_gap,
            engine.max_abs_bias + len(groups.ends) * largest,
            groups.members,
            scratch.scores,
            rest,
        )
        row = begin_row(X, i, allowed, own, out)
        if needs_scores_of_all(row, own, n_allowed, limit):
            score_all(row, own, out)
        elif narrow:
            search_narrow_row(row, own, limit, work, out)
        else:
            search_wide_row(row, own, limit, work, out)
        end_row(out, i)
        out.postings_read[i] += n_read
