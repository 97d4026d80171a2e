"""Exact top-k: chooses the fastest method for each row."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import float64, int64
from xcray.kernels.search.bounded_scan import (
    UNLIMITED,
    QueryRow,
    SearchEngine,
    SearchOutput,
    SearchScratch,
    add_exact,
    offer_by_bias,
    read_row,
    scan,
    scan_exact,
    scan_touched,
    score_all,
    take_best,
)
from xcray.kernels.search.bounded_scan_wide import (
    MAX_TERMS,
    MAX_THRESHOLD_K,
    search_above_cuts,
    wide_search,
)
from xcray.kernels.search.lists import PREFETCH_LINES, UNIT_BYTES, Bytes, exact_list
from xcray.kernels.search.postings import sort_best_first

MAX_FLOAT32_SUM = 1e30  # larger sums can overflow float32
# from K / TOUCHED_DIVISOR postings on, visiting all labels is cheaper than recording touched ones
TOUCHED_DIVISOR = 4
# narrow lists are cut if k scores cost at most as much as n_labels / CUTS_DIVISOR postings
CUTS_DIVISOR = 8
# most labels of a model, and most postings of its rows, that are searched without a choice of the
# method, which would take longer than it saves
SHORT_LABELS, SHORT_POSTINGS = 4096, 8192
CANDIDATES_FACTOR = 4  # with more than this times n_labels postings, the other methods are faster


@numba.njit(nogil=True, cache=True)
def search_narrow_rows(
    X: CSR,
    first: int,
    stop: int,
    engine: SearchEngine,
    allowed: Bytes,
    n_allowed: int,
    budget: int,
    work: SearchScratch,
    out: SearchOutput,
) -> None:
    """Search rows [first, stop) of narrow lists into the same rows of `out`.

    k is at most the allowed labels. allowed: (K,) uint8, 1 for labels that can be returned, or
    empty for all; n_allowed: their number. budget: maximum number of postings to read per row,
    negative for no limit; k labels are always scored.
    """
    limit = budget if budget >= 0 else UNLIMITED
    for i in range(first, stop):
        row = begin_row(X, i, allowed, engine, out)
        if not search_simple_row(row, engine, n_allowed, limit, work, out):
            search_narrow_row(row, engine, limit, work, out)
        end_row(out, i)


@inner()
def search_narrow_row(
    row: QueryRow, engine: SearchEngine, limit: int, work: SearchScratch, out: SearchOutput
) -> None:
    """Search a row of narrow lists by the fastest method; its result is a heap."""
    k = out.labels.shape[1]
    if row.n_postings > limit:
        scan(row, engine, limit, work, out)
    elif not search_by_cuts(row, engine, work, out):
        if exact_cost(row, engine) < bounded_cost(row, engine, k):
            scan_exact(row, engine, work, out)
        else:
            scan(row, engine, limit, work, out)


@numba.njit(nogil=True, cache=True)
def search_wide_rows(
    X: CSR,
    first: int,
    stop: int,
    engine: SearchEngine,
    allowed: Bytes,
    n_allowed: int,
    budget: int,
    work: SearchScratch,
    out: SearchOutput,
) -> None:
    """Run `search_narrow_rows` on wide lists.

    The two are separate because each model needs one of them, and both take long to compile.
    """
    limit = budget if budget >= 0 else UNLIMITED
    for i in range(first, stop):
        row = begin_row(X, i, allowed, engine, out)
        if not search_simple_row(row, engine, n_allowed, limit, work, out):
            search_wide_row(row, engine, limit, work, out)
        end_row(out, i)


@inner()
def search_wide_row(
    row: QueryRow, engine: SearchEngine, limit: int, work: SearchScratch, out: SearchOutput
) -> None:
    """Search a row of wide lists by bounds; its result is a heap."""
    if row.n_terms <= MAX_TERMS:
        wide_search(row, engine, limit, work, out)
    else:
        scan(row, engine, limit, work, out)


@numba.njit(nogil=True, cache=True)
def search_short_rows(
    X: CSR,
    first: int,
    stop: int,
    blocks: Bytes,
    starts: NDArray[np.uint32],
    bias: Float32,
    totals: Float64,
    out: SearchOutput,
) -> int:
    """Search rows from `first` on by the weights in narrow lists; return the first row not done.

    That is `stop`, or a row with more than SHORT_POSTINGS postings. What `search_narrow_rows` needs
    for its choice, and 29 arrays instead of 13, take longer than such a row. blocks, starts: of the
    lists; totals: (K,), zero between queries.
    """
    n_labels = len(bias)
    for i in range(first, stop):
        n_postings = int64(0)
        for p in range(X.indptr[i], X.indptr[i + 1]):
            for line in range(PREFETCH_LINES):
                prefetch(blocks, int64(starts[X.indices[p]]) * UNIT_BYTES + 64 * line)
        for p in range(X.indptr[i], X.indptr[i + 1]):
            n_postings += exact_list(blocks, starts, X.indices[p], n_labels)[1]
        if n_postings > SHORT_POSTINGS:
            return i
        for p in range(X.indptr[i], X.indptr[i + 1]):
            labels, n = exact_list(blocks, starts, X.indices[p], n_labels)
            add_exact(blocks, labels, n, float64(X.data[p]), totals)
        begin_certificate(out, i)
        take_best(totals, bias, blocks[:0], out, i)
        out.postings_read[i] = n_postings
        end_row(out, i)
    return stop


@inner()
def begin_row(X: CSR, i: int, allowed: Bytes, engine: SearchEngine, out: SearchOutput) -> QueryRow:
    """Return row i of X, and initialise its certificate."""
    begin_certificate(out, i)
    return read_row(X, i, allowed, engine)


@inner(allocates=False)
def begin_certificate(out: SearchOutput, i: int) -> None:
    """Initialise the certificate of row i."""
    out.exact[i], out.labels_scored[i], out.postings_read[i], out.runner_up[i] = True, 0, 0, -np.inf


@inner(allocates=False)
def end_row(out: SearchOutput, i: int) -> None:
    """Turn the heap of row i into a list, best first, and its runner-up into the gap."""
    sort_best_first(out.labels[i], out.scores[i])
    # bias-only scores count too
    out.labels_scored[i] = max(out.labels_scored[i], out.labels.shape[1])
    runner_up = out.runner_up[i]
    out.runner_up[i] = (
        out.scores[i, out.scores.shape[1] - 1] - runner_up if np.isfinite(runner_up) else 0.0
    )


@inner()
def search_simple_row(
    row: QueryRow,
    engine: SearchEngine,
    n_allowed: int,
    limit: int,
    work: SearchScratch,
    out: SearchOutput,
) -> bool:
    """Search a row that needs no bounds, by a method of both kinds of lists; its result is a heap.

    Returns False if the row is not of this kind.
    """
    # otherwise a label that no list touches can have weights
    lists_complete = engine.lists.dropped_below == 0.0
    if row.n_terms == 0 and (lists_complete or not row.values.any()):
        offer_by_bias(row, engine.bias_order, engine.bias, work.seen[:0], out, int64(0))
    elif needs_scores_of_all(row, engine, n_allowed, limit):
        score_all(row, engine, out)
    elif (
        row.n_postings * TOUCHED_DIVISOR < len(engine.bias)
        and row.n_postings <= limit
        and row.n_dense == 0
        and lists_complete
    ):
        scan_touched(row, engine, work, out)
    else:
        return False
    return True


@inner(allocates=False)
def needs_scores_of_all(row: QueryRow, engine: SearchEngine, n_allowed: int, limit: int) -> bool:
    """Return whether sums can overflow float32, or few labels are allowed."""
    return not row.max_sum < MAX_FLOAT32_SUM or n_allowed * engine.row_cost < min(
        row.n_postings, limit
    )


@inner()
def search_by_cuts(
    row: QueryRow, engine: SearchEngine, work: SearchScratch, out: SearchOutput
) -> bool:
    """Run `search_above_cuts` if scores of k labels are cheap, compared with bounds of all labels.

    Returns False if another method should be used.
    """
    k, n_labels = out.labels.shape[1], len(engine.bias)
    if k > MAX_THRESHOLD_K or not row.positive or row.n_terms > MAX_TERMS:
        return False
    if CUTS_DIVISOR * k * engine.row_cost > n_labels:
        return False
    max_candidates = int64(CANDIDATES_FACTOR * n_labels / engine.row_cost)
    return bool(search_above_cuts(row, engine, max_candidates, work, out))


@inner(allocates=False)
def exact_cost(row: QueryRow, engine: SearchEngine) -> float:
    """Return the cost of reading all weights of narrow lists, in postings."""
    return row.n_postings + 0.5 * len(engine.bias) + 0.35 * engine.members.size


@inner(allocates=False)
def bounded_cost(row: QueryRow, engine: SearchEngine, k: int) -> float:
    """Return the cost of bounds of all labels and scores of the best, in postings."""
    n_labels = len(engine.bias)
    cost = (
        0.7 * row.n_postings
        + row.n_dense * (0.08 * n_labels)
        + 0.3 * n_labels
        + engine.row_cost * (1.5 * k + 4)
    )
    for t in range(row.n_terms):
        if row.terms.dense[t] >= 0:
            cost -= 0.7 * (row.terms.n_all[t] - row.terms.n_clipped[t])
    return cost
