"""Exact top-k by bounds: packed lists say which labels could be among the best, the weights by label say what these score.

All sums of bounds are float32 with an allowance for their rounding; what is answered are float64 scores in the one order of
`postings`: features ascending, then + bias. A label is left out only if its bound is below the k-th score found.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.search.bits import float32, float64, float_of, int64, load16, load32, prefetch
from xcray.kernels.search.lists import (
    NARROW,
    PLACE,
    RANGE,
    WEIGHT,
    Bytes,
    Lists,
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

BUILT_ON = {"search.bits": "b69c88f5", "search.lists": "e4c3b501", "search.postings": "5bf42791"}

ROUNDING = 2.0**-23  # of a float32 operation, doubled
TINY = 1e-36  # float32 below it loses digits
LINE = 16  # entries of a row in a cache line
FETCHED = 768  # entries of a row that are asked for ahead
FEW = 48  # labels of the best bounds that are scored before the others are looked at again
KEPT = 4  # added to `seen` of these
WINDOW = 64  # features of a row that are compared at once
SPREAD = 64  # labels that are looked at together
EVERYTHING: int = int64(1 << 60)  # a budget that is never used up
ROW_COST = 4  # entries of a row that take as long as a posting


class Engine(NamedTuple):
    """What a search reads.

    lists; W: (K, D) by label; bias: (K,) float32; start: (K,) float32, bias, but -inf for labels without weights; order: (K,)
    int32, labels by falling bias, equal ones by number; hollow: int32, labels without weights in that order; row_cost: how many
    postings could be read in the time that the score of a likely label takes. loud: int32, labels with weights whose bias is
    unusually large; quiet: float32, the largest bias of all others with weights; largest: the largest |bias|.
    """

    lists: Lists
    W: CSR
    bias: Float32
    start: Float32
    order: Int32
    hollow: Int32
    row_cost: float
    loud: Int32
    quiet: float
    largest: float


class Work(NamedTuple):
    """Memory of one thread. sums: (K,) float32, anything; totals: (K,) float64, tally: (K,) int16 and seen: (K,) uint8, zero
    between queries; touched: (K + 1,) int32, chosen: (K,) int32, bounds: (K,) float64: anything. Narrow lists need no tally,
    wide ones no totals: empty.
    """

    sums: Float32
    totals: Float64
    tally: NDArray[np.int16]
    seen: Bytes
    touched: Int32
    chosen: Int32
    bounds: Float64


class Found(NamedTuple):
    """Answers: labels (n, k) int32, scores (n, k) float64, exact (n,) uint8, labels_scored, postings_read (n,) int64; rival: (n,)
    float64, while a search runs, the most that a label beside the k could have; afterwards the k-th score less that, or 0 where
    there is none.
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float64]
    exact: Bytes
    labels_scored: Int64
    postings_read: Int64
    rival: Float64


class Row(NamedTuple):
    """A query: its features ascending, (m,) int32, and values, (m,) float32; its terms and how many of them; reach: weights of all
    its features; n_dense: features that are dense or split; positive: whether none is negative; hidden: what the weights
    that lists leave out could add; most: how large any sum on the way to a score can get, the largest |bias| and |x| times
    the largest |weight| of each term.
    """

    indices: Int32
    values: Float32
    terms: Terms
    n_terms: int
    reach: int
    n_dense: int
    positive: bool
    hidden: float
    most: float


@numba.njit(nogil=True, cache=True)
def read_row(X: CSR, i: int, engine: Engine) -> Row:
    """Row i of X, and what the lists say of its features."""
    lo, hi = X.indptr[i], X.indptr[i + 1]
    indices, values, lists = X.indices[lo:hi], X.data[lo:hi], engine.lists
    terms = new_terms(hi - lo)
    n = read_terms(indices, values, lists, terms)
    reach, n_dense, positive, most = int64(0), 0, True, float64(engine.largest)
    for t in range(n):
        reach += terms.n_all[t]
        n_dense += terms.dense[t] >= 0
        most += abs(terms.x[t]) * max(terms.high[t], -terms.low[t])
    hidden = 0.0
    for value in values:
        positive &= value >= 0
        hidden -= min(0.0, float64(value)) * lists.least
    return Row(indices, values, terms, n, reach, n_dense, positive, hidden, most)


