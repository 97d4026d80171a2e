"""Exact top-k by bounds and rescoring (family of MaxScore and WAND).

Packed lists give upper bounds of the scores; the weights by label give the exact scores. All sums
of bounds are float32 with an allowance for rounding. Results are float64 scores in the only order
of `postings`: features ascending, then + bias. A label is left out only if its bound is below the
k-th score found.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import float32, float64, float_of, int64, load16, load32
from xcray.kernels.search.lists import (
    NARROW_BYTES,
    RANGE_ENTRY_BYTES,
    RANGE_LABELS,
    WEIGHT_BYTES,
    Bytes,
    PackedLists,
    Terms,
    chunk_count,
    chunk_shift,
    chunk_start,
    floor_at,
    label_mask,
    n_ranges,
    new_terms,
    read_terms,
    top_at,
)
from xcray.kernels.search.postings import beats, offer, sort_best_first
from xcray.kernels.search.row_weights import find_weights, prefetch_features, sum_weights

ROUNDING = 2.0**-23  # twice the relative rounding error of float32
MIN_NORMAL = 1e-36  # smaller float32 lose digits
# number of best bounds that are rescored before the others are filtered again
FIRST_RESCORED = 48
LABELS_AHEAD = 3  # labels whose features are prefetched
RESCORED_MARK = 4  # added to `seen` of these labels
CHECK_LABELS = 64  # labels that are checked together
UNLIMITED: int = int64(1 << 60)  # a budget
ROW_COST = 4  # entries of a row that take as long as one posting


class SearchEngine(NamedTuple):
    """Data that a search reads.

    W: (K, D) by label; bias: (K,) float32; initial_bounds: (K,) float32, the bias, but -inf for
    labels without weights; bias_order: (K,) int32, labels by descending bias, ties by number;
    empty_labels: int32, labels without weights in that order; row_cost: number of postings that can
    be read in the time needed to score a likely label. large_bias_labels: int32, labels with
    weights and an unusually large bias; max_other_bias: float32, the largest bias of all other
    labels with weights; min_gap: distance of the k-th score from it from which cuts of narrow lists
    pay; max_abs_bias: the largest |bias|.

    With label groups, of one row: members: (K, S) int32, the groups of each label; group_scores:
    (G,) float64, added to the biases of their labels; initial_bounds + rest: bounds of the sums, of
    all labels; rest: at least 0. empty_labels and large_bias_labels are empty, a few of
    initial_bounds can exceed max_other_bias, and max_abs_bias is a bound of all partial sums.
    Without groups S = G = rest = 0.
    """

    lists: PackedLists
    W: CSR
    bias: Float32
    initial_bounds: Float32
    bias_order: Int32
    empty_labels: Int32
    row_cost: float
    large_bias_labels: Int32
    max_other_bias: float
    min_gap: float
    max_abs_bias: float
    members: Int32
    group_scores: Float64
    rest: float


class SearchScratch(NamedTuple):
    """Working memory of one thread.

    sums: (K,) float32, any content; totals: (K,) float64, tally: (K,) int16 and seen: (K,) uint8,
    zero between queries; touched: (K + 1,) int32, candidates: (K,) int32, bounds: (K,) float64, any
    content. totals is empty for wide lists.
    """

    sums: Float32
    totals: Float64
    tally: NDArray[np.int16]
    seen: Bytes
    touched: Int32
    candidates: Int32
    bounds: Float64


class SearchOutput(NamedTuple):
    """Search results.

    labels: (n, k) int32; scores: (n, k) float64; exact: (n,) bool; labels_scored, postings_read:
    (n,) int64. runner_up: (n,) float64, during a search an upper bound of the scores of all labels
    outside the k; afterwards the k-th score minus that, or 0 if there are no other labels.
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float64]
    exact: NDArray[np.bool_]
    labels_scored: Int64
    postings_read: Int64
    runner_up: Float64


class QueryRow(NamedTuple):
    """A query: row `number` of the results.

    allowed: (K,) uint8, 1 for labels that can be returned, or empty for all. indices: (m,) int32,
    ascending; values: (m,) float32; places: (2, m) int64, scratch memory of scores; terms, n_terms:
    see `Terms`; n_postings: weights of all its features; n_dense: features that are dense or split;
    positive: whether no value is negative; dropped: maximum contribution of the weights left out of
    the lists, and of groups left out of the bounds; max_sum: bound of all partial sums, the largest
    |bias| and |x| times the largest |weight| of each term.
    """

    number: int
    allowed: Bytes
    indices: Int32
    values: Float32
    places: NDArray[np.int64]
    terms: Terms
    n_terms: int
    n_postings: int
    n_dense: int
    positive: bool
    dropped: float
    max_sum: float


