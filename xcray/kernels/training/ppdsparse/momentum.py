"""Momentum of sweeps: after each, the best point in the plane of its change and the one before.

Coordinate descent is slow where rows are long and similar. So after a sweep the dual is maximised
over alpha + x d + y p, with d the change of this sweep and p the change between the starts of the
last two, by its quadratic model at the current signs of w. Where the active set and the signs stay
the same this is the method of conjugate gradients, preconditioned by sweeps.

Source: Notay, "Flexible conjugate gradients", SIAM Journal on Scientific Computing, 2000.
"""

from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import Objective
from xcray.kernels.training.ppdsparse.dual import bias_of, cost, dual_terms
from xcray.kernels.training.ppdsparse.state import POSITIVE, PPDSparseProblem, PPDSparseScratch

MIN_ANGLE = 1e-9  # minimum of 1 - cos^2 of the angle between d and p


class Plane(NamedTuple):
    """Derivatives of the negative dual by x and y at x = y = 0, and its second derivatives."""

    x: float
    y: float
    xx: float
    xy: float
    yy: float


@inner()
def save_start(scratch: PPDSparseScratch, at: Any) -> None:
    """Save the point at which the next sweep starts. No change is known before it."""
    n = at.n_touched
    scratch.v_start[:n] = scratch.v[:n]
    scratch.v_change[:n] = 0.0
    for i in scratch.active[: at.n_active]:
        scratch.alpha_start[i] = scratch.alpha[i]
        scratch.alpha_change[i] = 0.0
    at.vb_start, at.vb_change = at.vb, 0.0
    at.n_start = at.n_active


@inner(fastmath={"reassoc", "nsz", "contract"})
def plane_of_weights(v: Float64, start: Float64, change: Float64, lam: float) -> Plane:
    """Return the part of tau^2/2 |w|^2, with v at the end of the sweep; SIMD."""
    dx, dy, dxx, dxy, dyy = 0.0, 0.0, 0.0, 0.0, 0.0
    for t in range(len(v)):
        w = v[t] - max(-lam, min(lam, v[t]))
        d, p = v[t] - start[t], change[t]
        dx += w * d
        dy += w * p
        d, p = d if w != 0.0 else 0.0, p if w != 0.0 else 0.0
        dxx += d * d
        dxy += d * p
        dyy += p * p
    return Plane(dx, dy, dxx, dxy, dyy)


@inner()
def plane_of_alpha(
    problem: PPDSparseProblem, o: Objective, scratch: PPDSparseScratch, at: Any
) -> Plane:
    """Return the part of the terms of alpha."""
    dx, dy, dxx, dxy, dyy = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in scratch.active[: at.n_start]:
        c = cost(problem, o, at.factor, i, scratch.kind[i] == POSITIVE)
        inv, alpha = dual_terms(o, c)[0], scratch.alpha[i]
        d, p = alpha - scratch.alpha_start[i], scratch.alpha_change[i]
        dx += (alpha * inv - 1.0) * d
        dy += (alpha * inv - 1.0) * p
        dxx += inv * d * d
        dxy += inv * d * p
        dyy += inv * p * p
    return Plane(dx, dy, dxx, dxy, dyy)


@inner()
def best_in_plane(
    problem: PPDSparseProblem, o: Objective, scratch: PPDSparseScratch, at: Any
) -> tuple[float, float]:
    """Return x and y of the maximum of the model; zeros if d and p are parallel, or p is zero."""
    n = at.n_touched
    a = plane_of_alpha(problem, o, scratch, at)
    w = plane_of_weights(scratch.v[:n], scratch.v_start[:n], scratch.v_change[:n], o.lam)
    d, p, b = at.vb - at.vb_start, at.vb_change, o.tau * bias_of(o, at)
    dx, dy = a.x + (w.x + b * d) / o.tau, a.y + (w.y + b * p) / o.tau
    dxx, dyy = a.xx + (w.xx + d * d) / o.tau, a.yy + (w.yy + p * p) / o.tau
    dxy = a.xy + (w.xy + d * p) / o.tau
    det = dxx * dyy - dxy * dxy
    if not det > MIN_ANGLE * dxx * dyy:
        return 0.0, 0.0
    return (dxy * dy - dyy * dx) / det, (dxy * dx - dxx * dy) / det


@inner(fastmath={"contract"})
def move(v: Float64, start: Float64, change: Float64, x: float, y: float) -> None:
    """Move v by x d + y p; p becomes the move since `start`, and `start` becomes v; SIMD."""
    for t in range(len(v)):
        new = v[t] + x * (v[t] - start[t]) + y * change[t]
        change[t] = new - start[t]
        start[t], v[t] = new, new


@inner()
def move_row(X: CSR, i: int, step: float, scratch: PPDSparseScratch, at: Any) -> None:
    """Add step x_i to v at the start of the next sweep, and to the change that led there."""
    e = np.uint64(scratch.row_begins[i] - 1)
    for p in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        t, part = np.uint32(scratch.entries[e]), step * X.data[p]
        scratch.v[t] += part
        scratch.v_start[t] += part
        scratch.v_change[t] += part
        e += np.uint64(1)
    at.vb += step
    at.work += X.indptr[i + 1] - X.indptr[i]


@inner()
def add_momentum(
    problem: PPDSparseProblem, o: Objective, scratch: PPDSparseScratch, at: Any
) -> None:
    """Move to the best point of the plane, from which the next sweep starts.

    Alphas that would leave their bounds stay there. If the last move made the gap larger, only the
    change of the sweep is kept, as the direction for the next time.
    """
    n, n_active = at.n_touched, at.n_active
    x, y = 0.0, 0.0
    if at.active_gap <= at.gap_before:
        x, y = best_in_plane(problem, o, scratch, at)
    move(scratch.v[:n], scratch.v_start[:n], scratch.v_change[:n], x, y)
    at.vb += x * (at.vb - at.vb_start) + y * at.vb_change
    for a in range(at.n_start):
        i = scratch.active[a]
        positive = scratch.kind[i] == POSITIVE
        upper = dual_terms(o, cost(problem, o, at.factor, i, positive))[1]
        start, alpha = scratch.alpha_start[i], scratch.alpha[i]
        new = alpha + x * (alpha - start) + y * scratch.alpha_change[i]
        kept = min(upper, max(0.0, new)) if a < n_active else 0.0  # else: it left the active set
        if kept != new:
            move_row(problem.X, i, kept - new if positive else new - kept, scratch, at)
        scratch.alpha_change[i] = kept - start
        scratch.alpha_start[i], scratch.alpha[i] = kept, kept
    at.vb_change, at.vb_start, at.n_start = at.vb - at.vb_start, at.vb, n_active
