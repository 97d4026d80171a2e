"""Search among very many labels: what can't matter is left unread, and sums are whole numbers of two bytes.

1. The strongest postings name a few labels; their scores give a threshold T that the k-th best score can't be below.
2. Each list f is cut at a weight c_f >= 0, so that what all unread weights could add together, R = sum of x_f c_f, stays below a
   share of T - b, where b is the largest bias. Where that saves little, c_f = 0: negative weights alone are left unread.
3. Only weights above the cuts are read. A label's score is at most bias + R + sum of x_f (w_f - c_f) over its weights that were
   read: a weight that is read replaces the c_f that R holds for its list.
4. The few labels whose bound reaches T are scored in full, the highest bound first.

Without a threshold that helps (many labels asked for, or scores as low as biases) everything is read, negative weights too.
Addends are rounded up to units, so that no sum leaves int16 and every bound holds.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64, Int32
from xcray.kernels.search.bits import float32, float64, int64, load16, load32, prefetch
from xcray.kernels.search.bounded_scan import (
    EVERYTHING,
    ROUNDING,
    TINY,
    Engine,
    Found,
    Row,
    Work,
    finish,
    offer_listed,
    rescore,
    slack_of,
    unread,
)
from xcray.kernels.search.lists import (
    PLACE,
    RANGE,
    Bytes,
    Lists,
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

BUILT_ON = {
    "search.bits": "b69c88f5",
    "search.bounded_scan": "e045300f",
    "search.lists": "e4c3b501",
    "search.postings": "5bf42791",
}

Int16 = NDArray[np.int16]

FIRST = 1500  # postings that are read to find a threshold
EXTRA = 5  # labels that are scored for the threshold, beside k
DEEP = 24  # for more labels than this the threshold is too low to be worth its search
SHARE = 0.7  # of T - b that may stay unread
FLATNESS = 0.4  # how the cut grows with the length of a list over x: weights above c number about length * c ** -1.5
STEPS = 12  # halvings when the cuts are sought
WORTH = 0.95  # cut when at most this share of the positive weights would be read
MANY = 500  # labels of a range that reach the bar with the largest bias: beyond, each label's own is looked at first
MOST = 3000  # labels left to score: beyond, reading the negative weights is better
LARGEST = 32000  # of int16, for sums
MANY_TERMS = 8000  # rounding up of more terms could take up too much of it
HIDDEN = 2  # in `seen`: a label of unusually large bias
BLOCK = 256  # sums that are looked at together


@numba.njit(nogil=True, cache=True)
def wide_search(
    row: Row, engine: Engine, allowed: Bytes, budget: int, work: Work, out: Found, i: int
) -> None:
    """Answer row i, which has at most MANY_TERMS terms, none of them dense. budget: postings that may be read."""
    k = out.labels.shape[1]
    picked = np.empty(k + EXTRA, np.int32)
    n = 0
    size = offer_listed(engine.hollow, engine.bias, work.seen, allowed, out, i, int64(0))
    if k <= DEEP and row.positive and budget >= row.reach:
        read, n = strongest(row, engine.lists, allowed, work, picked)
        out.postings_read[i] += read
        size = rescore(
            row, engine, picked, np.full(n, np.inf), 0.0, n, EVERYTHING, out, i, size
        )  # inf: each of them
    if n == 0 or size < k or not above_cuts(row, engine, allowed, work, out, i):
        whole(row, engine, allowed, budget, work, out, i, size)
    for c in range(n):
        work.seen[picked[c]] = 0


@numba.njit(nogil=True, cache=True)
def strongest(row: Row, lists: Lists, allowed: Bytes, work: Work, picked: Int32) -> tuple[int, int]:
    """The labels with the largest sums over the strongest postings, marked as seen; (postings read, how many labels).

    The bar for a posting falls until about FIRST have been read.
    """
    terms, blocks = row.terms, lists.blocks
    mask = label_mask(lists.width)
    best = 0.0
    for t in range(row.n_terms):
        best = max(best, terms.x[t] * terms.high[t])
    if best <= 0.0:
        return 0, 0
    next_ = np.zeros(row.n_terms, np.int64)
    bar, read, n = 0.5 * best, 0, int64(0)
    while read < FIRST and bar > 1e-3 * best:
        for t in range(row.n_terms):
            if terms.x[t] * terms.high[t] < bar:
                continue
            chunk, shift, tops = next_[t], terms.shift[t], terms.tops[t]
            labels = tops + 2 * (terms.n_chunks[t] + 1)
            while chunk < terms.n_chunks[t] and read < 2 * FIRST:
                value = terms.x[t] * top_at(blocks, tops, chunk)
                if value < bar:
                    break
                units = (
                    int64(100.0 * value / best) + 1
                )  # 100 at most, for each of at most 2 FIRST postings of 300 terms
                lo, hi = chunk_start(chunk, shift), min(terms.n[t], chunk_start(chunk + 1, shift))
                place = labels + lo * lists.width
                for _j in range(hi - lo):
                    label = load32(blocks, place) & mask
                    place += lists.width
                    sum_ = int64(work.tally[label])
                    work.touched[n] = label  # written always, kept if new: no branch to mispredict
                    n += sum_ == 0
                    work.tally[label] = np.int16(min(sum_ + units, LARGEST))
                read += hi - lo
                chunk += 1
            next_[t] = chunk
        bar *= 0.6
    return read, pick(work, n, allowed, picked)


@numba.njit(nogil=True, cache=True)
def pick(work: Work, n: int, allowed: Bytes, picked: Int32) -> int:
    """The touched labels with the largest tallies go to `picked` and are marked as seen; tallies are zero again; how many."""
    sums = np.empty(len(picked), np.float64)
    size: int = int64(0)
    for j in range(n):
        label = work.touched[j]
        value = float64(work.tally[label])
        work.tally[label] = 0
        if (size < len(picked) or value > sums[0]) and (len(allowed) == 0 or allowed[label]):
            size = offer(picked, sums, size, int64(label), value)
    for c in range(size):
        work.seen[picked[c]] = 1
    return size


@numba.njit(nogil=True, cache=True)
def hide(loud: Int32, seen: Bytes) -> None:
    """Mark the labels of unusually large bias that are not seen yet: `choose_hidden` looks at them one by one."""
    for label in loud:
        if not seen[label]:
            seen[label] = HIDDEN


@numba.njit(nogil=True, cache=True)
def choose_hidden(
    engine: Engine,
    allowed: Bytes,
    unit: float,
    least: float,
    rest: float,
    work: Work,
    n: int,
    out: Found,
    i: int,
) -> int:
    """Unmark the hidden labels, and append those whose own bias + tally * unit is at least `least`; how many are chosen then."""
    for number in engine.loud:
        label = int64(number)
        if work.seen[label] != HIDDEN:
            continue
        work.seen[label] = 0
        if len(allowed) == 0 or allowed[label]:
            bound = float64(engine.start[label]) + work.tally[label] * unit
            if bound >= least:
                work.chosen[n], work.bounds[n] = label, bound
                n += 1
            else:
                out.rival[i] = max(out.rival[i], bound + rest)
    return n


@numba.njit(nogil=True, cache=True)
def above_cuts(row: Row, engine: Engine, allowed: Bytes, work: Work, out: Found, i: int) -> bool:
    """Steps 2 to 4, from the threshold in the heap of row i. False, with no more labels scored, when the lists had better be read
    whole."""
    terms, scores = row.terms, out.scores[i]
    gap = scores[0] - float64(engine.quiet)
    rest = slack_of(row)
    if not gap > 2.0 * rest:
        return False
    cuts = plan_cuts(row, engine.lists, SHARE * (gap - rest))
    most = 0.0
    for t in range(row.n_terms):
        rest += terms.x[t] * cuts[t]
        most += terms.x[t] * (terms.high[t] - cuts[t])
    unit = most / (LARGEST - row.n_terms)
    bar = int64(np.ceil(min((gap - rest) / unit, 2.0 * LARGEST))) if unit > 0 else 0
    if bar < 1:
        return False
    hide(engine.loud, work.seen)
    n, fine = int64(0), False
    read = add_unsplit(engine.lists, row, cuts, 1.0 / unit, work.tally)
    for r in range(n_ranges(len(work.tally))):
        begin, stop = r * RANGE, min((r + 1) * RANGE, len(work.tally))
        read += add_range(engine.lists, row, r, cuts, 1.0 / unit, work.tally[begin:stop])
        if not fine:
            before = n
            n = reaching(work.tally[begin:stop], min(bar, 32767), begin, work.chosen, n)
            fine = (
                n - before > MANY
            )  # many biases lie well below the largest then: from now on look at each label's own
            n = keep_own(work, engine, allowed, unit, scores[0] - rest, before, n)
        else:
            n = tallies_above(
                work, engine, allowed, float32(unit), bar_of(scores[0] - rest), begin, stop, n
            )
        if n > MOST:
            break
    n = choose_hidden(engine, allowed, unit, scores[0] - rest, rest, work, n, out, i)
    work.tally[:] = 0
    out.postings_read[i] += read
    if n > MOST:
        return False
    rival = (
        bar_of(scores[0] - rest) + rest if fine else float64(engine.quiet) + rest + (bar - 1) * unit
    )
    out.rival[i] = max(out.rival[i], rival)
    finish(row, engine, work, n, rest, EVERYTHING, out, i, len(scores))
    return True


@numba.njit(nogil=True, cache=True)
def bar_of(least: float) -> float:
    """A little less, so that rounding to float32 loses no label."""
    return least - abs(least) * ROUNDING - TINY


@numba.njit(nogil=True, cache=True)
def keep_own(
    work: Work, engine: Engine, allowed: Bytes, unit: float, least: float, first: int, stop: int
) -> int:
    """Of the chosen labels [first, stop) those stay, allowed and not seen, whose own bias + tally * unit is at least `least`."""
    kept = first
    for c in range(first, stop):
        label = work.chosen[c]
        bound = float64(engine.start[label]) + work.tally[label] * unit
        if bound >= least and not work.seen[label] and (len(allowed) == 0 or allowed[label]):
            work.chosen[kept], work.bounds[kept] = label, bound
            kept += 1
    return kept


@numba.njit(nogil=True, cache=True)
def plan_cuts(row: Row, lists: Lists, most: float) -> Float64:
    """Cuts c_f, (n_terms,), so that R is at most `most`; all 0 where that would leave little unread.

    The least reading for a given R has equally many postings per unit of R at each cut. With about length * c ** -a weights
    above c that is c ~ (length / x) ** (1 / (a + 1)), up to the largest weight; one factor for all lists is sought by halving.
    """
    terms = row.terms
    cuts, shape = np.zeros(row.n_terms, np.float64), np.empty(row.n_terms, np.float64)
    high = 0.0
    for t in range(row.n_terms):
        shape[t] = (terms.n_all[t] / terms.x[t]) ** FLATNESS
        high = max(high, terms.high[t] / shape[t])
    low = 0.0
    for _step in range(STEPS):
        factor = 0.5 * (low + high)
        rest = 0.0
        for t in range(row.n_terms):
            rest += terms.x[t] * min(terms.high[t], factor * shape[t])
        if rest <= most:
            low = factor
        else:
            high = factor
    read, positive = 0.0, 0.0
    for t in range(row.n_terms):
        cuts[t] = min(terms.high[t], low * shape[t])
        above, all_ = share_above(lists, terms, t, cuts[t])
        read += above * terms.n_all[t]
        positive += all_ * terms.n_all[t]
    if read > WORTH * positive:
        cuts[:] = 0.0
    return cuts


@numba.njit(nogil=True, cache=True)
def share_above(lists: Lists, terms: Terms, t: int, cut: float) -> tuple[float, float]:
    """The shares of a list's weights above `cut` and above 0; of a split one, those of its middle range stand for all."""
    tops, n = terms.tops[t], terms.n[t]
    if terms.dense[t] >= 0:
        place = terms.dense[t] + PLACE * (n_ranges(lists.n_labels) // 2)
        tops, n = (
            terms.all[t] + int64(load32(lists.blocks, place)),
            int64(load32(lists.blocks, place + 4)),
        )
        if n == 0:
            return 0.5, 1.0
    shift = chunk_shift(n)
    chunks = chunk_count(n, shift)
    above = chunk_start(first_below(lists.blocks, tops, chunks, cut), shift)
    positive = chunk_start(first_below(lists.blocks, tops, chunks, 0.0), shift)
    return min(1.0, above / n), min(1.0, positive / n)


@numba.njit(nogil=True, cache=True)
def first_below(blocks: Bytes, tops: int, n_chunks: int, cut: float) -> int:
    """The first chunk of a list whose top is not above `cut`; the number of chunks if there is none."""
    low, high = 0, n_chunks
    while low < high:
        middle = (low + high) >> 1
        if top_at(blocks, tops, middle) > cut:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def add_chunks(
    blocks: Bytes, tops: int, n: int, width: int, cut: float, factor: float, tally: Int16
) -> int:
    """Add bounds of factor * (w - cut) of the chunks of a list above its cut to the tallies, rounded up; how many postings were
    read. cut: at least 0 (factor is positive then), -inf to read all and subtract nothing, inf to read none.
    """
    shift = chunk_shift(n)
    chunks = chunk_count(n, shift)
    place = tops + 2 * (chunks + 1)
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
            for _j in range(size):
                label = load16(blocks, place)
                place += 2
                tally[label] = np.int16(tally[label] + units)
        else:
            for _j in range(size):
                far = load32(blocks, place) & mask
                place += width
                tally[far] = np.int16(tally[far] + units)
    return n


@numba.njit(nogil=True, cache=True)
def add_unsplit(lists: Lists, row: Row, cuts: Float64, scale: float, tally: Int16) -> int:
    """`add_chunks` of all lists that are not split; how many postings were read."""
    terms = row.terms
    read: int = int64(0)
    for t in range(row.n_terms):
        if terms.dense[t] < 0:
            read += add_chunks(
                lists.blocks,
                terms.tops[t],
                terms.n[t],
                lists.width,
                cuts[t],
                terms.x[t] * scale,
                tally,
            )
    return read


@numba.njit(nogil=True, cache=True)
def add_range(lists: Lists, row: Row, r: int, cuts: Float64, scale: float, tally: Int16) -> int:
    """`add_chunks` of one range of all lists that are split; how many postings were read."""
    terms, blocks, read = row.terms, lists.blocks, 0
    for t in range(row.n_terms):
        if t + 2 < row.n_terms and terms.dense[t + 2] >= 0:
            fetch_range(blocks, terms, t + 2, r)
        if terms.dense[t] >= 0:
            place = terms.dense[t] + PLACE * r
            n = int64(load32(blocks, place + 4))
            tops = terms.all[t] + int64(load32(blocks, place))
            if n:
                read += add_chunks(blocks, tops, n, int64(2), cuts[t], terms.x[t] * scale, tally)
    return read


@numba.njit(nogil=True, cache=True)
def fetch_range(blocks: Bytes, terms: Terms, t: int, r: int) -> None:
    """Ask for the beginning of a range's list."""
    tops = terms.all[t] + int64(load32(blocks, terms.dense[t] + PLACE * r))
    prefetch(blocks, tops)
    prefetch(blocks, tops + 64)
    prefetch(blocks, tops + 128)


@numba.njit(nogil=True, cache=True)
def reaching(tally: Int16, bar: int, first: int, labels: Int32, count: int) -> int:
    """Append the labels, numbered from `first` on, whose tally is at least `bar`; returns how many there are then."""
    n, least = len(tally), np.int16(bar)
    for begin in range(0, n, BLOCK):
        part = tally[begin : min(begin + BLOCK, n)]
        some = False
        for j in range(len(part)):
            some |= part[j] >= least
        if not some:
            continue
        for j in range(len(part)):
            if part[j] >= least:
                labels[count] = first + begin + j
                count += 1
    return count


@numba.njit(nogil=True, cache=True)
def whole(
    row: Row, engine: Engine, allowed: Bytes, budget: int, work: Work, out: Found, i: int, size: int
) -> None:
    """Read all lists, as far as the budget goes, and score the labels of the best bounds. size: of the heap of row i, whose labels
    are seen."""
    terms, lists, scores = row.terms, engine.lists, out.scores[i]
    k, left, rest, up, down = len(scores), budget, slack_of(row), 0.0, 0.0
    for t in range(row.n_terms):
        high, low = terms.x[t] * terms.high[t], terms.x[t] * terms.low[t]
        up += max(high, low)
        down -= min(high, low)
    unit = max(max(up, down) / (LARGEST - row.n_terms), 1e-300)
    cuts = np.full(row.n_terms, -np.inf)
    for t in range(row.n_terms):
        if terms.n_all[t] > left:
            rest += unread(row, t)
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
            work.tally[r * RANGE : min((r + 1) * RANGE, len(work.tally))],
        )
        n = best_tallies(work, engine, allowed, float32(unit), r * RANGE, first, bounds, n)
    sort_best_first(first[:n], bounds[:n])
    size = rescore(row, engine, first, bounds, rest, n, left, out, i, size)
    last = bounds[n - 1] + rest if n else -np.inf
    if out.exact[i] and n == room and not (size == k and last < scores[0]):
        for c in range(n):
            work.seen[first[c]] = 1
        bar = scores[0] - rest if size == k else -np.inf
        bar = bar_of(bar)
        others = tallies_above(
            work, engine, allowed, float32(unit), bar, int64(0), len(work.tally), int64(0)
        )
        out.rival[i] = max(out.rival[i], bar + rest)
        finish(row, engine, work, others, rest, left, out, i, size)
        for c in range(n):
            work.seen[first[c]] = 0
    elif n == room:
        out.rival[i] = max(out.rival[i], last)
    work.tally[:] = 0