@numba.njit(nogil=True, cache=True)
def score(row: Row, W: CSR, label: int, bias: Float32) -> float:
    """x . w + bias of one label, to the bit what a loop over all features gives."""
    lo, n = W.indptr[label], W.indptr[label + 1] - W.indptr[label]
    features = W.indices[lo : lo + n]
    total = 0.0
    if n < WINDOW:
        at = 0
        for j in range(len(row.indices)):
            feature = row.indices[j]
            while at < n and features[at] < feature:
                at += 1
            if at < n and features[at] == feature:
                total += float64(row.values[j]) * float64(W.data[lo + at])
        return float(total + bias[label])
    begin = int64(0)
    for j in range(len(row.indices)):
        feature = row.indices[j]
        while begin + WINDOW < n and features[begin + WINDOW] <= feature:
            begin += WINDOW
        first = min(begin, n - WINDOW)
        window = features[first : first + WINDOW]
        below = np.int32(0)
        for i in range(WINDOW):
            below += np.int32(window[i] < feature)
        at = first + below
        if at < n and features[at] == feature:
            total += float64(row.values[j]) * float64(W.data[lo + at])
    return float(total + bias[label])


@numba.njit(nogil=True, cache=True)
def fetch_row(W: CSR, label: int) -> None:
    """Ask for a label's row, as much of it as is worth it."""
    begin, end = W.indptr[label], W.indptr[label + 1]
    for entry in range(begin, min(end, begin + FETCHED), LINE):
        prefetch(W.indices, entry)
        prefetch(W.data, entry)


@numba.njit(nogil=True, cache=True)
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


@numba.njit(nogil=True, cache=True)
def add_split(lists: Lists, terms: Terms, t: int, sums: Float32) -> None:
    """`add_list` for a list that is split by ranges of labels."""
    for r in range(n_ranges(lists.n_labels)):
        place = terms.dense[t] + PLACE * r
        n = int64(load32(lists.blocks, place + 4))
        if n:
            add_list(
                lists.blocks,
                terms.all[t] + int64(load32(lists.blocks, place)),
                n,
                int64(2),
                terms.x[t],
                sums[r * RANGE :],
            )


@numba.njit(nogil=True, cache=True)
def add_dense(lists: Lists, terms: Terms, which: Int64, sums: Float32) -> None:
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


@numba.njit(nogil=True, cache=True)
def add_four(
    a: Bytes, b: Bytes, c: Bytes, d: Bytes, p: float, q: float, r: float, s: float, sums: Float32
) -> None:
    """sums += p a + q b + r c + s d."""
    for label in range(len(sums)):
        sums[label] += (p * float32(a[label]) + q * float32(b[label])) + (
            r * float32(c[label]) + s * float32(d[label])
        )


@numba.njit(nogil=True, cache=True)
def begin_sums(start: Float32, allowed: Bytes, sums: Float32) -> None:
    """Biases to begin with; -inf for labels that can't be answered here. allowed: (K,), or empty for all."""
    if len(allowed) == 0:
        sums[:] = start
        return
    for label in range(len(sums)):
        sums[label] = start[label] if allowed[label] else float32(-np.inf)


@numba.njit(nogil=True, cache=True)
def best_bounds(sums: Float32 | Float64, labels: Int32, bounds: Float64) -> int:
    """The labels of the largest sums, best first, equal ones by label, as many as there is room for; returns how many there are."""
    size: int = int64(0)
    most = len(labels)
    worst = sums.dtype.type(-np.inf)
    n = len(sums)
    for begin in range(0, n, SPREAD):
        part = sums[begin : min(begin + SPREAD, n)]
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