@inner()
def read_row(X: CSR, i: int, allowed: Bytes, engine: SearchEngine) -> QueryRow:
    """Return row i of X with the terms of its features, for a search of allowed labels."""
    lo, hi = X.indptr[i], X.indptr[i + 1]
    indices, values, lists = X.indices[lo:hi], X.data[lo:hi], engine.lists
    terms = new_terms(hi - lo)
    n = read_terms(indices, values, lists, terms)
    reach, n_dense, positive, most = int64(0), 0, True, float64(engine.max_abs_bias)
    for t in range(n):
        reach += terms.n_all[t]
        n_dense += terms.dense[t] >= 0
        most += abs(terms.x[t]) * max(terms.high[t], -terms.low[t])
    hidden = float64(engine.rest)
    for value in values:
        positive &= value >= 0
        hidden -= min(0.0, float64(value)) * lists.dropped_below
    places = np.empty((2, hi - lo), np.int64)
    return QueryRow(
        i, allowed, indices, values, places, terms, n, reach, n_dense, positive, hidden, most
    )


@inner(allocates=False)
def bias_of(engine: SearchEngine, label: int) -> float:
    """Return the bias of a label: its own, then the scores of its groups, in float64."""
    total = float64(engine.bias[label])
    for s in range(engine.members.shape[1]):
        # unsigned: spares numba a check for negative numbers, a third of the time
        total += engine.group_scores[np.uintp(engine.members[label, s])]
    return float(total)


@inner(allocates=False)
def find(row: QueryRow, engine: SearchEngine, label: int, turn: int) -> None:
    """Find the weights of a label, for `score_found` with the same turn."""
    find_weights(row.indices, engine.W, label, row.places[turn & 1])


@inner(allocates=False)
def score_found(row: QueryRow, engine: SearchEngine, label: int, turn: int) -> float:
    """Return x . w + bias of a label whose weights have been found."""
    total = sum_weights(row.values, engine.W.data, row.places[turn & 1])
    return total + bias_of(engine, label)


@inner(allocates=False)
def score(row: QueryRow, engine: SearchEngine, label: int) -> float:
    """Return x . w + bias of one label, bit-identical to a loop over all features."""
    find(row, engine, label, int64(0))
    return score_found(row, engine, label, int64(0))


@inner(allocates=False)
def add_list(blocks: Bytes, tops: int, n: int, width: int, x: float, sums: Float32) -> None:
    """Add x times the bound of its chunk to the sum of each label of a list."""
    shift = chunk_shift(n)
    chunks = chunk_count(n, shift)
    place = tops + 2 * (chunks + 1)
    mask = label_mask(width)
    for chunk in range(chunks):
        value = float32(x) * (
            top_at(blocks, tops, chunk) if x > 0 else floor_at(blocks, tops, chunk, chunks)
        )
        for _j in range(min(n, chunk_start(chunk + 1, shift)) - chunk_start(chunk, shift)):
            sums[load32(blocks, place) & mask] += value
            place += width


@inner(allocates=False)
def add_split(lists: PackedLists, terms: Terms, t: int, sums: Float32) -> None:
    """Run `add_list` on a list that is split by ranges of labels."""
    for r in range(n_ranges(lists.n_labels)):
        place = terms.dense[t] + RANGE_ENTRY_BYTES * r
        n = int64(load32(lists.blocks, place + 4))
        if n:
            add_list(
                lists.blocks,
                terms.all[t] + int64(load32(lists.blocks, place)),
                n,
                int64(2),
                terms.x[t],
                sums[r * RANGE_LABELS :],
            )


