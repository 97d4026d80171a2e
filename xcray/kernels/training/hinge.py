"""Hinge losses of one class at given scores: SIMD sums over samples, best bias, null objective.

    squared hinge: loss_i = cost_i z_+^2      hinge: loss_i = cost_i z_+      z = 1 - y (score + b)

cost_i = C times the weight of sample i, for positives also times the positive weight of the class.
`weights` is (N,) float32, or empty if all are one. Scores are float32 or float64. Sums over chunks
of samples are computed in the precision of the scores, sums of chunks in float64.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Int32
from xcray.kernels.inner import inner

SQUARED_HINGE, HINGE = 0, 1
MAX_BIAS_STEPS = 100  # Newton steps of `best_bias`
CHUNK_SAMPLES = 256  # samples summed in the precision of the scores


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


@inner(fastmath={"reassoc", "nsz", "nnan"})
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


@inner(fastmath={"reassoc", "nsz", "nnan"})
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


@inner()
def sum_chunks(
    scores: Any, weights: Float32, b: float, chunks: Int32, n_chunks: int
) -> tuple[HingeSums, int]:
    """Return the sums over the samples of `chunks`, all as negatives: z = (1 + score + b)_+.

    Moves the chunks that have a sample with z > 0 to the front, and returns their number: at a
    smaller b only they count.
    """
    first, second, weight, count, kept = 0.0, 0.0, 0.0, 0.0, 0
    for k in range(n_chunks):
        lo = chunks[k] * CHUNK_SAMPLES
        hi = min(len(scores), lo + CHUNK_SAMPLES)
        if len(weights) > 0:
            part = weighted_sums(scores[lo:hi], weights[lo:hi], 1.0 + b)
        else:
            part = chunk_sums(scores[lo:hi], 1.0 + b)
        first += part.first
        second += part.second
        weight += part.weight
        count += part.samples
        chunks[kept] = chunks[k]
        kept += part.samples > 0.0
    return HingeSums(first, second, weight, count), kept


@inner()
def split_positives(
    n: HingeSums, scores: Any, weights: Float32, positives: Int32, factor: float, b: float
) -> tuple[HingeSums, HingeSums]:
    """Return the sums of the negatives and of the positives, from those of all as negatives.

    The weights of positives are multiplied by `factor`.
    """
    n1, n2, nw, nc = n.first, n.second, n.weight, n.samples
    p1, p2, pw, pc = 0.0, 0.0, 0.0, 0.0
    for i in positives:
        c = np.float64(weights[i]) if len(weights) > 0 else 1.0
        f = scores[i] + b
        z = max(0.0, 1.0 + f)
        on = 1.0 if z > 0.0 else 0.0
        n1, n2, nw, nc = n1 - c * z, n2 - c * z * z, nw - c * on, nc - on
        c *= factor
        z = max(0.0, 1.0 - f)
        on = 1.0 if z > 0.0 else 0.0
        p1, p2, pw, pc = p1 + c * z, p2 + c * z * z, pw + c * on, pc + on
    return HingeSums(n1, n2, nw, nc), HingeSums(p1, p2, pw, pc)


@inner()
def best_bias(
    o: Objective,
    scores: Any,
    weights: Float32,
    positives: Int32,
    factor: float,
    b: float,
    excess: float,
    tolerance: float,
) -> tuple[float, float, int]:
    """Return the bias that minimises the primal at fixed w, starting at `b`.

    Also returns tau_bias/2 b^2 + the sum of losses there, and the number of samples with a loss.
    Newton's method on a monotone piecewise-linear slope, kept in a bracket. It ends when at most
    `tolerance` times the sum of `excess` and the objective is left to gain: the violating samples
    of one side go on violating on the way to the minimum, and bound the curvature from below.
    While the bias falls, only chunks that had a violating sample are read again.
    """
    squared = o.loss == SQUARED_HINGE
    low, high = -np.inf, np.inf
    best, least, violating = b, np.inf, 0
    chunks = np.empty((len(scores) + CHUNK_SAMPLES - 1) // CHUNK_SAMPLES, np.int32)
    n_chunks, evaluated = 0, -np.inf
    for _ in range(MAX_BIAS_STEPS):
        if b > evaluated:
            n_chunks = len(chunks)
            for c in range(n_chunks):
                chunks[c] = c
        evaluated = b
        all_negative, n_chunks = sum_chunks(scores, weights, b, chunks, n_chunks)
        n, p = split_positives(all_negative, scores, weights, positives, factor, b)
        if squared:
            value = o.C * (n.second + p.second)
            slope = o.tau_bias * b + 2.0 * o.C * (n.first - p.first)
            curvature = o.tau_bias + 2.0 * o.C * (n.weight + p.weight)
        else:
            value = o.C * (n.first + p.first)
            slope = o.tau_bias * b + o.C * (n.weight - p.weight)
            curvature = o.tau_bias
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
        if not low <= new <= high or (not squared and np.isfinite(low) and np.isfinite(high)):
            # outside the bracket, or the slope of the hinge, which jumps
            new = 0.5 * (low + high)
        if abs(new - b) <= 1e-12 * (1.0 + abs(b)):
            break
        b = new
    return best, least, violating
