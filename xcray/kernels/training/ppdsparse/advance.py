"""PPDSparse kernel: one-vs-rest classes by active-set dual coordinate descent, with certificates.

For one class, with y_i = +1 or -1 (`xcray.solvers.ppdsparse` states the problem and its sources):

    primal  P(w, b) = lam |w|_1 + tau/2 |w|^2 + tau_bias/2 b^2 + sum_i loss_i(1 - y_i (w.x_i + b))
    dual    D(alpha) = sum_i alpha_i - 1/2 sum_i inv_i alpha_i^2
                       - tau/2 |w(alpha)|^2 - tau_bias/2 b(alpha)^2,   0 <= alpha_i <= upper_i
    v = sum_i alpha_i y_i x_i,   w(alpha) = soft(v, lam) / tau
    b(alpha) = sum_i alpha_i y_i / tau_bias

    squared hinge: loss_i = c_i z_+^2, inv_i = 1/(2 c_i), upper_i = infinity
    hinge: loss_i = c_i z_+, inv_i = 0, upper_i = c_i

The primal point is not w(alpha) but `weight`: the weights whose posting lists have been visited, so
that the scores of all samples are exactly theirs. Any primal and any dual point bound the optimum
from two sides. So a change of a weight can be deferred indefinitely if it is worth less to the
primal than the gap allows: frequent features with small changes cost most and gain least
(`choose_changes`). The certified weights are the exported ones.

The phases of a class are START -> SCORE -> (SWEEP -> SCORE)* -> EXPORT. `advance` runs such steps
until a batch of classes is done, its work budget is used up, or the output is full. The next call
continues from there: all state is in one record (`STATE`) and in the scratch memory, which is clean
between classes.
"""

from typing import Any

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Int32
from xcray.kernels.inner import inner
from xcray.kernels.random import stream
from xcray.kernels.training.hinge import best_bias, null_objective
from xcray.kernels.training.ppdsparse.dual import bias_of, dual_terms, soft_square
from xcray.kernels.training.ppdsparse.rows import add_row, add_rows
from xcray.kernels.training.ppdsparse.scores import score
from xcray.kernels.training.ppdsparse.state import (
    EXPORT,
    SCORE,
    START,
    SWEEP,
    BatchOutput,
    PPDSparseProblem,
    PPDSparseScratch,
    PPDSparseSettings,
)
from xcray.kernels.training.ppdsparse.sweeps import after_sweep, start_sweeps, sweep
from xcray.kernels.training.ppdsparse.violators import add_violators

DONE, BUDGET, FULL = 0, 1, 2  # results of `advance`

# Tuned on title and abstract data; none of these changes the optimum or the certificate.
# maximum cost of deferred changes, as share of the null objective, the gap, the requested gap
FIRST_DEFER_SHARE, EARLY_DEFER_SHARE, LATE_DEFER_SHARE = 3.0, 0.45, 1.0
# the same of the first score of a start from duals, as share of the requested gap; the estimate is
# high there, because it takes all samples as violating
WARM_DEFER_SHARE = 10.0
# real cost of deferring over the estimate of `choose_changes`, which treats features separately
DEFER_COST_FACTOR = 0.4
# if the gap without deferred changes is below this share of the requested one, apply more changes
# instead of sweeping again
NEAR_SHARE = 0.7
SEARCH_ROUNDS = 2  # first rounds, which sweep again in any case
BIAS_TOLERANCE = 0.1  # of the bias of the primal point, relative to the gap
STRICT_FACTOR = 0.3  # of that cost in late rounds, and in rounds without new violators


@inner()
def reset_class(
    problem: PPDSparseProblem, s: PPDSparseSettings, label: int, scratch: PPDSparseScratch, at: Any
) -> None:
    """Start a class: no weights, its positives active."""
    YT = problem.YT
    positives = YT.indices[YT.indptr[label] : YT.indptr[label + 1]]
    scratch.scores[:] = 0.0
    at.label, at.positives, at.n_active = label, len(positives), 0
    at.n_touched, at.n_priced, at.n_rows, at.n_entries = 0, 0, 0, 0
    at.rounds, at.sweeps, at.sweeps_left, at.position, at.work, at.swept = 0, 0, 0, 0, 0, 0
    at.nnz, at.support, at.violating, at.active_gap, at.vb = 0, 0, 0, 0.0, 0.0
    at.center = -1.0
    at.counter = stream(s.seed, label)
    at.factor = problem.factors[label] if len(problem.factors) > 0 else 1.0
    weight = 0.0
    for a in range(len(positives)):
        weight += problem.weights[positives[a]] if len(problem.weights) > 0 else 1.0
        scratch.entering[a] = positives[a]
    at.n_entering = len(positives)
    add_rows(problem, s.objective, 1.0, scratch, at)
    at.null = null_objective(s.objective, weight * at.factor, problem.total - weight)
    at.strict, at.budget = 1.0, FIRST_DEFER_SHARE * at.null
    at.dual, at.primal, at.gap, at.waiting = -np.inf, np.inf, np.inf, 0.0


