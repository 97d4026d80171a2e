"""Scores of all samples in PPDSparse: which changed weights are applied, along posting lists."""

from typing import Any

import numpy as np

from xcray.arrays import Float32, Float64, Int32
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.training.hinge import soft
from xcray.kernels.training.ppdsparse.rows import LINE_ENTRIES
from xcray.kernels.training.ppdsparse.state import (
    PPDSparseProblem,
    PPDSparseScratch,
    PPDSparseSettings,
)

LIST_OVERHEAD = 32.0  # cost of starting a posting list, in entries
# entries of lists that are visited in any case, as share of those that the sweeps visited
APPLY_SHARE = 0.5
N_POWERS = 300  # bins of `choose_changes`, by powers of two from 2^-200 to 2^99
LINES_AHEAD, FEATURES_AHEAD = 16, 16  # distances of prefetches


@inner(allocates=False)
def power_of(value: float) -> int:
    """Return the number of the bin of a value above 0: its exponent, from -200 to 99, plus 200."""
    bits: Any = np.float64(value).view(np.int64)
    power: int = min(N_POWERS - 1, max(0, (bits >> 52) - 1023 + 200))
    return power


@inner(allocates=False, fastmath={"nnan", "nsz"})
def changed_weights(
    v: Float64, weight: Float32, n_touched: int, lam: float, tau: float, numbers: Int32
) -> int:
    """Write the numbers of the weights that differ from those in the scores; return how many.

    Without a branch to mispredict: most rare features have no weight.
    """
    n = np.uint64(0)
    for t in range(np.uint64(n_touched)):
        u = v[t]
        numbers[n] = np.int32(t)
        n += np.uint64(np.float32((u - max(-lam, min(lam, u))) / tau) != weight[t])
    return int(n)


@inner(allocates=False)
def set_list_cost(problem: PPDSparseProblem, C: float, scratch: PPDSparseScratch, t: int) -> None:
    """Set the length and the curvature of feature number t, on its first change."""
    j = scratch.touched[t]
    scratch.length[t] = problem.XT.indptr[j + 1] - problem.XT.indptr[j] + LIST_OVERHEAD
    scratch.curvature[t] = C * problem.column_sq[j]


@inner(allocates=False)
def bin_changes(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    scratch: PPDSparseScratch,
    at: Any,
    gains: Float64,
    lengths: Float64,
) -> int:
    """Collect the changed weights and their bins, by gain per entry; return their number.

    gains, lengths: sums by bin. A change d of weight j changes the primal by about
    d^2 (tau/2 + C sum of x_ij^2 over violating samples) around its minimum.
    """
    lam, tau, C = s.objective.lam, s.objective.tau, s.objective.C
    share = max(0.05, at.violating / len(scratch.scores)) if at.rounds > 0 else 1.0
    n = changed_weights(scratch.v, scratch.weight, at.n_touched, lam, tau, scratch.chosen)
    for k in range(n):
        if k + FEATURES_AHEAD < n:
            ahead = scratch.touched[scratch.chosen[k + FEATURES_AHEAD]]
            prefetch(problem.XT.indptr, ahead)
            prefetch(problem.column_sq, ahead)
        t = scratch.chosen[k]
        if scratch.length[t] == 0.0:
            set_list_cost(problem, C, scratch, t)
        change = np.float32(soft(scratch.v[t], lam) / tau) - scratch.weight[t]
        gain = change * change * (0.5 * tau + share * scratch.curvature[t])
        power = power_of(gain / scratch.length[t])
        gains[power] += gain
        lengths[power] += scratch.length[t]
        scratch.power[k] = power
    return n


@inner()
def choose_changes(
    problem: PPDSparseProblem, s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any
) -> None:
    """Choose the changes of weights to apply: all but those that gain least per entry of a list.

    The deferred ones cost at most `budget` together. Where sweeps took longer than the lists of the
    deferred changes would, these are applied as well.
    """
    for t in range(at.n_priced, at.n_touched):
        scratch.weight[t], scratch.length[t] = 0.0, 0.0
    at.n_priced = at.n_touched
    gains, lengths = np.zeros(N_POWERS), np.zeros(N_POWERS)
    n = bin_changes(problem, s, scratch, at, gains, lengths)
    power, deferred, applied = 0, 0.0, lengths.sum()
    while power < N_POWERS and (
        deferred + gains[power] <= at.budget and applied > APPLY_SHARE * at.swept
    ):
        deferred += gains[power]
        applied -= lengths[power]
        power += 1
    at.waiting, at.n_chosen = deferred, 0
    for k in range(n):
        scratch.chosen[at.n_chosen] = scratch.chosen[k]
        at.n_chosen += scratch.power[k] >= power


@inner()
def score(
    problem: PPDSparseProblem, s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any, budget: int
) -> int:
    """Apply all changes that are not deferred to the scores, as far as the budget allows.

    Most posting lists are short and wait for memory. So prefetches run LINES_AHEAD cache lines
    ahead, through the rest of a list and the next ones.
    """
    if at.position == 0:
        choose_changes(problem, s, scratch, at)
    indptr, indices, data = problem.XT.indptr, problem.XT.indices, problem.XT.data
    chosen, touched, scores = scratch.chosen, scratch.touched, scratch.scores
    line = np.uint64(LINE_ENTRIES - 1)
    work, k, n = 0, at.position, at.n_chosen
    # the next line to prefetch is that of entry q, in list `ahead`; lines: prefetched and not read,
    # minus LINES_AHEAD
    ahead, q, q_end, lines = k - 1, np.uint64(0), np.uint64(0), -LINES_AHEAD
    while k < n and work < budget:
        t = chosen[k]
        j, w = touched[t], np.float32(soft(scratch.v[t], s.objective.lam) / s.objective.tau)
        change = w - scratch.weight[t]
        p, end = np.uint64(indptr[j]), np.uint64(indptr[j + 1])
        work += indptr[j + 1] - indptr[j]
        while p < end:
            while lines <= 0:
                while q >= q_end and ahead + 1 < n:
                    ahead += 1
                    j = touched[chosen[ahead]]
                    q, q_end = np.uint64(indptr[j]), np.uint64(indptr[j + 1])
                prefetch(indices, q)
                prefetch(data, q)
                q = (q | line) + np.uint64(1)
                lines += 1
            stop = min(end, (p | line) + np.uint64(1))
            for e in range(p, stop):
                scores[np.uint32(indices[e])] += change * data[e]
            p = stop
            lines -= 1
        scratch.weight[t] = w
        k += 1
    at.work += work
    at.position = k
    return work