@numba.njit(nogil=True, cache=True)
def best_tallies(
    work: Work,
    engine: Engine,
    allowed: Bytes,
    unit: float,
    start: int,
    labels: Int32,
    bounds: Float64,
    size: int,
) -> int:
    """Offer the labels of the range from `start` on, not seen and allowed, to the heap of the largest bias + tally * unit; its size
    then."""
    tally, biases_ = work.tally, engine.start
    worst = float32(bounds[0]) if size == len(labels) else float32(-np.inf)
    end = min(start + RANGE, len(tally))
    for begin in range(start, end, BLOCK):
        stop = min(begin + BLOCK, end)
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


@numba.njit(nogil=True, cache=True)
def tallies_above(
    work: Work,
    engine: Engine,
    allowed: Bytes,
    unit: float,
    least: float,
    first: int,
    end: int,
    count: int,
) -> int:
    """Append the labels of [first, end), allowed and not seen, whose bias + tally * unit is at least `least`, to `chosen` and
    `bounds`; returns how many there are then."""
    bar = float32(least)
    for begin in range(first, end, BLOCK):
        stop = min(begin + BLOCK, end)
        part, biases = work.tally[begin:stop], engine.start[begin:stop]
        some = False
        for j in range(len(part)):
            some |= float32(part[j]) * unit + biases[j] >= bar
        if not some:
            continue
        for j in range(len(part)):
            value, label = float32(part[j]) * unit + biases[j], begin + j
            if (
                value >= bar
                and value > -np.inf
                and not work.seen[label]
                and (len(allowed) == 0 or allowed[label])
            ):
                work.chosen[count], work.bounds[count] = label, value
                count += 1
    return count
