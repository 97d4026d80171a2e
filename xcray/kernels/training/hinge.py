"""The hinge losses of one class at known scores: sums over all samples in SIMD, the best bias, the null objective.

    squared hinge: loss_i = cost_i z_+^2      hinge: loss_i = cost_i z_+      z = 1 - y (score + b)

cost_i = C times the weight of sample i, for positives times the class's positive weight. `weights` is (N,) float32, or
empty when all are one. Scores are float32 or float64; sums over chunks of samples are made in their precision, sums of
chunks in float64.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Int32

SQUARED_HINGE, HINGE = 0, 1
CHUNK = 1024  # samples summed up in the scores' own precision


class Objective(NamedTuple):
    """What every class minimises: lam |w|_1 + tau/2 (|w|^2 + b^2) + sum of losses; `loss` is SQUARED_HINGE or HINGE."""

    loss: int
    lam: float
    tau: float
    C: float


class Sums(NamedTuple):
    """Over samples with z > 0, weighted: sum of z, of z^2, of 1; and how many they are."""

    first: float
    second: float
    weight: float
    samples: float


@numba.njit(nogil=True, cache=True)
def soft(v: float, lam: float) -> float:
    """The proximal operator of lam |.|: v moved towards zero by lam."""
    if v > lam:
        return v - lam
    if v < -lam:
        return v + lam
    return 0.0


@numba.njit(nogil=True, cache=True)
def null_objective(o: Objective, positive: float, negative: float) -> float:
    """The primal at w = 0 with the best bias: what predicting from the class's frequency alone costs.

    positive, negative: total weights of the positives and of the negatives.
    """
    if o.loss == SQUARED_HINGE:
        b = 2.0 * o.C * (positive - negative) / (o.tau + 2.0 * o.C * (positive + negative))
        return 0.5 * o.tau * b * b + o.C * (positive * (1.0 - b) ** 2 + negative * (1.0 + b) ** 2)
    b = min(1.0, max(-1.0, o.C * (positive - negative) / o.tau))
    return 0.5 * o.tau * b * b + o.C * (positive * (1.0 - b) + negative * (1.0 + b))


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "nnan"})
def chunk_sums(scores: Any, shift: float) -> Sums:
    """Sums of a chunk of negatives, all of weight one; SIMD."""
    number = scores.dtype.type
    zero, one, by = number(0.0), number(1.0), number(shift)
    first, second, count = zero, zero, zero
    for i in range(len(scores)):
        z = scores[i] + by
        z = z if z > zero else zero
        first += z
        second += z * z
        count += one if z > zero else zero
    return Sums(np.float64(first), np.float64(second), np.float64(count), np.float64(count))


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "nnan"})
def weighted_sums(scores: Any, weights: Float32, shift: float) -> Sums:
    """Sums of a chunk of negatives with their weights; SIMD."""
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
    return Sums(np.float64(first), np.float64(second), np.float64(weight), np.float64(count))


@numba.njit(nogil=True, cache=True)
def all_as_negatives(scores: Any, weights: Float32, b: float) -> Sums:
    """Sums over all samples as if all were negatives: z = (1 + score + b)_+."""
    first, second, weight, count = 0.0, 0.0, 0.0, 0.0
    for lo in range(0, len(scores), CHUNK):
        hi = min(len(scores), lo + CHUNK)
        if len(weights) > 0:
            part = weighted_sums(scores[lo:hi], weights[lo:hi], 1.0 + b)
        else:
            part = chunk_sums(scores[lo:hi], 1.0 + b)
        first += part.first
        second += part.second
        weight += part.weight
        count += part.samples
    return Sums(first, second, weight, count)


@numba.njit(nogil=True, cache=True)
def signed_sums(
    scores: Any, weights: Float32, positives: Int32, factor: float, b: float
) -> tuple[Sums, Sums]:
    """Sums of the negatives, and of the positives with `factor` times their weight."""
    n = all_as_negatives(scores, weights, b)
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
    return Sums(n1, n2, nw, nc), Sums(p1, p2, pw, pc)


@numba.njit(nogil=True, cache=True)
def best_bias(
    o: Objective,
    scores: Any,
    weights: Float32,
    positives: Int32,
    factor: float,
    b: float,
    enough: float,
    steps: int,
) -> tuple[float, float, int]:
    """The bias that minimises the primal at fixed w, to within about `enough`, from `b` on.

    With tau/2 b^2 + the sum of losses there, and how many samples have a loss. Newton's method on a monotone piecewise
    linear slope, kept in a bracket, `steps` at most.
    """
    squared = o.loss == SQUARED_HINGE
    low, high = -np.inf, np.inf
    best, least, violating = b, np.inf, 0
    for _ in range(steps):
        n, p = signed_sums(scores, weights, positives, factor, b)
        if squared:
            value = o.C * (n.second + p.second)
            slope = o.tau * b + 2.0 * o.C * (n.first - p.first)
            curvature = o.tau + 2.0 * o.C * (n.weight + p.weight)
        else:
            value = o.C * (n.first + p.first)
            slope = o.tau * b + o.C * (n.weight - p.weight)
            curvature = o.tau
        if value + 0.5 * o.tau * b * b < least:
            best, least, violating = b, value + 0.5 * o.tau * b * b, int(n.samples + p.samples)
        if slope > 0.0:
            high = min(high, b)
        else:
            low = max(low, b)
        if squared and 0.5 * slope * slope / curvature <= enough:
            break
        new = b - slope / curvature
        if not low <= new <= high or (not squared and np.isfinite(low) and np.isfinite(high)):
            new = 0.5 * (low + high)  # outside the bracket; and the hinge's slope jumps
        if abs(new - b) <= 1e-12 * (1.0 + abs(b)):
            break
        b = new
    return best, least, violating
