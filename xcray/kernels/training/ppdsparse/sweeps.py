"""Sweeps of dual coordinate descent over the active set (PPDSparse, Algorithm 2).

A sweep adds up the duality gap of the active samples: the primal point of alpha has the scores that
a sweep computes anyway, and the terms of w cancel. This gap says when the active set is solved as
precisely as the certificate over all samples needs it.
"""

from typing import Any

import numpy as np

from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.random import shuffle
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective
from xcray.kernels.training.ppdsparse.dual import bias_of
from xcray.kernels.training.ppdsparse.momentum import add_momentum, save_start
from xcray.kernels.training.ppdsparse.rows import ROWS_AHEAD, add_row, soft_dot
from xcray.kernels.training.ppdsparse.state import (
    SCORE,
    SWEEP,
    PPDSparseScratch,
    PPDSparseSettings,
)

# sweeps end when the gap of the active samples is at most one of these, as share of the requested
# gap and of the last certified one
END_SHARE, EARLY_END_SHARE = 0.5, 0.1
SLOW_SHARE = 0.5  # of the gap of the last sweep; if more is left, sweeps need momentum


@inner(allocates=False)
def start_sweeps(s: PPDSparseSettings, at: Any) -> None:
    """Start the sweeps of a round, without momentum."""
    at.sweeps_left, at.swept, at.n_start, at.gap_before = s.max_sweeps, 0, 0, np.inf
    at.phase = SWEEP


@inner(allocates=False)
def sample_gap(o: Objective, row: Any, z: float) -> float:
    """Return the gap of a sample: its loss at margin violation z, minus its part of the dual."""
    loss = max(0.0, z)
    if o.loss == SQUARED_HINGE:
        loss *= loss
    gap: float = row.cost * loss - row.alpha * z + 0.5 * row.inv * row.alpha * row.alpha
    return gap


@inner(allocates=False, fastmath={"reassoc", "nsz", "nnan", "contract"})
def sweep(s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any, budget: int) -> int:
    """Run one pass of dual coordinate descent over the active set, and return the visited entries.

    Stops early when the budget is used up.
    """
    v, o = scratch.v, s.objective
    vb, gap, pull = at.vb, at.active_gap, (o.tau - o.tau_bias) * at.center
    if at.position == 0:
        at.counter = shuffle(scratch.active[: at.n_active], at.counter)
        gap = 0.0
    work = 0
    a = at.position
    # a sweep is interrupted after a sample that stays: position 0 is the start of a sweep
    while a < at.n_active and (a == 0 or work < budget):
        if a + ROWS_AHEAD < at.n_active:
            prefetch(scratch.rows, scratch.active[a + ROWS_AHEAD])
        if a + 1 < at.n_active:
            prefetch(scratch.entries, scratch.rows[scratch.active[a + 1]].begin)
        row = scratch.rows[scratch.active[a]]
        a += 1
        dot = soft_dot(scratch.entries, scratch.values, row, v, o.lam)
        work += row.length
        z = 1.0 - row.sign * (dot + vb + pull) / o.tau
        gap += sample_gap(o, row, z)
        gradient = row.alpha * row.inv - z
        if row.alpha <= 0.0 and gradient >= 0.0:
            if row.sign < 0.0:  # shrink: it can be added again after the next scoring pass
                a -= 1
                at.n_active -= 1
                last, this = scratch.active[at.n_active], scratch.active[a]
                scratch.active[a] = last
                scratch.active[at.n_active] = this  # still in the momentum
                scratch.is_active[row.sample] = 0
            continue
        step = min(row.upper, max(0.0, row.alpha - gradient * row.rate)) - row.alpha
        if step != 0.0:
            row.alpha += step
            add_row(scratch, row, row.sign * step)
            vb += row.sign * step
            work += row.length
    at.vb, at.active_gap, at.work, at.swept = vb, gap, at.work + work, at.swept + work
    at.position = a if a < at.n_active else 0
    return work


@inner(allocates=False)
def after_sweep(s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any) -> None:
    """Score if the active set is solved well enough, or after the last sweep; else add momentum."""
    o = s.objective
    at.active_gap += 0.5 * o.tau_bias * (bias_of(o, at) - at.vb / o.tau_bias) ** 2
    at.sweeps += 1
    at.sweeps_left -= 1
    enough = max(END_SHARE * s.eps * at.null, EARLY_END_SHARE * min(at.gap, at.null))
    if at.active_gap <= enough or at.sweeps_left <= 0:
        at.phase = SCORE
    elif at.n_start > 0:
        add_momentum(o, scratch, at)
    elif at.active_gap > SLOW_SHARE * at.gap_before:
        save_start(scratch, at)
    at.gap_before = at.active_gap
    at.center = bias_of(o, at)
