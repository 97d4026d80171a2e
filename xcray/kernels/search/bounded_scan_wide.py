"""Bounded scan of wide lists, and of narrow lists of models with short rows.

Posting lists are cut, and sums are 2-byte integers.

1. The strongest postings select a few labels. Their scores give a lower bound T of the k-th best
   score.
2. Each list f is cut at a weight c_f >= 0, so that the maximum contribution of all unread weights,
   R = sum of x_f c_f, stays below a share of T - b, where b is the largest bias. If that saves
   little, c_f = 0, and only negative weights are left unread.
3. Only weights above the cuts are read. The score of a label is at most bias + R + sum of
   x_f (w_f - c_f) over its weights that were read, because a weight that is read replaces the c_f
   that R contains for its list.
4. The few labels whose bound reaches T are scored, the highest bound first.

Without a useful threshold (large k, or scores as low as biases) all of a wide list is read,
including negative weights; narrow lists have other methods. Addends are rounded up to units, so
that no sum overflows int16 and every bound holds.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.bits import float32, float64, int64, load16, load32
from xcray.kernels.search.bounded_scan import (
    MIN_NORMAL,
    ROUNDING,
    UNLIMITED,
    QueryRow,
    SearchEngine,
    SearchOutput,
    SearchScratch,
    keep_closer,
    max_contribution,
    offer_by_bias,
    rescore,
    rescore_candidates,
    rounding_slack,
)
from xcray.kernels.search.cuts import plan_cuts
from xcray.kernels.search.lists import (
    NARROW_BYTES,
    RANGE_ENTRY_BYTES,
    RANGE_LABELS,
    Bytes,
    PackedLists,
    Terms,
    chunk_count,
    chunk_shift,
    chunk_start,
    floor_at,
    label_mask,
    n_ranges,
    top_at,
)
from xcray.kernels.search.postings import offer, sort_best_first

Int16 = NDArray[np.int16]

THRESHOLD_POSTINGS = 700  # postings read to find a threshold
THRESHOLD_EXTRA = 5  # labels scored for the threshold, in addition to k
MAX_THRESHOLD_K = 24  # for larger k, the threshold is too low to be useful
# of T - b that can remain unread; a larger share reads less and scores more labels, which are few
# for the best label alone
UNREAD_SHARE, UNREAD_SHARE_OF_ONE = 0.25, 0.4
MAX_CANDIDATES = 3000  # with more, reading negative weights is faster
MAX_TALLY = 32000  # fits in int16
MAX_TERMS = 8000  # rounding up more terms could use up too much of MAX_TALLY
LARGE_BIAS_MARK = 2  # in `seen`: a label with an unusually large bias
CHECK_SUMS = 256  # sums that are checked together
CHECK_FEWER = 64  # of these, sums that are checked together if one of them is large


@inner()
def wide_search(
    row: QueryRow, engine: SearchEngine, budget: int, work: SearchScratch, out: SearchOutput
) -> None:
    """Search a row with at most MAX_TERMS terms, none dense.

    budget: number of postings that can be read.
    """
    k = out.labels.shape[1]
    picked = np.empty(k + THRESHOLD_EXTRA, np.int32)
    n, size = int64(0), int64(0)
    if k <= MAX_THRESHOLD_K and row.positive and budget >= row.n_postings:
        n, size = find_threshold(row, engine, work, picked, out)
    else:
        size = offer_by_bias(row, engine.empty_labels, engine.bias, work.seen, out, int64(0))
    if n == 0 or size < k or not scan_above_cuts(row, engine, MAX_CANDIDATES, work, out):
        scan_all(row, engine, budget, work, out, size)
    for c in range(n):
        work.seen[picked[c]] = 0


@numba.njit(nogil=True, cache=True)
def search_above_cuts(
    row: QueryRow, engine: SearchEngine, max_candidates: int, work: SearchScratch, out: SearchOutput
) -> bool:
    """Search a row of narrow lists by a threshold and cuts; x must not be negative.

    Returns False, with an empty heap, if another method should be used: no threshold is useful, or
    more than max_candidates labels reach it.
    """
    i, k = row.number, out.labels.shape[1]
    picked = np.empty(k + THRESHOLD_EXTRA, np.int32)
    n, size = find_threshold(row, engine, work, picked, out)
    done = (
        n > 0
        and size == k
        and out.scores[i, 0] - engine.max_other_bias > engine.min_gap
        and scan_above_cuts(row, engine, max_candidates, work, out)
    )
    for c in range(n):
        work.seen[picked[c]] = 0
    if not done:  # the other method counts the labels that it scores
        out.runner_up[i], out.labels_scored[i] = -np.inf, 0
    return done


@inner()
def find_threshold(
    row: QueryRow, engine: SearchEngine, work: SearchScratch, picked: Int32, out: SearchOutput
) -> tuple[int, int]:
    """Score labels with strong postings into the heap of the row, and mark them as seen.

    Returns (number of these labels, size of the heap).
    """
    size = offer_by_bias(row, engine.empty_labels, engine.bias, work.seen, out, int64(0))
    read, n = pick_by_strongest(row, engine, work, picked)
    out.postings_read[row.number] += read
    # inf: score each of them
    size = rescore(row, engine, picked, np.full(n, np.inf), 0.0, n, UNLIMITED, out, size)
    return n, size


@inner()
def pick_by_strongest(
    row: QueryRow, engine: SearchEngine, work: SearchScratch, picked: Int32
) -> tuple[int, int]:
    """Select the labels with the largest bias + sum over the strongest postings, marked as seen.

    Returns (postings read, number of labels). The bar for a posting falls until about
    THRESHOLD_POSTINGS have been read.
    """
    lists = engine.lists
    terms, blocks = row.terms, lists.blocks
    mask = label_mask(lists.width)
    best = 0.0
    for t in range(row.n_terms):
        best = max(best, terms.x[t] * terms.high[t])
    if best <= 0.0:
        return 0, 0
    next_ = np.zeros(row.n_terms, np.int64)
    bar, read, n = 0.5 * best, 0, int64(0)
    while read < THRESHOLD_POSTINGS and bar > 1e-3 * best:
        for t in range(row.n_terms):
            if terms.x[t] * terms.high[t] < bar:
                continue
            chunk, shift, tops = next_[t], terms.shift[t], terms.tops[t]
            labels = tops + 2 * (terms.n_chunks[t] + 1)
            while chunk < terms.n_chunks[t] and read < 2 * THRESHOLD_POSTINGS:
                value = terms.x[t] * top_at(blocks, tops, chunk)
                if value < bar:
                    break
                # at most 100, for each of at most 2 THRESHOLD_POSTINGS postings of 300 terms
                units = int64(100.0 * value / best) + 1
                lo, hi = chunk_start(chunk, shift), min(terms.n[t], chunk_start(chunk + 1, shift))
                position = labels + lo * lists.width
                for _j in range(hi - lo):
                    label = load32(blocks, position) & mask
                    position += lists.width
                    sum_ = int64(work.tally[label])
                    # always written, counted if new: no branch to mispredict
                    work.touched[n] = label
                    n += sum_ == 0
                    work.tally[label] = np.int16(min(sum_ + units, MAX_TALLY))
                read += hi - lo
                chunk += 1
            next_[t] = chunk
        bar *= 0.6
    return read, pick_by_tally(work, n, 0.01 * best, engine, row.allowed, picked)


@inner()
def pick_by_tally(
    work: SearchScratch, n: int, unit: float, engine: SearchEngine, allowed: Bytes, picked: Int32
) -> int:
    """Select the touched labels with the largest bias + tally * unit, and mark them as seen.

    The tallies are reset. Returns the number of labels.
    """
    sums, most = np.empty(len(picked), np.float64), float64(engine.max_other_bias)
    size: int = int64(0)
    worst = -np.inf
    for j in range(n):
        label = work.touched[j]
        value = unit * work.tally[label]
        work.tally[label] = 0
        if value + most > worst and (len(allowed) == 0 or allowed[label]):
            value += float64(engine.initial_bounds[label])
            if value > worst:
                size = offer(picked, sums, size, int64(label), value)
                worst = sums[0] if size == len(picked) else worst
    for c in range(size):
        work.seen[picked[c]] = 1
    return size


@inner(allocates=False)
def replace_marks(labels: Int32, before: int, after: int, marks: Bytes) -> None:
    """Set `marks` of the labels that have the value `before` to `after`."""
    for label in labels:
        if marks[label] == before:
            marks[label] = after


@inner(allocates=False)
def add_large_bias(
    engine: SearchEngine,
    allowed: Bytes,
    unit: float,
    least: float,
    rest: float,
    work: SearchScratch,
    begin: int,
    stop: int,
    n: int,
    out: SearchOutput,
    i: int,
) -> int:
    """Append the marked labels of [begin, stop) whose bias + tally * unit is at least `least`.

    Returns the number of candidates.
    """
    for number in engine.large_bias_labels:
        label = int64(number)
        if label < begin or label >= stop or work.seen[label] != LARGE_BIAS_MARK:
            continue
        if len(allowed) == 0 or allowed[label]:
            bound = float64(engine.initial_bounds[label]) + work.tally[label] * unit
            if bound >= least:
                work.candidates[n], work.bounds[n] = label, bound
                n += 1
            else:
                out.runner_up[i] = max(out.runner_up[i], bound + rest)
    return n


@inner()
def scan_above_cuts(
    row: QueryRow, engine: SearchEngine, max_candidates: int, work: SearchScratch, out: SearchOutput
) -> bool:
    """Run steps 2 to 4, with the threshold in the heap of the row.

    Returns False, without further scored labels, if all of the lists should be read instead, or
    more than max_candidates labels reach the threshold. With groups, the bounds of all labels are
    compared with it, because also labels without a posting can reach it.
    """
    i, terms, scores = row.number, row.terms, out.scores[row.number]
    gap = scores[0] - float64(engine.max_other_bias)
    rest = rounding_slack(row)
    if not gap > 2.0 * rest:
        return False
    share = UNREAD_SHARE if len(scores) > 1 else UNREAD_SHARE_OF_ONE
    cuts = plan_cuts(terms, row.n_terms, engine.lists, share * (gap - rest))
    most = 0.0
    for t in range(row.n_terms):
        rest += terms.x[t] * cuts[t]
        most += terms.x[t] * (terms.high[t] - cuts[t])
    unit = most / (MAX_TALLY - row.n_terms)
    bar = int64(np.ceil(min((gap - rest) / unit, 2.0 * MAX_TALLY))) if unit > 0 else 0
    if bar < 1:
        return False
    bar = bar if engine.members.shape[1] == 0 else -MAX_TALLY
    replace_marks(engine.large_bias_labels, 0, LARGE_BIAS_MARK, work.seen)
    n, least = int64(0), lower_bar(scores[0] - rest)
    read = add_unsplit(engine.lists, row, cuts, 1.0 / unit, work.tally)
    for r in range(n_ranges(len(work.tally))):
        begin, stop = r * RANGE_LABELS, min((r + 1) * RANGE_LABELS, len(work.tally))
        if engine.lists.width != NARROW_BYTES:
            read += add_range(engine.lists, row, r, cuts, 1.0 / unit, work.tally[begin:stop])
        n = add_large_bias(
            engine, row.allowed, unit, scores[0] - rest, rest, work, begin, stop, n, out, i
        )
        before = n
        n = take_tallies_above(
            work, engine, row.allowed, bar, float32(unit), float32(least), begin, stop, n
        )
        n = keep_closer(engine, work, before, n, least)
        if n > max_candidates:
            work.tally[:] = 0
            break
    replace_marks(engine.large_bias_labels, LARGE_BIAS_MARK, 0, work.seen)
    out.postings_read[i] += read
    if n > max_candidates:
        return False
    below_bar = float64(engine.max_other_bias) + rest + (bar - 1) * unit
    out.runner_up[i] = max(out.runner_up[i], least + rest, below_bar)
    rescore_candidates(row, engine, work, n, rest, UNLIMITED, out, len(scores))
    return True


@inner(allocates=False)
def lower_bar(least: float) -> float:
    """Return a slightly smaller number, so that rounding to float32 loses no label."""
    return least - abs(least) * ROUNDING - MIN_NORMAL


@inner(allocates=False)
def add_chunks(
    blocks: Bytes,
    tops: int,
    n: int,
    width: int,
    cut: float,
    factor: float,
    ahead: int,
    tally: Int16,
) -> int:
    """Add bounds of factor * (w - cut) to the tallies for the chunks above the cut, rounded up.

    Returns the number of postings read. cut: at least 0 (then factor is positive), -inf to read all
    and subtract nothing, inf to read none. ahead: bytes from here to the list that is read next and
    is prefetched at the same pace.
    """
    shift = chunk_shift(n)
    chunks = chunk_count(n, shift)
    position = tops + 2 * (chunks + 1)
    mask, base = label_mask(width), max(cut, 0.0)
    for chunk in range(chunks):
        weight = float64(top_at(blocks, tops, chunk))
        if weight <= cut:
            return chunk_start(chunk, shift)
        if factor < 0:
            weight = float64(floor_at(blocks, tops, chunk, chunks))
        units = np.int16(int64(np.floor(factor * (weight - base))) + 1)
        size = min(n, chunk_start(chunk + 1, shift)) - chunk_start(chunk, shift)
        if width == 2:
            for line in range(0, 2 * size, 64):
                prefetch(blocks, position + ahead + line)
            for _j in range(size):
                label = load16(blocks, position)
                position += 2
                tally[label] = np.int16(tally[label] + units)
        else:
            for _j in range(size):
                far = load32(blocks, position) & mask
                position += width
                tally[far] = np.int16(tally[far] + units)
    return n


@inner(allocates=False)
def add_unsplit(
    lists: PackedLists, row: QueryRow, cuts: Float64, scale: float, tally: Int16
) -> int:
    """Run `add_chunks` on all lists that are not split; return the number of postings read."""
    terms = row.terms
    read: int = int64(0)
    for t in range(row.n_terms):
        if terms.dense[t] < 0 or lists.width == NARROW_BYTES:
            after = terms.tops[t + 1] - terms.tops[t] if t + 1 < row.n_terms else 0
            read += add_chunks(
                lists.blocks,
                terms.tops[t],
                terms.n[t],
                lists.width,
                cuts[t],
                terms.x[t] * scale,
                after,
                tally,
            )
    return read


@inner(allocates=False)
def add_range(
    lists: PackedLists, row: QueryRow, r: int, cuts: Float64, scale: float, tally: Int16
) -> int:
    """Run `add_chunks` on one range of all split lists; return the number of postings read."""
    terms, blocks, read = row.terms, lists.blocks, 0
    after = next_split(row, -1)
    while after < row.n_terms:
        t, after = after, next_split(row, after)
        position = terms.dense[t] + RANGE_ENTRY_BYTES * r
        n = int64(load32(blocks, position + 4))
        tops = terms.all[t] + int64(load32(blocks, position))
        far = next_split(row, after) if after < row.n_terms else after
        if far < row.n_terms:
            prefetch_range(blocks, terms, far, r)
        ahead = 0
        if after < row.n_terms:
            ahead = range_start(blocks, terms, after, r) - tops
        if n:
            read += add_chunks(blocks, tops, n, int64(2), cuts[t], terms.x[t] * scale, ahead, tally)
    return read


@inner(allocates=False)
def next_split(row: QueryRow, t: int) -> int:
    """Return the first term after t whose list is split, or the number of terms."""
    t += 1
    while t < row.n_terms and row.terms.dense[t] < 0:
        t += 1
    return t


@inner(allocates=False)
def range_start(blocks: Bytes, terms: Terms, t: int, r: int) -> int:
    """Return the position of the list of a range."""
    offset: int = int64(load32(blocks, terms.dense[t] + RANGE_ENTRY_BYTES * r))
    start: int = terms.all[t] + offset
    return start


@inner(allocates=False)
def prefetch_range(blocks: Bytes, terms: Terms, t: int, r: int) -> None:
    """Prefetch the start of a range's list."""
    tops = range_start(blocks, terms, t, r)
    prefetch(blocks, tops)
    prefetch(blocks, tops + 64)
    prefetch(blocks, tops + 128)


