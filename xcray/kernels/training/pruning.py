"""Small weights of a solved class dropped, and what that costs its loss over all samples.

Weights go in ascending order of size: those of at most a threshold; those beyond the largest so many; and more, as long as
the loss with its best bias stays within a share of what it was. The scores are walked anew, so this asks for a scoring
pass of its own, and nothing of how the class was solved.
"""

from typing import Any

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32, Int64
from xcray.kernels.training.hinge import Objective, best_bias

# The content of these files, held by test_house.py: numba's disk cache sees changes of this file alone.
BUILT_ON = {"training.hinge": "b797d533"}
STEPS, ENOUGH = (
    100,
    1e-6,
)  # Newton steps for a bias, and how near the best it must be, of the loss before


@numba.njit(nogil=True, cache=True)
def move(
    XT: CSR, features: Int32, weights: Float32, order: Int64, begin: int, end: int, scores: Any
) -> None:
    """Take the weights order[begin:end] out of the scores; put order[end:begin] back in where end is smaller."""
    sign = -1.0 if end > begin else 1.0
    for q in range(min(begin, end), max(begin, end)):
        t = order[q]
        change = sign * weights[t]
        for p in range(XT.indptr[features[t]], XT.indptr[features[t] + 1]):
            scores[XT.indices[p]] += change * XT.data[p]


@numba.njit(nogil=True, cache=True)
def loss_of(
    o: Objective,
    scores: Any,
    sample_weights: Float32,
    positives: Int32,
    factor: float,
    bias: float,
    enough: float,
) -> tuple[float, float]:
    """The best bias, and the sum of losses there."""
    best, least, _ = best_bias(o, scores, sample_weights, positives, factor, bias, enough, STEPS)
    return best, least - 0.5 * o.tau * best * best


@numba.njit(nogil=True, cache=True)
def prune(
    XT: CSR,
    o: Objective,
    sample_weights: Float32,
    positives: Int32,
    factor: float,
    features: Int32,
    weights: Float32,
    bias: float,
    limits: tuple[float, int, float],
    scores: Any,
) -> tuple[np.ndarray, float, float, float]:
    """Which weights stay (n,) bool, the bias that is best for them, and the sum of losses before and after.

    limits: sizes up to which weights go; how many may stay (0: all); by what share the loss may rise for more to go.
    scores: (N,) working memory.
    """
    size, most, rise = limits
    n = len(weights)
    order = np.argsort(np.abs(weights), kind="mergesort")
    scores[:] = 0.0
    move(XT, features, weights, order, n, 0, scores)
    bias, before = loss_of(
        o, scores, sample_weights, positives, factor, bias, 1e-6 * abs(o.C) * len(positives)
    )
    enough = ENOUGH * before
    low = int(np.sum(np.abs(weights) <= size))
    if most > 0:
        low = max(low, n - most)
    gone, high = 0, n if rise > 0.0 else low
    while low < high:
        middle = (low + high + 1) // 2
        move(XT, features, weights, order, gone, middle, scores)
        gone = middle
        if (
            loss_of(o, scores, sample_weights, positives, factor, bias, enough)[1]
            <= (1.0 + rise) * before
        ):
            low = middle
        else:
            high = middle - 1
    move(XT, features, weights, order, gone, low, scores)
    bias, after = loss_of(o, scores, sample_weights, positives, factor, bias, enough)
    stay = np.ones(n, np.bool_)
    stay[order[:low]] = False
    return stay, bias, before, after