@inner(allocates=False)
def add_dense(lists: PackedLists, terms: Terms, which: Int64, sums: Float32) -> None:
    """Add x * step * code of dense terms to all labels, four terms at a time."""
    n = lists.n_labels
    at, stop = 0, len(which)
    while at + 4 <= stop:
        a, b, c, d = which[at], which[at + 1], which[at + 2], which[at + 3]
        add_four(
            lists.blocks[terms.dense[a] : terms.dense[a] + n],
            lists.blocks[terms.dense[b] : terms.dense[b] + n],
            lists.blocks[terms.dense[c] : terms.dense[c] + n],
            lists.blocks[terms.dense[d] : terms.dense[d] + n],
            float32(terms.x[a] * terms.step[a]),
            float32(terms.x[b] * terms.step[b]),
            float32(terms.x[c] * terms.step[c]),
            float32(terms.x[d] * terms.step[d]),
            sums,
        )
        at += 4
    while at < stop:
        t = which[at]
        codes, factor = (
            lists.blocks[terms.dense[t] : terms.dense[t] + n],
            float32(terms.x[t] * terms.step[t]),
        )
        for label in range(n):
            sums[label] += factor * float32(codes[label])
        at += 1


@inner(allocates=False)
def add_four(
    a: Bytes, b: Bytes, c: Bytes, d: Bytes, p: float, q: float, r: float, s: float, sums: Float32
) -> None:
    """Add p a + q b + r c + s d to sums."""
    for label in range(len(sums)):
        sums[label] += (p * float32(a[label]) + q * float32(b[label])) + (
            r * float32(c[label]) + s * float32(d[label])
        )


@inner()
def initialise_sums(start: Float32, allowed: Bytes, sums: Float32) -> None:
    """Initialise sums to the biases, or -inf for labels that are not allowed.

    allowed: (K,), or empty for all.
    """
    if len(allowed) == 0:
        sums[:] = start
        return
    for label in range(len(sums)):
        sums[label] = start[label] if allowed[label] else float32(-np.inf)


@inner(allocates=False)
def best_bounds(sums: Float32 | Float64, labels: Int32, bounds: Float64) -> int:
    """Select the labels of the largest sums, best first, ties by label; return their number."""
    size: int = int64(0)
    most = len(labels)
    worst = sums.dtype.type(-np.inf)
    n = len(sums)
    for begin in range(0, n, CHECK_LABELS):
        part = sums[begin : min(begin + CHECK_LABELS, n)]
        better = np.int32(0)
        for i in range(len(part)):
            better += np.int32(part[i] > worst)
        if better == 0:
            continue
        for i in range(len(part)):
            if part[i] > worst:
                size = offer(labels, bounds, size, begin + i, float64(part[i]))
                if size == most:
                    worst = sums.dtype.type(bounds[0])
    sort_best_first(labels[:size], bounds[:size])
    return size


@inner(allocates=False)
def labels_above(sums: Float32, least: float, labels: Int32, bounds: Float64) -> int:
    """Select all labels whose sum is at least `least`; return their number."""
    count: int = int64(0)
    n = len(sums)
    bar = float32(least)
    for begin in range(0, n, CHECK_LABELS):
        part = sums[begin : min(begin + CHECK_LABELS, n)]
        good = np.int32(0)
        for i in range(len(part)):
            good += np.int32(part[i] >= bar)
        if good == 0:
            continue
        for i in range(len(part)):
            if part[i] >= bar:
                labels[count], bounds[count] = begin + i, part[i]
                count += 1
    return count


@inner(allocates=False)
def offer_label(out: SearchOutput, i: int, size: int, label: int, value: float) -> int:
    """Offer a label to the heap of row i; return its size.

    The label that loses updates the runner-up.
    """
    labels, scores = out.labels[i], out.scores[i]
    if size == len(labels):
        out.runner_up[i] = max(out.runner_up[i], min(value, scores[0]))
    return offer(labels, scores, size, label, value)


@inner(allocates=False)
def offer_by_bias(
    row: QueryRow, listed: Int32, bias: Float32, skip: Bytes, out: SearchOutput, size: int
) -> int:
    """Offer labels whose score is their bias, best first, until one is not good enough.

    skip: (K,), non-zero for labels to leave out, or empty.
    """
    for number in listed:
        label = int64(number)
        if (len(skip) and skip[label]) or (len(row.allowed) and not row.allowed[label]):
            continue
        # 0.0 +: an empty sum, so that a bias of -0.0 gives the same bits
        value = 0.0 + float64(bias[label])
        full = size == out.labels.shape[1]
        size = offer_label(out, row.number, size, label, value)
        if full and out.runner_up[row.number] >= value:
            break
    return size