@inner()
def scan_all(
    row: QueryRow,
    engine: SearchEngine,
    budget: int,
    work: SearchScratch,
    out: SearchOutput,
    size: int,
) -> None:
    """Read all lists, as far as the budget allows, and score the labels of the best bounds.

    size: of the heap of the row, whose labels are seen.
    """
    i, terms, lists, scores = row.number, row.terms, engine.lists, out.scores[row.number]
    k, left, rest, up, down = len(scores), budget, rounding_slack(row), 0.0, 0.0
    for t in range(row.n_terms):
        high, low = terms.x[t] * terms.high[t], terms.x[t] * terms.low[t]
        up += max(high, low)
        down -= min(high, low)
    unit = max(max(up, down) / (MAX_TALLY - row.n_terms), 1e-300)
    cuts = np.full(row.n_terms, -np.inf)
    for t in range(row.n_terms):
        if terms.n_all[t] > left:
            rest += max_contribution(row, t)
            cuts[t] = np.inf
        else:
            left -= terms.n_all[t]
    out.postings_read[i] += budget - left
    add_unsplit(lists, row, cuts, 1.0 / unit, work.tally)
    room = k + max(8, k >> 2)
    first, bounds = np.empty(room, np.int32), np.empty(room, np.float64)
    n = int64(0)
    for r in range(n_ranges(len(work.tally))):
        add_range(
            lists,
            row,
            r,
            cuts,
            1.0 / unit,
            work.tally[r * RANGE_LABELS : min((r + 1) * RANGE_LABELS, len(work.tally))],
        )
        n = best_tallies(
            work, engine, row.allowed, float32(unit), r * RANGE_LABELS, first, bounds, n
        )
    sort_best_first(first[:n], bounds[:n])
    size = rescore(row, engine, first, bounds, rest, n, left, out, size)
    last = bounds[n - 1] + rest if n else -np.inf
    if out.exact[i] and n == room and not (size == k and last < scores[0]):
        for c in range(n):
            work.seen[first[c]] = 1
        bar = scores[0] - rest if size == k else -np.inf
        bar = lower_bar(bar)
        low = (bar - float64(engine.bias[engine.bias_order[0]])) / unit
        low = low if engine.members.shape[1] == 0 else -MAX_TALLY
        others = take_tallies_above(
            work,
            engine,
            row.allowed,
            int64(min(max(low, -MAX_TALLY), MAX_TALLY)) - 1,  # 1: rounding of `low`
            float32(unit),
            float32(bar),
            int64(0),
            len(work.tally),
            int64(0),
        )
        others = keep_closer(engine, work, int64(0), others, bar)
        out.runner_up[i] = max(out.runner_up[i], bar + rest)
        rescore_candidates(row, engine, work, others, rest, left, out, size)
        for c in range(n):
            work.seen[first[c]] = 0
        return
    if n == room:
        out.runner_up[i] = max(out.runner_up[i], last)
    work.tally[:] = 0