@numba.njit(nogil=True, cache=True)
def above(sums: Float32, least: float, labels: Int32, bounds: Float64) -> int:
    """All labels whose sum is at least `least`; returns how many."""
    count: int = int64(0)
    n = len(sums)
    bar = float32(least)
    for begin in range(0, n, SPREAD):
        part = sums[begin : min(begin + SPREAD, n)]
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


@numba.njit(nogil=True, cache=True)
def propose(out: Found, i: int, size: int, label: int, value: float) -> int:
    """Offer a label to the heap of row i; returns its size. Whoever loses is a rival."""
    labels, scores = out.labels[i], out.scores[i]
    if size == len(labels):
        out.rival[i] = max(out.rival[i], min(value, scores[0]))
    return offer(labels, scores, size, label, value)


@numba.njit(nogil=True, cache=True)
def offer_listed(
    listed: Int32, bias: Float32, skip: Bytes, allowed: Bytes, out: Found, i: int, size: int
) -> int:
    """Offer labels that score their bias, best first, until one is not good enough. skip: (K,), those not 0 stay out, or empty."""
    for number in listed:
        label = int64(number)
        if (len(skip) and skip[label]) or (len(allowed) and not allowed[label]):
            continue
        value = 0.0 + float64(
            bias[label]
        )  # an empty sum, so that a bias of -0.0 gives the same bits
        full = size == out.labels.shape[1]
        size = propose(out, i, size, label, value)
        if full and out.rival[i] >= value:
            break
    return size


@numba.njit(nogil=True, cache=True)
def rescore(
    row: Row,
    engine: Engine,
    chosen: Int32,
    bounds: Float64,
    more: float,
    n: int,
    budget: int,
    out: Found,
    i: int,
    size: int,
) -> int:
    """Score labels in the order of falling bounds until the next can't be among the best; returns the heap's size.

    bounds + more: not below the labels' scores. budget: entries of rows that may be read. What was done is added to `out`.
    """
    labels, scores = out.labels[i], out.scores[i]
    for c in range(n):
        label, bound = int64(chosen[c]), bounds[c] + more
        if size == len(labels) and (bound < scores[0] or budget <= 0):
            out.rival[i] = max(out.rival[i], bound)
            out.exact[i] &= bound < scores[0]
            break
        if c + 1 < n:
            fetch_row(engine.W, int64(chosen[c + 1]))
        size = propose(out, i, size, label, score(row, engine.W, label, engine.bias))
        out.labels_scored[i] += 1
        budget -= (engine.W.indptr[label + 1] - engine.W.indptr[label]) // ROW_COST + 50
    return size


@numba.njit(nogil=True, cache=True)
def slack_of(row: Row) -> float:
    """What may be missing in a bound: the rounding of n additions of float32, none larger than the largest score possible, and what
    weights add that are left out of the lists."""
    return row.most * (row.n_terms + 4) * ROUNDING + TINY + row.hidden


@numba.njit(nogil=True, cache=True)
def unread(row: Row, t: int) -> float:
    """The most that a term could add to a score."""
    x = row.terms.x[t]
    most: float = x * row.terms.high[t] if x > 0 else -x * -row.terms.low[t]
    return most


@numba.njit(nogil=True, cache=True)
def add_terms(row: Row, lists: Lists, budget: int, sums: Float32) -> tuple[float, int]:
    """Add all terms to the sums; (what to add to them for bounds, postings read). Terms beyond the budget are left unread."""
    terms, more, left = row.terms, slack_of(row), budget
    which = np.empty(row.n_terms, np.int64)
    n_dense = 0
    narrow = lists.width == NARROW
    for t in range(row.n_terms):
        special = terms.dense[t] >= 0
        cost = terms.n[t] + (lists.n_labels >> 3) if special and narrow else terms.n_all[t]
        if cost > left:
            more += unread(row, t)
            continue
        left -= cost
        if special and not narrow:
            add_split(lists, terms, t, sums)
            continue
        if special:
            which[n_dense] = t
            n_dense += 1
            more += terms.x[t] * terms.lo[t] + abs(terms.x[t]) * terms.step[t] * 0.500001
        add_list(lists.blocks, terms.tops[t], terms.n[t], lists.width, terms.x[t], sums)
    if n_dense:
        add_dense(lists, terms, which[:n_dense], sums)
    return more, budget - left