@inner(allocates=False)
def rescore(
    row: QueryRow,
    engine: SearchEngine,
    chosen: Int32,
    bounds: Float64,
    more: float,
    n: int,
    budget: int,
    out: SearchOutput,
    size: int,
) -> int:
    """Score labels in order of descending bounds until no other can be among the best.

    Returns the size of the heap. bounds + more: upper bounds of the scores. budget: entries of rows
    that can be read. Counters in `out` are updated.
    """
    i = row.number
    labels, scores = out.labels[i], out.scores[i]
    found = int64(0)
    for c in range(min(n, FIRST_RESCORED)):
        prefetch(engine.W.indptr, int64(chosen[c]))
    for c in range(min(n, LABELS_AHEAD)):
        prefetch_features(engine.W, int64(chosen[c]))
    for c in range(n):
        label, bound = int64(chosen[c]), bounds[c] + more
        if size == len(labels) and (bound < scores[0] or budget <= 0):
            out.runner_up[i] = max(out.runner_up[i], bound)
            out.exact[i] &= bound < scores[0]
            break
        if c + LABELS_AHEAD < n:
            prefetch_features(engine.W, int64(chosen[c + LABELS_AHEAD]))
        # the weights of the next labels arrive while this one is added
        while found < min(n, c + 2) and (
            found == c or size < len(labels) or bounds[found] + more >= scores[0]
        ):
            find(row, engine, int64(chosen[found]), found)
            found += 1
        size = offer_label(out, i, size, label, score_found(row, engine, label, c))
        out.labels_scored[i] += 1
        budget -= (engine.W.indptr[label + 1] - engine.W.indptr[label]) // ROW_COST + 50
    return size


@inner(allocates=False)
def rounding_slack(row: QueryRow) -> float:
    """Return the maximum error of a bound.

    That is the rounding of n_terms float32 additions, none larger than the maximum score, and the
    contribution of weights left out of the lists.
    """
    return row.max_sum * (row.n_terms + 4) * ROUNDING + MIN_NORMAL + row.dropped


@inner(allocates=False)
def max_contribution(row: QueryRow, t: int) -> float:
    """Return the maximum contribution of a term to a score."""
    x = row.terms.x[t]
    most: float = x * row.terms.high[t] if x > 0 else -x * -row.terms.low[t]
    return most


@inner()
def add_terms(row: QueryRow, lists: PackedLists, budget: int, sums: Float32) -> tuple[float, int]:
    """Add all terms to the sums; return (correction of the bounds, postings read).

    Terms beyond the budget are not read.
    """
    terms, more, left = row.terms, rounding_slack(row), budget
    which = np.empty(row.n_terms, np.int64)
    n_dense = 0
    narrow = lists.width == NARROW_BYTES
    for t in range(row.n_terms):
        special = terms.dense[t] >= 0
        cost = terms.n_clipped[t] + (lists.n_labels >> 3) if special and narrow else terms.n_all[t]
        if cost > left:
            more += max_contribution(row, t)
            continue
        left -= cost
        if special and not narrow:
            add_split(lists, terms, t, sums)
            continue
        if special:
            which[n_dense] = t
            n_dense += 1
            more += terms.x[t] * terms.lo[t] + abs(terms.x[t]) * terms.step[t] * 0.500001
            clipped = terms.dense[t] + lists.n_labels
            add_list(lists.blocks, clipped, terms.n_clipped[t], lists.width, terms.x[t], sums)
            continue
        add_list(lists.blocks, terms.tops[t], terms.n[t], lists.width, terms.x[t], sums)
    if n_dense:
        add_dense(lists, terms, which[:n_dense], sums)
    return more, budget - left


@inner(allocates=False)
def keep_closer(
    engine: SearchEngine, work: SearchScratch, first: int, end: int, least: float
) -> int:
    """Bound the candidates [first, end) with the scores of their groups, for models with groups.

    Those whose bound stays at least `least` are kept. Returns their end.
    """
    if engine.members.shape[1] == 0:
        return end
    for c in range(first, end):
        label, bound = work.candidates[c], work.bounds[c]
        bound += bias_of(engine, label) - float64(engine.initial_bounds[label]) - engine.rest
        if bound >= least:
            work.candidates[first], work.bounds[first] = label, bound
            first += 1
    return first


