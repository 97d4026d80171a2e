"""Momentum of sweeps: after each, the best point in the plane of its change and the one before.

Coordinate descent is slow where rows are long and similar. So after a sweep the dual is maximised
over alpha + x d + y p, with d the change of this sweep and p the change between the starts of the
last two, by its quadratic model at the current signs of w. Where the active set and the signs stay
the same this is the method of conjugate gradients, preconditioned by sweeps. A move that does not
raise the dual is undone, so sweeps converge as without it.

Source: Notay, "Flexible conjugate gradients", SIAM Journal on Scientific Computing, 2000.
"""

from typing import Any, NamedTuple

from xcray.arrays import Float64
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import Objective
from xcray.kernels.training.ppdsparse.dual import bias_of, soft_square
from xcray.kernels.training.ppdsparse.rows import add_row
from xcray.kernels.training.ppdsparse.state import PPDSparseScratch

MIN_ANGLE = 1e-9  # minimum of 1 - cos^2 of the angle between d and p


class Plane(NamedTuple):
    """The negative dual at x = y = 0, and its first and second derivatives there."""

    value: float
    x: float
    y: float
    xx: float
    xy: float
    yy: float


@inner(allocates=False)
def save_start(scratch: PPDSparseScratch, at: Any) -> None:
    """Save the point at which the next sweep starts. No change is known before it."""
    for t in range(at.n_touched):
        scratch.v_start[t], scratch.v_change[t] = scratch.v[t], 0.0
    for r in scratch.active[: at.n_active]:
        scratch.alpha_start[r], scratch.alpha_change[r] = scratch.rows[r].alpha, 0.0
    at.vb_start, at.vb_change, at.n_start = at.vb, 0.0, at.n_active


@inner(allocates=False, fastmath={"reassoc", "nsz", "contract"})
def plane_of_weights(v: Float64, start: Float64, change: Float64, lam: float) -> Plane:
    """Return the part of tau^2/2 |w|^2, with v at the end of the sweep; SIMD."""
    square, dx, dy, dxx, dxy, dyy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for t in range(len(v)):
        w = v[t] - max(-lam, min(lam, v[t]))
        d, p = v[t] - start[t], change[t]
        square += w * w
        dx += w * d
        dy += w * p
        d, p = d if w != 0.0 else 0.0, p if w != 0.0 else 0.0
        dxx += d * d
        dxy += d * p
        dyy += p * p
    return Plane(0.5 * square, dx, dy, dxx, dxy, dyy)


@inner(allocates=False)
def plane_of_alpha(scratch: PPDSparseScratch, at: Any) -> Plane:
    """Return the part of the terms of alpha."""
    value, dx, dy, dxx, dxy, dyy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for r in scratch.active[: at.n_start]:
        inv, alpha = scratch.rows[r].inv, scratch.rows[r].alpha
        d, p = alpha - scratch.alpha_start[r], scratch.alpha_change[r]
        value += 0.5 * inv * alpha * alpha - alpha
        dx += (alpha * inv - 1.0) * d
        dy += (alpha * inv - 1.0) * p
        dxx += inv * d * d
        dxy += inv * d * p
        dyy += inv * p * p
    return Plane(value, dx, dy, dxx, dxy, dyy)


@inner(allocates=False)
def plane_of(o: Objective, scratch: PPDSparseScratch, at: Any) -> Plane:
    """Return the plane at the end of a sweep; the bias is held near its center."""
    n = at.n_touched
    a = plane_of_alpha(scratch, at)
    w = plane_of_weights(scratch.v[:n], scratch.v_start[:n], scratch.v_change[:n], o.lam)
    d, p, b = at.vb - at.vb_start, at.vb_change, o.tau * bias_of(o, at)
    return Plane(
        a.value + (w.value + 0.5 * b * b) / o.tau,
        a.x + (w.x + b * d) / o.tau,
        a.y + (w.y + b * p) / o.tau,
        a.xx + (w.xx + d * d) / o.tau,
        a.xy + (w.xy + d * p) / o.tau,
        a.yy + (w.yy + p * p) / o.tau,
    )