@numba.njit(nogil=True, cache=True)
def finish(
    row: Row,
    engine: Engine,
    work: Work,
    n: int,
    more: float,
    budget: int,
    out: Found,
    i: int,
    size: int,
) -> int:
    """Score the n labels of `chosen` that are not seen yet, best bounds first; returns the heap's size.

    Many are not sorted as a whole: the scores of the FEW best mostly leave nothing of the rest.
    """
    if n == 0:
        return size
    k, kept = out.labels.shape[1], int64(0)
    room = min(n, max(FEW, 2 * k))
    first, best = np.empty(room, np.int32), np.empty(room, np.float64)
    for c in range(n):
        label, bound = work.chosen[c], work.bounds[c]
        if not work.seen[label] and (kept < room or bound > best[0]):
            kept = offer(first, best, kept, int64(label), bound)
    sort_best_first(first[:kept], best[:kept])
    size = rescore(row, engine, first, best, more, kept, budget, out, i, size)
    if kept < room or not out.exact[i] or (size == k and best[kept - 1] + more < out.scores[i, 0]):
        return size
    for c in range(kept):
        work.seen[first[c]] += KEPT
    others = int64(0)
    for c in range(n):
        label, bound = work.chosen[c], work.bounds[c]
        if not work.seen[label] and (size < k or bound + more >= out.scores[i, 0]):
            work.chosen[others], work.bounds[others] = label, bound
            others += 1
        elif not work.seen[label]:
            out.rival[i] = max(out.rival[i], bound + more)
    order = np.argsort(-work.bounds[:others])
    size = rescore(
        row,
        engine,
        work.chosen[:others][order],
        work.bounds[:others][order],
        more,
        others,
        budget,
        out,
        i,
        size,
    )
    for c in range(kept):
        work.seen[first[c]] -= KEPT
    return size


@numba.njit(nogil=True, cache=True)
def scan(
    row: Row, engine: Engine, allowed: Bytes, budget: int, work: Work, out: Found, i: int
) -> None:
    """Bounds for all labels from all lists, then the best of them in full."""
    labels, scores = out.labels[i], out.scores[i]
    k, sums = len(labels), work.sums
    size = offer_listed(engine.hollow, engine.bias, work.seen[:0], allowed, out, i, int64(0))
    begin_sums(engine.start, allowed, sums)
    more, read = add_terms(row, engine.lists, budget, sums)
    out.postings_read[i] += read
    room = min(len(sums), k + max(8, k >> 2))
    first, bounds = np.empty(room, np.int32), np.empty(room, np.float64)
    n = best_bounds(sums, first, bounds)
    size = rescore(row, engine, first, bounds, more, n, budget - read, out, i, size)
    if n < room or not out.exact[i] or (size == k and bounds[n - 1] + more < scores[0]):
        if n == room:
            out.rival[i] = max(out.rival[i], bounds[n - 1] + more)
        return
    for c in range(n):
        work.seen[first[c]] = 1
    bar = scores[0] - more if size == k else -np.inf
    bar -= abs(bar) * ROUNDING + TINY
    others = above(sums, bar, work.chosen, work.bounds)
    out.rival[i] = max(out.rival[i], bar + more)
    finish(row, engine, work, others, more, budget - read, out, i, size)
    for c in range(n):
        work.seen[first[c]] = 0