@inner()
def rescore_candidates(
    row: QueryRow,
    engine: SearchEngine,
    work: SearchScratch,
    n: int,
    more: float,
    budget: int,
    out: SearchOutput,
    size: int,
) -> int:
    """Score the n candidates that are not seen yet, best bounds first; return the heap's size.

    Many candidates are not sorted as a whole, because the scores of the FIRST_RESCORED best usually
    exclude all others.
    """
    if n == 0:
        return size
    i, k, kept = row.number, out.labels.shape[1], int64(0)
    room = min(n, max(FIRST_RESCORED, 2 * k))
    first, best = np.empty(room, np.int32), np.empty(room, np.float64)
    for c in range(n):
        label, bound = work.candidates[c], work.bounds[c]
        if not work.seen[label] and (kept < room or bound > best[0]):
            kept = offer(first, best, kept, int64(label), bound)
    sort_best_first(first[:kept], best[:kept])
    size = rescore(row, engine, first, best, more, kept, budget, out, size)
    if kept < room or not out.exact[i] or (size == k and best[kept - 1] + more < out.scores[i, 0]):
        return size
    for c in range(kept):
        work.seen[first[c]] += RESCORED_MARK
    others = int64(0)
    for c in range(n):
        label, bound = work.candidates[c], work.bounds[c]
        if not work.seen[label] and (size < k or bound + more >= out.scores[i, 0]):
            work.candidates[others], work.bounds[others] = label, bound
            others += 1
        elif not work.seen[label]:
            out.runner_up[i] = max(out.runner_up[i], bound + more)
    order = np.argsort(-work.bounds[:others])
    size = rescore(
        row,
        engine,
        work.candidates[:others][order],
        work.bounds[:others][order],
        more,
        others,
        budget,
        out,
        size,
    )
    for c in range(kept):
        work.seen[first[c]] -= RESCORED_MARK
    return size


@numba.njit(nogil=True, cache=True)
def scan(
    row: QueryRow, engine: SearchEngine, budget: int, work: SearchScratch, out: SearchOutput
) -> None:
    """Compute bounds of all labels from all lists, then score the best of them."""
    i, k, sums = row.number, out.labels.shape[1], work.sums
    scores = out.scores[i]
    size = offer_by_bias(row, engine.empty_labels, engine.bias, work.seen[:0], out, int64(0))
    initialise_sums(engine.initial_bounds, row.allowed, sums)
    more, read = add_terms(row, engine.lists, budget, sums)
    out.postings_read[i] += read
    room = min(len(sums), k + max(8, k >> 2))
    first, bounds = np.empty(room, np.int32), np.empty(room, np.float64)
    n = best_bounds(sums, first, bounds)
    size = rescore(row, engine, first, bounds, more, n, budget - read, out, size)
    if n < room or not out.exact[i] or (size == k and bounds[n - 1] + more < scores[0]):
        if n == room:
            out.runner_up[i] = max(out.runner_up[i], bounds[n - 1] + more)
        return
    for c in range(n):
        work.seen[first[c]] = 1
    bar = scores[0] - more if size == k else -np.inf
    bar -= abs(bar) * ROUNDING + MIN_NORMAL
    others = labels_above(sums, bar, work.candidates, work.bounds)
    others = keep_closer(engine, work, int64(0), others, bar)
    out.runner_up[i] = max(out.runner_up[i], bar + more)
    rescore_candidates(row, engine, work, others, more, budget - read, out, size)
    for c in range(n):
        work.seen[first[c]] = 0


@inner(allocates=False)
def add_touched_bounds(
    row: QueryRow, engine: SearchEngine, work: SearchScratch
) -> tuple[int, float]:
    """Compute bounds of the labels that a feature of the row touches.

    Returns their number, and the correction of the sums. No term can be dense.
    """
    lists, terms = engine.lists, row.terms
    n, more = 0, rounding_slack(row)
    mask = label_mask(lists.width)
    for t in range(row.n_terms):
        count, x = terms.n_chunks[t], float32(terms.x[t])
        place = terms.tops[t] + 2 * (count + 1)
        for chunk in range(count):
            value = x * (
                top_at(lists.blocks, terms.tops[t], chunk)
                if x > 0
                else floor_at(lists.blocks, terms.tops[t], chunk, count)
            )
            for _j in range(
                chunk_start(chunk, terms.shift[t]),
                min(terms.n[t], chunk_start(chunk + 1, terms.shift[t])),
            ):
                label = load32(lists.blocks, place) & mask
                place += lists.width
                if not work.seen[label]:
                    work.seen[label] = 1
                    work.touched[n] = label
                    work.sums[label] = engine.bias[label]
                    n += 1
                work.sums[label] += value
    return n, more