@inner(allocates=False)
def best_tallies(
    work: SearchScratch,
    engine: SearchEngine,
    allowed: Bytes,
    unit: float,
    start: int,
    labels: Int32,
    bounds: Float64,
    size: int,
) -> int:
    """Offer the labels of one range to the heap of the largest bias + tally * unit.

    Only labels that are allowed and not seen. start: first label of the range. Returns the heap's
    size.
    """
    tally, biases_ = work.tally, engine.initial_bounds
    worst = float32(bounds[0]) if size == len(labels) else float32(-np.inf)
    end = min(start + RANGE_LABELS, len(tally))
    for begin in range(start, end, CHECK_SUMS):
        stop = min(begin + CHECK_SUMS, end)
        part, biases = tally[begin:stop], biases_[begin:stop]
        some = False
        for j in range(len(part)):
            some |= float32(part[j]) * unit + biases[j] > worst
        if not some:
            continue
        for j in range(len(part)):
            value = float32(part[j]) * unit + biases[j]
            if (
                value > worst
                and not work.seen[begin + j]
                and (len(allowed) == 0 or allowed[begin + j])
            ):
                size = offer(labels, bounds, size, begin + j, float64(value))
                if size == len(labels):
                    worst = float32(bounds[0])
    return size


@inner(allocates=False)
def take_tallies_above(
    work: SearchScratch,
    engine: SearchEngine,
    allowed: Bytes,
    bar: int,
    unit: float,
    least: float,
    first: int,
    end: int,
    count: int,
) -> int:
    """Append the labels of [first, end) whose bias + tally * unit is at least `least`.

    Only labels that are allowed and not seen. The tallies are reset: a pass of its own would take
    as long. bar: no label with a smaller tally reaches `least`. Returns the new number of
    candidates.
    """
    for begin in range(first, end, CHECK_SUMS):
        stop = min(begin + CHECK_SUMS, end)
        if highest_tally(work.tally[begin:stop]) >= bar:
            for inner_begin in range(begin, stop, CHECK_FEWER):
                inner_stop = min(inner_begin + CHECK_FEWER, stop)
                part = work.tally[inner_begin:inner_stop]
                biases = engine.initial_bounds[inner_begin:inner_stop]
                if highest_tally(part) >= bar and some_reaches(part, biases, unit, least):
                    count = append_reaching(
                        work, engine, allowed, unit, least, inner_begin, inner_stop, count
                    )
        work.tally[begin:stop] = 0
    return count


@inner(allocates=False)
def highest_tally(tally: Int16) -> int:
    """Return the largest of some tallies."""
    highest = np.int16(-MAX_TALLY)
    for j in range(len(tally)):
        highest = max(highest, tally[j])
    return int(highest)


@inner(allocates=False)
def some_reaches(tally: Int16, biases: Float32, unit: float, least: float) -> bool:
    """Return whether a bias + tally * unit is at least `least`."""
    some = False
    for j in range(len(tally)):
        some |= float32(tally[j]) * unit + biases[j] >= least
    return some


@inner(allocates=False)
def append_reaching(
    work: SearchScratch,
    engine: SearchEngine,
    allowed: Bytes,
    unit: float,
    least: float,
    begin: int,
    stop: int,
    count: int,
) -> int:
    """Append the labels of `take_tallies_above` among few labels."""
    part, biases = work.tally[begin:stop], engine.initial_bounds[begin:stop]
    for j in range(len(part)):
        value, label = float32(part[j]) * unit + biases[j], begin + j
        if (
            value >= least
            and value > -np.inf
            and not work.seen[label]
            and (len(allowed) == 0 or allowed[label])
        ):
            work.candidates[count], work.bounds[count] = label, value
            count += 1
    return count