@inner(allocates=False)
def start_from_positives(s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any) -> None:
    """Set the first dual point from the positives.

    Their alphas are proportional to their weights, with the best scale at b = -1.
    """
    o = s.objective
    total, square = 0.0, 0.0
    for row in scratch.rows[: at.n_rows]:
        weight = row.cost / o.C
        total += weight
        add_row(scratch, row, weight)
        at.work += row.length
    for t in range(at.n_touched):
        square += scratch.v[t] ** 2
    inv, upper = dual_terms(o, o.C)
    scale = min(upper, 2.0 / max(inv + square / (total * o.tau), 1e-12))
    for t in range(at.n_touched):
        scratch.v[t] *= scale
    for row in scratch.rows[: at.n_rows]:
        row.alpha = scale * row.cost / o.C
    at.vb = scale * total
    at.phase = SCORE


@inner(allocates=False)
def start_from_duals(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    samples: Int32,
    duals: Float32,
    scratch: PPDSparseScratch,
    at: Any,
) -> None:
    """Set the first dual point from given duals; their samples become active.

    Negative or too large alphas are clipped. Sweeps stay near the bias of the duals, and the first
    scores defer no more than a certificate allows, because they can be final.
    """
    for i in samples:
        scratch.entering[at.n_entering] = i
        at.n_entering += scratch.is_active[i] == 0
    add_rows(problem, s.objective, -1.0, scratch, at)
    for p in range(len(samples)):
        row = scratch.rows[scratch.row_of[samples[p]] - 1]
        row.alpha = min(row.upper, max(0.0, np.float64(duals[p])))
        add_row(scratch, row, row.sign * row.alpha)
        at.vb += row.sign * row.alpha
        at.work += row.length
    if len(samples) > 0:
        at.center, at.budget = at.vb / s.objective.tau_bias, WARM_DEFER_SHARE * s.eps * at.null
    start_sweeps(s, at)


@inner(allocates=False)
def finish_empty(s: PPDSparseSettings, at: Any) -> None:
    """Finish a label without positives: no weights, bias -1; the best bias gives the exact gap."""
    at.bias, at.vb = -1.0, -s.objective.tau_bias
    at.primal, at.loss = 0.5 * s.objective.tau_bias, 0.0
    at.dual = min(at.null, at.primal)
    at.gap = at.primal - at.dual
    at.phase = EXPORT


@inner(allocates=False, fastmath={"reassoc", "nsz"})
def weight_norms(weights: Float32) -> tuple[float, float, int]:
    """Return the sums of |w_t| and w_t^2, and the number of weights that are not zero; SIMD."""
    l1, w2, nnz = 0.0, 0.0, 0
    for t in range(len(weights)):
        w = np.float64(weights[t])
        l1 += abs(w)
        w2 += w * w
        nnz += w != 0.0
    return l1, w2, nnz


@inner()
def certify(
    problem: PPDSparseProblem, s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any
) -> None:
    """Compute the duality gap over all N samples.

    The primal is that of the exported weights with their best bias, the dual that of alpha.
    """
    o = s.objective
    l1, w2, nnz = weight_norms(scratch.weight[: at.n_touched])
    dual_w2 = soft_square(scratch.v[: at.n_touched], o.lam) / o.tau**2
    first, second, support = 0.0, 0.0, 0
    for row in scratch.rows[: at.n_rows]:
        first += row.alpha
        second += row.inv * row.alpha * row.alpha
        support += row.alpha > 0.0
    b = at.vb / o.tau_bias
    dual_w2 += o.tau_bias / o.tau * b * b
    at.dual = max(at.dual, first - 0.5 * second - 0.5 * o.tau * dual_w2)
    positives = problem.YT.indices[problem.YT.indptr[at.label] : problem.YT.indptr[at.label + 1]]
    near, norms = at.bias if at.rounds > 0 else -1.0, o.lam * l1 + 0.5 * o.tau * w2
    excess = norms - at.dual
    at.bias, least, at.violating = best_bias(
        o,
        scratch.scores,
        scratch.maxima,
        problem.weights,
        positives,
        at.factor,
        near,
        excess,
        BIAS_TOLERANCE,
    )
    at.primal = norms + least
    at.gap = max(0.0, at.primal - at.dual)  # rounding may cross them
    at.loss = least - 0.5 * o.tau_bias * at.bias * at.bias
    at.nnz, at.support = nnz, support


@inner(allocates=False)
def shrink(scratch: PPDSparseScratch, at: Any) -> None:
    """Drop negatives with alpha = 0 (paper, Algorithm 1, step 4); they can be added again."""
    kept = 0
    for r in scratch.active[: at.n_active]:
        row = scratch.rows[r]
        if row.sign < 0.0 and row.alpha == 0.0:
            scratch.is_active[row.sample] = 0
        else:
            scratch.active[kept] = r
            kept += 1
    at.n_active = kept