@inner(allocates=False)
def scan_touched(
    row: QueryRow, engine: SearchEngine, work: SearchScratch, out: SearchOutput
) -> None:
    """Run `scan` for few postings: untouched labels have their bias as score."""
    n, more = add_touched_bounds(row, engine, work)
    out.postings_read[row.number] += row.n_postings
    size = offer_by_bias(row, engine.bias_order, engine.bias, work.seen, out, int64(0))
    work.seen[work.touched[:n]] = 0
    kept = int64(0)
    for t in range(n):
        label = work.touched[t]
        if len(row.allowed) == 0 or row.allowed[label]:
            work.candidates[kept], work.bounds[kept] = label, work.sums[label]
            kept += 1
    rescore_candidates(row, engine, work, kept, more, UNLIMITED, out, size)


@inner()
def scan_exact(row: QueryRow, engine: SearchEngine, work: SearchScratch, out: SearchOutput) -> None:
    """Compute the scores of all labels from the weights in narrow lists."""
    terms, totals = row.terms, work.totals
    for t in range(row.n_terms):
        add_exact(engine.lists.blocks, terms.all[t], terms.n_all[t], terms.x[t], totals)
    if engine.members.shape[1] == 0:
        take_best(totals, engine.bias, row.allowed, out, row.number)
    else:
        for label in range(len(totals)):
            work.bounds[label] = bias_of(engine, label)
        take_best(totals, work.bounds, row.allowed, out, row.number)
    out.postings_read[row.number] += row.n_postings


@inner(allocates=False)
def add_exact(blocks: Bytes, labels: int, n: int, x: float, totals: Float64) -> None:
    """Add x times the n weights behind the labels of a narrow list to the totals."""
    weights = labels + NARROW_BYTES * n
    for j in range(n):
        totals[load16(blocks, labels + NARROW_BYTES * j)] += x * float64(
            float_of(load32(blocks, weights + WEIGHT_BYTES * j))
        )


@inner()
def take_best(
    totals: Float64, bias: Float32 | Float64, allowed: Bytes, out: SearchOutput, i: int
) -> None:
    """Write the best labels of totals + bias to row i, worst first, and reset the totals."""
    k = out.labels.shape[1]
    for label in range(len(totals)):
        totals[label] += float64(bias[label])
    if len(allowed):
        for label in range(len(totals)):
            totals[label] = totals[label] if allowed[label] else -np.inf
    best, scores = (
        np.empty(k + 1, np.int32),
        np.empty(k + 1, np.float64),
    )  # k + 1: with the runner-up
    size = best_bounds(totals, best, scores)
    totals[:] = 0.0
    if size > k:
        out.runner_up[i] = max(out.runner_up[i], scores[k])
    for c in range(k):
        # worst first: a heap
        out.labels[i, k - 1 - c], out.scores[i, k - 1 - c] = best[c], scores[c]
    out.labels_scored[i] += len(totals)


@numba.njit(nogil=True, cache=True)
def score_all(row: QueryRow, engine: SearchEngine, out: SearchOutput) -> None:
    """Score every allowed label.

    For numbers beyond float32, and for short lists of allowed labels.
    """
    size = int64(0)
    for label in range(len(engine.bias)):
        if len(row.allowed) == 0 or row.allowed[label]:
            size = offer_label(out, row.number, size, label, score(row, engine, label))
            out.labels_scored[row.number] += 1


@numba.njit(nogil=True, cache=True)
def rank_of(X: CSR, i: int, label: int, engine: SearchEngine, work: SearchScratch) -> int:
    """Return the number of labels that beat `label` for row i of X: 0 for the best.

    Labels that could beat it are scored.
    """
    row = read_row(X, i, work.seen[:0], engine)
    own, better = score(row, engine, label), 0
    initialise_sums(engine.bias, row.allowed, work.sums)
    more = add_terms(row, engine.lists, UNLIMITED, work.sums)[0]
    for other in range(len(work.sums)):
        # not <: also true for sums that are not numbers
        if not float64(work.sums[other]) + more < own:
            better += beats(score(row, engine, other), other, own, label)
    return better


@numba.njit(nogil=True, cache=True)
def score_one(X: CSR, i: int, label: int, engine: SearchEngine) -> float:
    """Return the score of one label for row i of X, bit-identical to a search."""
    return score(read_row(X, i, np.empty(0, np.uint8), engine), engine, label)