@numba.njit(nogil=True, cache=True)
def touch(row: Row, engine: Engine, work: Work) -> tuple[int, float]:
    """Bounds for the labels that a feature of the row touches alone; (how many, what to add to their sums). No term is dense."""
    lists, terms = engine.lists, row.terms
    n, more = 0, slack_of(row)
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


@numba.njit(nogil=True, cache=True)
def scan_touched(row: Row, engine: Engine, allowed: Bytes, work: Work, out: Found, i: int) -> None:
    """As `scan`, but labels that are not touched are known to score their bias; for few postings."""
    n, more = touch(row, engine, work)
    out.postings_read[i] += row.reach
    size = offer_listed(engine.order, engine.bias, work.seen, allowed, out, i, int64(0))
    work.seen[work.touched[:n]] = 0
    kept = int64(0)
    for t in range(n):
        label = work.touched[t]
        if len(allowed) == 0 or allowed[label]:
            work.chosen[kept], work.bounds[kept] = label, work.sums[label]
            kept += 1
    finish(row, engine, work, kept, more, EVERYTHING, out, i, size)


@numba.njit(nogil=True, cache=True)
def scan_exact(row: Row, engine: Engine, allowed: Bytes, work: Work, out: Found, i: int) -> None:
    """Scores of all labels from the weights in narrow lists."""
    blocks, terms, totals, k = engine.lists.blocks, row.terms, work.totals, out.labels.shape[1]
    for t in range(row.n_terms):
        n, x = terms.n_all[t], terms.x[t]
        labels, weights = terms.all[t], terms.all[t] + NARROW * terms.n_all[t]
        for j in range(n):
            totals[load16(blocks, labels + NARROW * j)] += x * float64(
                float_of(load32(blocks, weights + WEIGHT * j))
            )
    for label in range(len(totals)):
        totals[label] += float64(engine.bias[label])
    if len(allowed):
        for label in range(len(totals)):
            totals[label] = totals[label] if allowed[label] else -np.inf
    best, scores = np.empty(k + 1, np.int32), np.empty(k + 1, np.float64)  # one more: the rival
    size = best_bounds(totals, best, scores)
    totals[:] = 0.0
    if size > k:
        out.rival[i] = max(out.rival[i], scores[k])
    for c in range(k):
        out.labels[i, k - 1 - c], out.scores[i, k - 1 - c] = (
            best[c],
            scores[c],
        )  # worst first: a heap
    out.labels_scored[i] += len(totals)
    out.postings_read[i] += row.reach


@numba.njit(nogil=True, cache=True)
def score_all(row: Row, engine: Engine, allowed: Bytes, out: Found, i: int) -> None:
    """Score every label that is allowed: for numbers that bounds in float32 can't hold, and for short lists of labels."""
    size = int64(0)
    for label in range(len(engine.bias)):
        if len(allowed) == 0 or allowed[label]:
            size = propose(out, i, size, label, score(row, engine.W, label, engine.bias))
            out.labels_scored[i] += 1


@numba.njit(nogil=True, cache=True)
def rank_of(X: CSR, i: int, label: int, engine: Engine, work: Work) -> int:
    """How many labels beat one label for row i of X: 0 for the best. Labels that could are scored in full."""
    row = read_row(X, i, engine)
    own, better = score(row, engine.W, label, engine.bias), 0
    begin_sums(engine.bias, work.seen[:0], work.sums)
    more = add_terms(row, engine.lists, EVERYTHING, work.sums)[0]
    for other in range(len(work.sums)):
        if (
            not float64(work.sums[other]) + more < own
        ):  # not: sums that are no numbers are looked at too
            better += beats(score(row, engine.W, other, engine.bias), other, own, label)
    return better


@numba.njit(nogil=True, cache=True)
def score_one(X: CSR, i: int, label: int, engine: Engine) -> float:
    """The score of one label for row i of X, the same bits as a search gives."""
    return score(read_row(X, i, engine), engine.W, label, engine.bias)