@inner()
def after_score(
    problem: PPDSparseProblem, s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any
) -> None:
    """Finish on the certificate, apply more changes, or choose the next active set."""
    certify(problem, s, scratch, at)
    at.position = 0
    requested_gap = s.eps * at.null
    if at.gap <= requested_gap or at.rounds >= s.max_rounds:
        at.phase = EXPORT
        return
    # approximate gap if no_score were deferred
    inner = max(0.0, at.gap - DEFER_COST_FACTOR * at.waiting)
    if at.rounds >= SEARCH_ROUNDS and at.waiting > 0.0 and inner < NEAR_SHARE * requested_gap:
        at.budget = min(
            0.5 * at.waiting, LATE_DEFER_SHARE * (requested_gap - inner) / DEFER_COST_FACTOR
        )
        return
    at.budget = (
        max(LATE_DEFER_SHARE * requested_gap, EARLY_DEFER_SHARE * min(at.gap, at.null)) * at.strict
    )
    if at.rounds > 0:
        shrink(scratch, at)
    n_entered = add_violators(problem, s, bias_of(s.objective, at), scratch, at)
    at.rounds += 1
    if n_entered == 0 or at.rounds > 4:
        # the active set is nearly right: defer less
        at.strict *= STRICT_FACTOR
    start_sweeps(s, at)


@inner()
def export(
    s: PPDSparseSettings, scratch: PPDSparseScratch, at: Any, done: int, out: BatchOutput
) -> bool:
    """Write the class's weights by ascending feature, and clean the scratch memory.

    Returns False if the output is full.
    """
    base, dual_base = (out.ends[done - 1], out.dual_ends[done - 1]) if done > 0 else (0, 0)
    if base + at.nnz > len(out.features) or (
        s.keep_duals and dual_base + at.support > len(out.samples)
    ):
        return False
    keys, kept = np.empty(at.nnz, np.int64), 0  # a feature and its number
    for t in range(at.n_touched):
        scratch.number[scratch.touched[t]] = 0
        if scratch.weight[t] != 0.0:
            keys[kept] = (np.int64(scratch.touched[t]) << 32) | t
            kept += 1
    # a loop: it compiles faster than assignments of slices
    for place, key in enumerate(np.sort(keys[:kept])):
        out.features[base + place] = key >> 32
        out.weights[base + place] = scratch.weight[key & 0xFFFFFFFF]
    out.ends[done] = base + kept
    if s.keep_duals:
        for sample in np.sort(scratch.rows[: at.n_rows]["sample"].astype(np.int64)):
            alpha = scratch.rows[scratch.row_of[sample] - 1].alpha
            if alpha > 0.0:
                out.samples[dual_base] = sample
                out.duals[dual_base] = alpha
                dual_base += 1
    out.dual_ends[done] = dual_base
    for row in scratch.rows[: at.n_rows]:
        scratch.row_of[row.sample] = 0
        scratch.is_active[row.sample] = 0
    return True


@inner()
def begin_class(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    labels: Int32,
    start_duals: CSR,
    scratch: PPDSparseScratch,
    at: Any,
    done: int,
) -> None:
    """Start label number `done` of the batch: from given duals, or from its positives.

    A label without positives is finished at once.
    """
    reset_class(problem, s, labels[done], scratch, at)
    if at.positives == 0:
        finish_empty(s, at)
    elif len(start_duals.indptr) > 1:
        lo, hi = start_duals.indptr[done], start_duals.indptr[done + 1]
        start_from_duals(
            problem, s, start_duals.indices[lo:hi], start_duals.data[lo:hi], scratch, at
        )
    else:
        start_from_positives(s, scratch, at)


@numba.njit(nogil=True, cache=True)
def advance(
    problem: PPDSparseProblem,
    s: PPDSparseSettings,
    labels: Int32,
    start_duals: CSR,
    scratch: PPDSparseScratch,
    state: np.ndarray,
    done: int,
    out: BatchOutput,
    budget: int,
) -> tuple[int, int]:
    """Solve `labels[done:]` until all are done, `budget` entries were visited, or `out` is full.

    start_duals: initial dual variables, one row (over samples) per label, or without rows. state:
    (1,) of STATE, zero before the first call. Returns (reason, done): DONE, BUDGET or FULL, and the
    number of finished labels. The next call continues an unfinished class.
    """
    at = state[0]
    while done < len(labels):
        if at.phase == START:
            begin_class(problem, s, labels, start_duals, scratch, at, done)
        elif at.phase == SWEEP:
            budget -= sweep(s, scratch, at, budget)
            if at.position == 0:
                after_sweep(s, scratch, at)
        elif at.phase == SCORE:
            budget -= score(problem, s, scratch, at, budget)
            if at.position >= at.n_chosen:
                after_score(problem, s, scratch, at)
                budget -= len(scratch.scores)
        else:
            if not export(s, scratch, at, done, out):
                return FULL, done
            out.records[done] = state[0]
            done += 1
            at.phase = START
        if budget <= 0:
            return BUDGET if done < len(labels) else DONE, done
    return DONE, done
