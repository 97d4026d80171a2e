"""Pruning of small weights of a solved class, and its effect on the loss over all samples.

Weights are dropped in ascending order of size: those of at most a threshold; those beyond a maximum
number; and more, as long as the loss with its best bias rises by at most a given share. The scores
are recomputed, so this needs its own scoring pass and no state of the solver.
"""

from typing import Any

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import CHUNK, Objective, best_bias

BIAS_TOLERANCE = 1e-6  # of a bias, relative to the objective


@inner()
def move_weights(
    XT: CSR, features: Int32, weights: Float32, order: Int64, begin: int, end: int, scores: Any
) -> None:
    """Subtract the weights order[begin:end] from the scores.

    If end is smaller than begin, add the weights order[end:begin] back.
    """
    sign = -1.0 if end > begin else 1.0
    for q in range(min(begin, end), max(begin, end)):
        t = order[q]
        change = sign * weights[t]
        for p in range(XT.indptr[features[t]], XT.indptr[features[t] + 1]):
            scores[XT.indices[p]] += change * XT.data[p]


@inner()
def loss_at_best_bias(
    o: Objective,
    scores: Any,
    sample_weights: Float32,
    positives: Int32,
    factor: float,
    bias: float,
) -> tuple[float, float]:
    """Return the best bias, and the sum of losses there."""
    maxima = np.empty((len(scores) + CHUNK - 1) // CHUNK, scores.dtype)
    best, least, _ = best_bias(
        o, scores, maxima, sample_weights, positives, factor, bias, 0.0, BIAS_TOLERANCE
    )
    return best, least - 0.5 * o.tau_bias * best * best


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
    """Prune one class.

    Returns which weights are kept (n,) bool, the best bias for them, and the sum of losses before
    and after. limits: size up to which weights are dropped; maximum number of weights (0: all);
    share by which the loss can rise when dropping more. scores: (N,) working memory.
    """
    size, max_kept, rise = limits
    n = len(weights)
    order = np.argsort(np.abs(weights), kind="mergesort")
    scores[:] = 0.0
    move_weights(XT, features, weights, order, n, 0, scores)
    bias, before = loss_at_best_bias(o, scores, sample_weights, positives, factor, bias)
    low = int(np.sum(np.abs(weights) <= size))
    if max_kept > 0:
        low = max(low, n - max_kept)
    n_removed, high = 0, n if rise > 0.0 else low
    while low < high:
        middle = (low + high + 1) // 2
        move_weights(XT, features, weights, order, n_removed, middle, scores)
        n_removed = middle
        if (
            loss_at_best_bias(o, scores, sample_weights, positives, factor, bias)[1]
            <= (1.0 + rise) * before
        ):
            low = middle
        else:
            high = middle - 1
    move_weights(XT, features, weights, order, n_removed, low, scores)
    bias, after = loss_at_best_bias(o, scores, sample_weights, positives, factor, bias)
    is_kept = np.ones(n, np.bool_)
    is_kept[order[:low]] = False
    return is_kept, bias, before, after