@inner(allocates=False)
def best_point(f: Plane) -> tuple[float, float]:
    """Return x and y of the minimum; zeros if d and p are parallel, or p is zero."""
    det = f.xx * f.yy - f.xy * f.xy
    if not det > MIN_ANGLE * f.xx * f.yy:
        return 0.0, 0.0
    return (f.xy * f.y - f.yy * f.x) / det, (f.xy * f.x - f.xx * f.y) / det


@inner(allocates=False, fastmath={"contract"})
def move_v(v: Float64, start: Float64, change: Float64, x: float, y: float) -> None:
    """Move v by x d + y p. `start` becomes the v of before, and p becomes d; SIMD."""
    for t in range(len(v)):
        end, d = v[t], v[t] - start[t]
        v[t] = end + x * d + y * change[t]
        start[t], change[t] = end, d


@inner(allocates=False)
def move(o: Objective, scratch: PPDSparseScratch, at: Any, x: float, y: float) -> float:
    """Move to a point of the plane, and return the negative dual there.

    Alphas that would leave their bounds stay there, and so do those that left the active set. The
    saved start becomes the end of the sweep, and the saved change becomes d.
    """
    n, value = at.n_touched, 0.0
    move_v(scratch.v[:n], scratch.v_start[:n], scratch.v_change[:n], x, y)
    end, d = at.vb, at.vb - at.vb_start
    at.vb = end + x * d + y * at.vb_change
    at.vb_start, at.vb_change = end, d
    for a in range(at.n_start):
        r = scratch.active[a]
        row = scratch.rows[r]
        alpha, d = row.alpha, row.alpha - scratch.alpha_start[r]
        new = alpha + x * d + y * scratch.alpha_change[r]
        row.alpha = min(row.upper, max(0.0, new)) if a < at.n_active else 0.0
        if row.alpha != new:
            step = row.sign * (row.alpha - new)
            add_row(scratch, row, step)
            at.vb += step
            at.work += row.length
        value += 0.5 * row.inv * row.alpha * row.alpha - row.alpha
        scratch.alpha_start[r], scratch.alpha_change[r] = alpha, d
    b = o.tau * bias_of(o, at)
    return value + 0.5 * (soft_square(scratch.v[:n], o.lam) + b * b) / o.tau


@inner(allocates=False)
def accept(scratch: PPDSparseScratch, at: Any) -> None:
    """Make the point after `move` the start of the next sweep."""
    for t in range(at.n_touched):
        scratch.v_change[t] += scratch.v[t] - scratch.v_start[t]
        scratch.v_start[t] = scratch.v[t]
    for r in scratch.active[: at.n_active]:
        scratch.alpha_change[r] += scratch.rows[r].alpha - scratch.alpha_start[r]
        scratch.alpha_start[r] = scratch.rows[r].alpha
    at.vb_change += at.vb - at.vb_start
    at.vb_start = at.vb


@inner(allocates=False)
def undo(scratch: PPDSparseScratch, at: Any) -> None:
    """Return to the end of the sweep."""
    for t in range(at.n_touched):
        scratch.v[t] = scratch.v_start[t]
    for r in scratch.active[: at.n_active]:
        scratch.rows[r].alpha = scratch.alpha_start[r]
    at.vb = at.vb_start


@inner(allocates=False)
def add_momentum(o: Objective, scratch: PPDSparseScratch, at: Any) -> None:
    """Move to the best point of the plane if it raises the dual; the next sweep starts there."""
    plane = plane_of(o, scratch, at)
    x, y = best_point(plane)
    if move(o, scratch, at, x, y) < plane.value:
        accept(scratch, at)
    else:
        undo(scratch, at)
    at.n_start = at.n_active
