"""Exact top-k of models with label groups, whose biases depend on the row.

A group is scored like a label. The bias of a label for a row is its own bias, plus `share` times
the score of each of its groups, added one after the other in float64. The score of the label is the
float64 sum over its weights, as in `postings`, plus that bias.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.search.bits import float64, int64
from xcray.kernels.search.bounded_scan import (
    UNLIMITED,
    SearchEngine,
    SearchOutput,
    SearchScratch,
    scan,
    scan_exact,
    score_all,
)
from xcray.kernels.search.choose_scan import (
    MAX_FLOAT32_SUM,
    begin_row,
    bounded_cost,
    end_row,
    exact_cost,
)
from xcray.kernels.search.lists import NARROW_BYTES, Bytes


class GroupArrays(NamedTuple):
    """The arrays of label groups.

    postings: (D, G), weights of the groups by feature; bias: (G,) float32; members: (K, S) int32,
    the groups of each label; share: factor of the scores of the groups.
    """

    postings: CSR
    bias: Float32
    members: Int32
    share: float


class GroupScratch(NamedTuple):
    """Working memory of one thread; any content.

    scores: (G,) float64, share times the scores of the groups; biases: (K,) float64, of the row;
    bounds: (K,) float32, the same.
    """

    scores: Float64
    biases: Float64
    bounds: Float32


@inner(allocates=False)
def add_group_scores(
    X: CSR, i: int, bias: Float32, groups: GroupArrays, scratch: GroupScratch
) -> tuple[int, float]:
    """Write the biases of row i; return the number of postings read, and a bound of all |score|.

    The bound is of the scores of the label's groups together. Numbers of groups are unsigned, which
    spares numba a check for negative ones, a third of the time.
    """
    scores, biases, postings = scratch.scores, scratch.biases, groups.postings
    scores[:] = 0.0
    n_read, n_sizes = int64(0), groups.members.shape[1]
    for p in range(X.indptr[i], X.indptr[i + 1]):
        x, feature = float64(X.data[p]), X.indices[p]
        for q in range(postings.indptr[feature], postings.indptr[feature + 1]):
            scores[np.uintp(postings.indices[q])] += x * float64(postings.data[q])
        n_read += postings.indptr[feature + 1] - postings.indptr[feature]
    largest = 0.0
    for g in range(len(scores)):
        scores[g] = groups.share * (scores[g] + float64(groups.bias[g]))
        largest = max(largest, abs(scores[g]))
    for label in range(len(biases)):
        total = float64(bias[label])
        for s in range(n_sizes):
            total += scores[np.uintp(groups.members[label, s])]
        biases[label] = total
        scratch.bounds[label] = total
    return n_read, n_sizes * largest


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

    Every label has a score of its own, also without a weight on a feature of the row, so that all
    labels are visited. The scores of all groups are always computed; the rest of the budget is for
    the lists of the labels.
    """
    k, narrow = out.labels.shape[1], engine.lists.width == NARROW_BYTES
    for i in range(first, stop):
        n_read, largest = add_group_scores(X, i, engine.bias, groups, scratch)
        limit = UNLIMITED if budget < 0 else max(int64(0), budget - n_read - len(engine.bias))
        own = SearchEngine(
            engine.lists,
            engine.W,
            scratch.biases,  # type: ignore[arg-type]  # of a row they are float64
            scratch.bounds,
            engine.bias_order[:0],
            engine.bias_order[:0],
            engine.row_cost,
            engine.bias_order[:0],
            engine.max_other_bias,
            engine.min_gap,
            engine.max_abs_bias + largest,
        )
        row = begin_row(X, i, own, out)
        if not row.max_sum < MAX_FLOAT32_SUM or n_allowed * engine.row_cost < min(
            row.n_postings, limit
        ):
            score_all(row, own, allowed, out, i)
        elif (
            narrow and row.n_postings <= limit and exact_cost(row, own) < bounded_cost(row, own, k)
        ):
            scan_exact(row, own, allowed, work, out, i)
        else:
            scan(row, own, allowed, limit, work, out, i)
        end_row(out, i)
        out.postings_read[i] += n_read
