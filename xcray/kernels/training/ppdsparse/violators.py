"""The most violating samples that are not in the active set (PPDSparse, Algorithm 1, step 2)."""

from typing import Any

import numpy as np

from xcray.kernels.inner import inner
from xcray.kernels.maximum import maximum
from xcray.kernels.random import GAMMA, below
from xcray.kernels.training.hinge import CHUNK, NO_SCORE
from xcray.kernels.training.ppdsparse.rows import add_rows
from xcray.kernels.training.ppdsparse.state import (
    PPDSparseProblem,
    PPDSparseScratch,
    PPDSparseSettings,
)

N_BINS = 256  # of `range_of_rank`
LEAST_GROWTH = 32  # rows that take less time than one more round


@inner(allocates=False, fastmath={"reassoc", "nnan", "nsz"})
def inactive_maximum(scores: Any, is_active: np.ndarray) -> Any:
    """Return the maximum score of the inactive samples, or NO_SCORE; SIMD."""
    no_score = scores.dtype.type(NO_SCORE)
    best = no_score
    for i in range(len(scores)):
        best = maximum(best, no_score if is_active[i] else scores[i])
    return best


@inner(allocates=False)
def exclude_active(scores: Any, is_active: np.ndarray, maxima: Any, floor: float) -> None:
    """Replace maxima of chunks by those of their inactive samples, where they are above `floor`."""
    for c in range(len(maxima)):
        if maxima[c] > floor:
            lo, hi = c * CHUNK, min(len(scores), (c + 1) * CHUNK)
            maxima[c] = inactive_maximum(scores[lo:hi], is_active[lo:hi])


@inner()
def above(values: Any, floor: float) -> Any:
    """Return the values above `floor`; without a branch to mispredict."""
    found, k = np.empty(len(values) + 1, values.dtype), np.uint64(0)
    for c in range(len(values)):
        found[k] = values[c]
        k += np.uint64(values[c] > floor)
    return found[: int(k)]


@inner()
def violating_scores(scratch: PPDSparseScratch, floor: float, quota: int) -> Any:
    """Return the scores of the inactive samples above `floor`, in any order.

    If more than `quota` chunks have one: the maxima of these chunks.
    """
    scores, is_active, maxima = scratch.scores, scratch.is_active, scratch.maxima
    tops = above(maxima, floor)
    if len(tops) > quota:
        return tops
    values, k = np.empty(len(tops) * CHUNK + 1, scores.dtype), np.uint64(0)
    for c in range(np.uint64(len(maxima))):
        if maxima[c] > floor:
            begin = c * np.uint64(CHUNK)
            for i in range(begin, min(np.uint64(len(scores)), begin + np.uint64(CHUNK))):
                values[k] = scores[i]
                k += np.uint64((is_active[i] == 0) & (scores[i] > floor))
    return values[: int(k)]


@inner()
def range_of_rank(values: Any, floor: float, rank: int) -> tuple[float, float]:
    """Return a range (low, high] that contains the value of a rank, counted from the largest.

    Fewer than `rank` values are above `high`. (floor, infinity] if there are at most `rank` values;
    all are above `floor`. Ranges have equal widths: a histogram takes one pass.
    """
    if len(values) <= rank:
        return floor, np.inf
    top = np.float64(values.max())
    counts, width = np.zeros(N_BINS, np.int64), (top - floor) / N_BINS
    per_width = 1.0 / width
    for k in range(len(values)):
        counts[min(N_BINS - 1, int((values[k] - floor) * per_width))] += 1
    b, higher = N_BINS - 1, 0
    while b > 0 and higher + counts[b] < rank:
        higher += counts[b]
        b -= 1
    return floor + b * width, (floor + (b + 1) * width if b < N_BINS - 1 else np.inf)


@inner(allocates=False)
def enter_range(
    scratch: PPDSparseScratch, at: Any, maxima: Any, low: float, high: float, limit: int, first: int
) -> None:
    """Let inactive samples with scores in (low, high] enter, from chunk `first` on.

    Ends after the chunk in which `limit` samples enter. Without a branch to mispredict.
    """
    scores, is_active, n_chunks = scratch.scores, scratch.is_active, len(maxima)
    entering, n = scratch.entering, np.uint64(at.n_entering)
    low, high = scores.dtype.type(low), scores.dtype.type(high)
    for turn in range(n_chunks):
        if n >= np.uint64(limit):
            break
        c = first + turn if first + turn < n_chunks else first + turn - n_chunks
        if maxima[c] > low:
            begin = np.uint64(c * CHUNK)
            for i in range(begin, min(np.uint64(len(scores)), begin + np.uint64(CHUNK))):
                entering[n] = np.int32(i)
                is_in_range = (scores[i] > low) & (scores[i] <= high)
                n += np.uint64(is_in_range & (is_active[i] == 0))
    at.n_entering = n


@inner()
def add_violators(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    bias: float,
    scratch: PPDSparseScratch,
    at: Any,
) -> int:
    """Activate the most violating inactive negatives, and return how many.

    Adds about as many as are active now, plus `growth` per positive and LEAST_GROWTH. The largest
    scores are added first. Those of the last range (often thousands of samples that share no
    feature with w and so have the same score) follow from a pseudo-random chunk on.
    """
    n, before = len(scratch.scores), at.n_active
    quota = min(LEAST_GROWTH + s.growth * at.positives + before, n)
    maxima = scratch.maxima
    floor = -1.0 - bias + 1e-12  # a negative violates above this score
    # each of the highest chunks has a violator, or one of the samples that are active
    floor = range_of_rank(above(maxima, floor), floor, quota + before)[0]
    exclude_active(scratch.scores, scratch.is_active, maxima, floor)
    at.counter += GAMMA
    first = int(below(at.counter, len(maxima)))
    low, high = range_of_rank(violating_scores(scratch, floor, quota), floor, quota)
    if high < np.inf:
        enter_range(scratch, at, maxima, high, np.inf, 2 * quota, first)
    enter_range(scratch, at, maxima, low, high, quota, first)
    n_entering: int = at.n_entering
    add_rows(problem, s.objective, -1.0, scratch, at)
    return n_entering
