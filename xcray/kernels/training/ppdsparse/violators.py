"""The most violating samples that are not in the active set (PPDSparse, Algorithm 1, step 2)."""

from typing import Any

import numpy as np

from xcray.kernels.inner import inner
from xcray.kernels.random import GAMMA, below
from xcray.kernels.training.ppdsparse.rows import activate, number_features, prefetch_row
from xcray.kernels.training.ppdsparse.state import (
    INACTIVE,
    PPDSparseProblem,
    PPDSparseScratch,
    PPDSparseSettings,
)

CHUNK, LANES = 64, 16  # a chunk of samples has four scores per lane
NO_SCORE = -1e30
N_BINS = 256  # of `range_of_rank`
ROWS_AHEAD = 3  # distance of prefetches


@inner(fastmath={"nnan", "nsz"})
def inactive_score(scores: Any, kind: np.ndarray, i: Any) -> Any:
    """Return the score of an inactive sample, NO_SCORE of an active one."""
    return scores[i] if kind[i] == INACTIVE else scores.dtype.type(NO_SCORE)


@inner(fastmath={"nnan", "nsz"})
def larger(x: Any, y: Any) -> Any:
    """Return the larger value, without a branch."""
    return x if x > y else y


@inner(fastmath={"nnan", "nsz"})
def inactive_maxima(scores: Any, kind: np.ndarray, maxima: Any) -> None:
    """Compute the maximum score of the inactive samples of each chunk; SIMD over lanes."""
    n, lane = np.uint64(len(scores)), np.uint64(LANES)
    lanes = np.empty(LANES, scores.dtype)
    for c in range(np.uint64(len(maxima))):
        begin = c * np.uint64(CHUNK)
        if begin + np.uint64(CHUNK) <= n:
            for k in range(lane):
                i = begin + k
                first, second = (
                    inactive_score(scores, kind, i),
                    inactive_score(scores, kind, i + lane),
                )
                i += lane + lane
                third, fourth = (
                    inactive_score(scores, kind, i),
                    inactive_score(scores, kind, i + lane),
                )
                lanes[k] = larger(larger(first, second), larger(third, fourth))
        else:
            lanes[:] = scores.dtype.type(NO_SCORE)
            for last in range(begin, n):
                lanes[0] = larger(lanes[0], inactive_score(scores, kind, last))
        best = lanes[0]
        for k in range(1, LANES):
            best = larger(best, lanes[k])
        maxima[c] = best


@inner()
def violating_scores(scratch: PPDSparseScratch, maxima: Any, floor: float, quota: int) -> Any:
    """Return the scores of the inactive samples above `floor`, in any order.

    If more than `quota` chunks have one: the maxima of these chunks.
    """
    scores, kind, k, one = scratch.scores, scratch.kind, np.uint64(0), np.uint64(1)
    tops = np.empty(len(maxima) + 1, scores.dtype)
    for c in range(len(maxima)):
        tops[k] = maxima[c]
        k += np.uint64(maxima[c] > floor)
    if k > quota:
        return tops[: int(k)]
    values = np.empty(int(k) * CHUNK + 1, scores.dtype)
    k = np.uint64(0)
    for c in range(np.uint64(len(maxima))):
        if maxima[c] > floor:
            begin = c * np.uint64(CHUNK)
            for i in range(begin, min(np.uint64(len(scores)), begin + np.uint64(CHUNK))):
                values[k] = scores[i]
                k += one if (kind[i] == INACTIVE) & (scores[i] > floor) else np.uint64(0)
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
    for k in range(len(values)):
        counts[min(N_BINS - 1, int((values[k] - floor) / width))] += 1
    b, above = N_BINS - 1, 0
    while b > 0 and above + counts[b] < rank:
        above += counts[b]
        b -= 1
    return floor + b * width, (floor + (b + 1) * width if b < N_BINS - 1 else np.inf)


@inner()
def activate_range(
    scratch: PPDSparseScratch, at: Any, maxima: Any, low: float, high: float, limit: int, first: int
) -> None:
    """Activate inactive samples with scores in (low, high], from chunk `first` on.

    Ends after the chunk in which `limit` samples are active.
    """
    scores, kind, n_chunks = scratch.scores, scratch.kind, len(maxima)
    for turn in range(n_chunks):
        if at.n_active >= limit:
            return
        c = first + turn if first + turn < n_chunks else first + turn - n_chunks
        if maxima[c] > low:
            for i in range(c * CHUNK, min(len(scores), (c + 1) * CHUNK)):
                if kind[i] == INACTIVE and scores[i] > low and scores[i] <= high:
                    activate(scratch, at, i)


@inner()
def add_violators(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    bias: float,
    scratch: PPDSparseScratch,
    at: Any,
) -> int:
    """Activate the most violating inactive negatives, and return how many.

    Adds about as many as are active now plus `growth` per positive. The largest scores are added
    first. Those of the last range (often thousands of samples that share no feature with w and so
    have the same score) follow from a pseudo-random chunk on.
    """
    n, before = len(scratch.scores), at.n_active
    quota = min(s.growth * (1 + at.positives) + before, n)
    maxima = scratch.maxima[: (n + CHUNK - 1) // CHUNK]
    inactive_maxima(scratch.scores, scratch.kind, maxima)
    at.counter += GAMMA
    first = int(below(at.counter, len(maxima)))
    floor = -1.0 - bias + 1e-12  # a negative violates above this score
    low, high = range_of_rank(violating_scores(scratch, maxima, floor, quota), floor, quota)
    if high < np.inf:
        activate_range(scratch, at, maxima, high, np.inf, before + 2 * quota, first)
    activate_range(scratch, at, maxima, low, high, before + quota, first)
    for a in range(before, at.n_active):
        if a + ROWS_AHEAD < at.n_active:
            prefetch_row(problem.X, scratch.active[a + ROWS_AHEAD])
        number_features(problem.X, scratch.active[a], scratch, at)
    admitted: int = at.n_active - before
    return admitted
