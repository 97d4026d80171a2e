"""Hinge losses of one class at given scores: SIMD sums over samples, best bias, null objective.

    squared hinge: loss_i = cost_i z_+^2      hinge: loss_i = cost_i z_+      z = 1 - y (score + b)

cost_i = C times the weight of sample i, for positives also times the positive weight of the class.
`weights` is (N,) float32, or empty if all are one. Scores are float32 or float64. Sums over chunks
of samples are computed in the precision of the scores, sums of chunks in float64.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.maximum import maximum

SQUARED_HINGE, HINGE = 0, 1
MAX_BIAS_STEPS = 100  # Newton steps of `best_bias`
# of them, the first follow a model: its own steps, and the relative size of its last one
MODELLED_STEPS, MODEL_STEPS, MODEL_TOLERANCE = 2, 5, 0.05
NO_SCORE = -1e30
CHUNK = 64  # samples with one maximum, summed in the precision of the scores


class Objective(NamedTuple):
    """Objective of a class: lam |w|_1 + tau/2 |w|^2 + tau_bias/2 b^2 + sum of losses.

    loss: SQUARED_HINGE or HINGE.
    """

    loss: int
    lam: float
    tau: float
    tau_bias: float
    C: float


class HingeSums(NamedTuple):
    """Weighted sums over samples with z > 0: of z, of z^2, of 1; and their number."""

    first: float
    second: float
    weight: float
    samples: float


class Positives(NamedTuple):
    """The positives of a class: their scores, and factors of their losses (weights); (P,) each."""

    scores: Any
    costs: Float64


@numba.njit(nogil=True, cache=True)
def soft(v: float, lam: float) -> float:
    """Return the proximal operator of lam |.|: v moved towards zero by lam."""
    if v > lam:
        return v - lam
    if v < -lam:
        return v + lam
    return 0.0


@numba.njit(nogil=True, cache=True)
def null_objective(o: Objective, positive: float, negative: float) -> float:
    """Return the primal at w = 0 with the best bias: predicting from the class frequency only.

    positive, negative: total weights of the positives and of the negatives.
    """
    if o.loss == SQUARED_HINGE:
        b = 2.0 * o.C * (positive - negative) / (o.tau_bias + 2.0 * o.C * (positive + negative))
        losses = positive * (1.0 - b) ** 2 + negative * (1.0 + b) ** 2
        return 0.5 * o.tau_bias * b * b + o.C * losses
    b = min(1.0, max(-1.0, o.C * (positive - negative) / o.tau_bias))
    return 0.5 * o.tau_bias * b * b + o.C * (positive * (1.0 - b) + negative * (1.0 + b))


@inner(allocates=False, fastmath={"reassoc", "nsz", "nnan"})
def chunk_sums(scores: Any, shift: float) -> HingeSums:
    """Return the sums of a chunk of negatives of weight one; SIMD."""
    number = scores.dtype.type
    zero, one, by = number(0.0), number(1.0), number(shift)
    first, second, count = zero, zero, zero
    for i in range(len(scores)):
        z = scores[i] + by
        z = z if z > zero else zero
        first += z
        second += z * z
        count += one if z > zero else zero
    return HingeSums(np.float64(first), np.float64(second), np.float64(count), np.float64(count))


@inner(allocates=False, fastmath={"reassoc", "nsz", "nnan"})
def weighted_sums(scores: Any, weights: Float32, shift: float) -> HingeSums:
    """Return the sums of a chunk of weighted negatives; SIMD."""
    number = scores.dtype.type
    zero, one, by = number(0.0), number(1.0), number(shift)
    first, second, weight, count = zero, zero, zero, zero
    for i in range(len(scores)):
        z = scores[i] + by
        z = z if z > zero else zero
        c = number(weights[i])
        first += c * z
        second += c * z * z
        weight += c if z > zero else zero
        count += one if z > zero else zero
    return HingeSums(np.float64(first), np.float64(second), np.float64(weight), np.float64(count))


@inner(allocates=False, fastmath={"reassoc", "nsz", "nnan"})
def maximum_of(scores: Any) -> Any:
    """Return the maximum; SIMD."""
    best = scores[0]
    for i in range(len(scores)):
        best = maximum(best, scores[i])
    return best


@inner(allocates=False)
def chunk_maxima(scores: Any, maxima: Any) -> None:
    """Compute the maximum score of each chunk of samples. maxima: (ceil(N / CHUNK),)."""
    for c in range(len(maxima)):
        maxima[c] = maximum_of(scores[c * CHUNK : (c + 1) * CHUNK])


@inner(allocates=False)
def sum_chunks(scores: Any, maxima: Any, weights: Float32, b: float) -> HingeSums:
    """Return the sums over all samples as negatives, z = (1 + score + b)_+.

    maxima: see `chunk_maxima`; chunks without a sample with z > 0 are not read.
    """
    first, second, weight, count = 0.0, 0.0, 0.0, 0.0
    for c in range(len(maxima)):
        if maxima[c] > -1.0 - b:
            lo = c * CHUNK
            hi = min(len(scores), lo + CHUNK)
            if len(weights) > 0:
                part = weighted_sums(scores[lo:hi], weights[lo:hi], 1.0 + b)
            else:
                part = chunk_sums(scores[lo:hi], 1.0 + b)
            first += part.first
            second += part.second
            weight += part.weight
            count += part.samples
    return HingeSums(first, second, weight, count)


@inner()
def take_positives(scores: Any, weights: Float32, samples: Int32, factor: float) -> Positives:
    """Return the positives, and replace their scores by NO_SCORE: the rest are the negatives."""
    positives = Positives(np.empty(len(samples), scores.dtype), np.empty(len(samples)))
    for p, i in enumerate(samples):
        positives.scores[p] = scores[i]
        positives.costs[p] = factor * (weights[i] if len(weights) > 0 else 1.0)
        scores[i] = NO_SCORE
    return positives


@inner(allocates=False)
def sum_positives(positives: Positives, b: float) -> HingeSums:
    """Return the sums over the positives: z = (1 - score - b)_+."""
    first, second, weight, count = 0.0, 0.0, 0.0, 0.0
    for p in range(len(positives.scores)):
        c, z = positives.costs[p], max(0.0, 1.0 - (positives.scores[p] + b))
        first += c * z
        second += c * z * z
        weight += c if z > 0.0 else 0.0
        count += 1.0 if z > 0.0 else 0.0
    return HingeSums(first, second, weight, count)


@inner(allocates=False)
def slope_and_curvature(o: Objective, b: float, n: HingeSums, p: HingeSums) -> tuple[float, float]:
    """Return both for the primal as a function of the bias, from the sums of the two classes."""
    if o.loss == SQUARED_HINGE:
        return (
            o.tau_bias * b + 2.0 * o.C * (n.first - p.first),
            o.tau_bias + 2.0 * o.C * (n.weight + p.weight),
        )
    return o.tau_bias * b + o.C * (n.weight - p.weight), o.tau_bias


@inner(allocates=False)
def modelled_bias(o: Objective, maxima: Any, positives: Positives, b: float, n: HingeSums) -> float:
    """Return about the best bias, from the maxima of chunks and the sums `n` of negatives at b.

    The losses of negatives are assumed to change with the bias as those of the maxima do, times
    the ratio at b. Newton's method alone goes up too far, to where most chunks must be read, and
    comes down slowly.
    """
    start, part = b, chunk_sums(maxima, 1.0 + b)
    ratio = max(1.0, n.first / part.first) if part.first > 0.0 else 1.0
    for _ in range(MODEL_STEPS):
        n = HingeSums(ratio * part.first, 0.0, ratio * part.weight, 0.0)
        slope, curvature = slope_and_curvature(o, b, n, sum_positives(positives, b))
        b -= slope / curvature
        if abs(slope) <= MODEL_TOLERANCE * curvature * abs(b - start):
            break
        part = chunk_sums(maxima, 1.0 + b)
    return b


@inner()
def best_bias(
    o: Objective,
    scores: Any,
    maxima: Any,
    weights: Float32,
    samples: Int32,
    factor: float,
    b: float,
    excess: float,
    tolerance: float,
) -> tuple[float, float, int]:
    """Return the bias that minimises the primal at fixed w, starting at `b`.

    Also returns tau_bias/2 b^2 + the sum of losses there, and the number of samples with a loss.
    samples: the positives. maxima: (ceil(N / CHUNK),) output, see `chunk_maxima`; of the negatives.
    Newton's method on a monotone piecewise-linear slope, kept in a bracket. It ends when at most
    `tolerance` times the sum of `excess` and the objective is left to gain: the violating samples
    of one side go on violating on the way to the minimum, and bound the curvature from below.
    """
    squared = o.loss == SQUARED_HINGE
    low, high = -np.inf, np.inf
    best, least, violating = b, np.inf, 0
    positives = take_positives(scores, weights, samples, factor)
    chunk_maxima(scores, maxima)
    for step in range(MAX_BIAS_STEPS):
        n = sum_chunks(scores, maxima, weights, b)
        p = sum_positives(positives, b)
        slope, curvature = slope_and_curvature(o, b, n, p)
        value = o.C * (n.second + p.second if squared else n.first + p.first)
        value += 0.5 * o.tau_bias * b * b
        if value < least:
            best, least, violating = b, value, int(n.samples + p.samples)
        if slope > 0.0:
            high = min(high, b)
        else:
            low = max(low, b)
        least_curvature = o.tau_bias + 2.0 * o.C * (p.weight if slope > 0.0 else n.weight)
        if squared and 0.5 * slope * slope <= least_curvature * tolerance * (excess + value):
            break
        new = b - slope / curvature
        if squared and step < MODELLED_STEPS:
            new = modelled_bias(o, maxima, positives, b, n)
        if not low <= new <= high or (not squared and np.isfinite(low) and np.isfinite(high)):
            # outside the bracket, or the slope of the hinge, which jumps
            new = 0.5 * (low + high)
        if abs(new - b) <= 1e-12 * (1.0 + abs(b)):
            break
        b = new
    for q, i in enumerate(samples):
        scores[i] = positives.scores[q]
    return best, least, violating
