"""The PPDSparse kernel: one-vs-all classes by active-set dual coordinate descent, each with a certificate.

For one class, with y_i = +1 or -1 (`xcray.solvers.ppdsparse` states the problem and its sources):

    primal  P(w, b) = lam |w|_1 + tau/2 (|w|^2 + b^2) + sum_i loss_i(1 - y_i (w.x_i + b))
    dual    D(alpha) = sum_i alpha_i - 1/2 sum_i inv_i alpha_i^2 - tau/2 (|w(alpha)|^2 + b(alpha)^2),   0 <= alpha_i <= upper_i
    v = sum_i alpha_i y_i x_i,   w(alpha) = soft(v, lam) / tau,   b(alpha) = sum_i alpha_i y_i / tau

    squared hinge: loss_i = c_i z_+^2, inv_i = 1/(2 c_i), upper_i = infinity      hinge: loss_i = c_i z_+, inv_i = 0, upper_i = c_i

The primal point is not w(alpha) but `walked`: the weights whose posting lists have been walked, so that the scores of all
samples are exactly theirs. Any primal point and any dual point bound the optimum from two sides, so a change of a weight
may wait for ever when it is worth less to the primal than the gap allows: frequent features with small changes cost most
of the walking and gain least (`choose`). What is certified is what is exported.

A class goes START -> SCORE -> (SWEEP -> SCORE)* -> EXPORT. `advance` runs such steps until a batch of classes is done, its
work budget used up, or the output full; called again, it goes on where it was: whatever a step needs for that stands in
one record (`STATE`) and in `Scratch`, which is clean between classes.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern
from xcray.kernels.random import GAMMA, below, shuffle, stream
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective, best_bias, null_objective, soft

# The content of these files, held by test_house.py: numba's disk cache sees changes of this file alone.
BUILT_ON = {"random": "bd4614dc", "training.hinge": "b797d533"}

START, SWEEP, SCORE, EXPORT = 0, 1, 2, 3
DONE, BUDGET, FULL = 0, 1, 2  # why `advance` came back
UNSEEN, POSITIVE, NEGATIVE = 0, 1, 2  # what a sample is to the active set

# How searching saves, by measurement on title and abstract data; none of it moves the optimum or the certificate.
FIRST, SOON, LAST = (
    3.0,
    0.3,
    0.65,
)  # what waiting may cost: of the null objective, then of the gap, then of the gap asked for
FELT = 0.4  # waiting costs about so much of what `choose` reckons, which takes features one by one
NEAR = 0.7  # of the gap asked for: when the gap but for what waits is below it, walk more instead of sweeping more
SEARCHES, SEARCH_STEPS, STEPS = 2, 4, 100  # in the first rounds the bias takes few Newton steps
ENOUGH = 0.001  # of the gap asked for: how near the best bias must be
SWEPT = 0.3  # of eps: a sweep that gains less than this of the null objective ends the round
SHARPER = 0.3  # the factor by which late rounds, or rounds that found nobody, tighten
OVERHEAD = 32.0  # entries that beginning a posting list costs
BLOCK = 64  # samples whose largest score is looked at first
NOTHING = -1e30  # a score below all scores
POWERS = 300  # of two: how finely `choose` sorts changes by their worth, 2^-200 to 2^99

STATE = np.dtype(
    [
        ("label", np.int32),
        ("phase", np.int32),
        ("rounds", np.int32),
        ("sweeps", np.int32),
        ("sweeps_left", np.int32),
        ("positives", np.int32),
        ("n_active", np.int32),
        ("n_touched", np.int32),
        ("n_priced", np.int32),  # touched features whose change has been looked at
        ("n_entered", np.int32),
        ("n_entries", np.int64),
        ("position", np.int32),  # within the sweep or the scoring pass under way
        ("nnz", np.int32),
        ("support", np.int32),
        ("violating", np.int32),  # samples with a positive loss at the primal point
        ("counter", np.uint64),  # of the class's random stream
        ("work", np.int64),  # entries of X visited
        ("factor", np.float64),  # of the weights of positives
        ("violation", np.float64),  # dual progress of the sweep under way, about
        ("inner_tol", np.float64),
        ("strict", np.float64),
        ("budget", np.float64),  # what the changes that wait may cost the primal
        ("waiting", np.float64),  # what they cost, as `choose` reckons
        ("share", np.float64),  # of samples that a change of a score is felt by
        ("worth", np.float64),  # changes that gain less than this for an entry walked wait
        ("vb", np.float64),  # tau b(alpha)
        ("bias", np.float64),
        ("primal", np.float64),
        ("dual", np.float64),
        ("gap", np.float64),
        ("null", np.float64),  # the primal at w = 0 with the best bias
        ("loss", np.float64),  # the sum of losses at the primal point
    ],
    align=True,
)


class Problem(NamedTuple):
    """The data: X by row and by column, and which samples each label is on (K x N).

    row_sq: (N,) squared row norms; column_sq: (D,) sums of weighted squares of the columns; float64. weights: (N,) float32
    above 0, or empty when all are 1; factors: (K,) float64, what the weights of a label's positives are multiplied by, or
    empty; total: the sum of weights.
    """

    X: CSR
    XT: CSR
    row_sq: Float64
    column_sq: Float64
    YT: Pattern
    weights: Float32
    factors: Float64
    total: float


class Settings(NamedTuple):
    """What is minimised, and the hyper-parameters of the search for it, as scalars."""

    objective: Objective
    eps: float
    max_rounds: int
    max_sweeps: int
    growth: int
    seed: int
    keep_duals: bool


class Scratch(NamedTuple):
    """Working memory of one worker, O(N + D) and the entries of the largest active set; marks are zero between classes.

    A class works on its own numbering of features, in order of first touch, so that what it reads again and again is
    small and dense: feature `touched[t]` has number t. Scores are float32 where eps allows it, else float64.
    """

    number: Int32  # (D,) number of a touched feature plus one; 0: not touched
    touched: Int32  # (D + 1,) the touched features
    v: Float64  # (D + 1,) by number
    walked: Float32  # (D,) by number: the weight that is in `scores`, and that is exported
    length: Float32  # (D,) by number: the entries its posting list costs; 0: not looked up yet
    curvature: Float32  # (D,) by number: C times its column's sum of squares
    scores: Any  # (N,) walked.x_i, without the bias
    tops: Any  # (N,) largest scores of blocks of samples
    alpha: Float64  # (N,)
    kind: np.ndarray  # (N,) uint8: UNSEEN, POSITIVE or NEGATIVE
    active: Int32  # (N,) the active samples
    entered: Int32  # (N,) all samples that were active at some time
    begins: Int64  # (N,) where the numbers of a sample's features begin in `entries`, plus one; 0: never active
    entries: Int32  # (nnz,) numbers of features, row after row; memory is taken as it is written


class Columns(NamedTuple):
    """Where finished classes are written, one after the other: weights by feature, dual variables by sample."""

    ends: Int64  # (classes,) end of each class's weights in `features` and `weights`
    features: Int32
    weights: Float32
    dual_ends: Int64  # (classes,) the same for `samples` and `duals`
    samples: Int32
    duals: Float32
    records: np.ndarray  # (classes,) of STATE


@numba.njit(nogil=True, cache=True)
def cost(problem: Problem, o: Objective, factor: float, i: int, positive: bool) -> float:
    """c_i: C times the weight of sample i in this class."""
    c = o.C * problem.weights[i] if len(problem.weights) > 0 else o.C
    return c * factor if positive else c


@numba.njit(nogil=True, cache=True)
def admit(X: CSR, i: int, scratch: Scratch, at: Any) -> None:
    """Number the features of a row that becomes active for the first time; without a branch to mispredict."""
    if scratch.begins[i] != 0:
        return
    n, e = at.n_touched, at.n_entries
    scratch.begins[i] = e + 1
    scratch.entered[at.n_entered] = i
    at.n_entered += 1
    for p in range(X.indptr[i], X.indptr[i + 1]):
        j = X.indices[p]
        number = scratch.number[j]
        scratch.touched[n] = j
        scratch.v[n] = 0.0
        new = number == 0
        number = n + 1 if new else number
        n += new
        scratch.number[j] = number
        scratch.entries[e] = number - 1
        e += 1
    at.n_touched, at.n_entries = n, e


@numba.njit(nogil=True, cache=True)
def add_row(X: CSR, i: int, step: float, scratch: Scratch) -> None:
    """v += step x_i, for a row that was admitted."""
    lo, hi, e = X.indptr[i], X.indptr[i + 1], scratch.begins[i] - 1
    numbers, values = scratch.entries[e : e + hi - lo], X.data[lo:hi]
    for p in range(len(values)):
        scratch.v[numbers[p]] += step * values[p]


@numba.njit(nogil=True, cache=True)
def start(problem: Problem, s: Settings, label: int, scratch: Scratch, at: Any) -> None:
    """Begin a class: no weights, its positives active."""
    YT, X = problem.YT, problem.X
    positives = YT.indices[YT.indptr[label] : YT.indptr[label + 1]]
    scratch.scores[:] = 0.0
    at.label, at.positives, at.n_active = label, len(positives), len(positives)
    at.n_touched, at.n_priced, at.n_entered, at.n_entries = 0, 0, 0, 0
    at.rounds, at.sweeps, at.sweeps_left, at.position, at.work = 0, 0, 0, 0, 0
    at.nnz, at.support, at.violating, at.violation, at.vb = 0, 0, 0, 0.0, 0.0
    at.counter = stream(s.seed, label)
    at.factor = problem.factors[label] if len(problem.factors) > 0 else 1.0
    weight = 0.0
    for a in range(len(positives)):
        i = positives[a]
        weight += problem.weights[i] if len(problem.weights) > 0 else 1.0
        scratch.kind[i] = POSITIVE
        scratch.active[a] = i
        admit(X, i, scratch, at)
    at.null = null_objective(s.objective, weight * at.factor, problem.total - weight)
    at.inner_tol, at.strict, at.budget = SWEPT * s.eps, 1.0, FIRST * at.null
    at.dual, at.primal, at.gap, at.waiting = -np.inf, np.inf, np.inf, 0.0


@numba.njit(nogil=True, cache=True)
def start_from_positives(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """The first dual point: alphas of the positives in proportion to their weights, best along that line at b = -1."""
    X, o = problem.X, s.objective
    total, square = 0.0, 0.0
    for i in scratch.active[: at.n_active]:
        weight = cost(problem, o, at.factor, i, True) / o.C
        total += weight
        add_row(X, i, weight, scratch)
        at.work += X.indptr[i + 1] - X.indptr[i]
    for t in range(at.n_touched):
        square += scratch.v[t] ** 2
    inv, upper = (0.5 / o.C, np.inf) if o.loss == SQUARED_HINGE else (0.0, o.C)
    scale = min(upper, 2.0 / max(inv + square / (total * o.tau), 1e-12))
    for t in range(at.n_touched):
        scratch.v[t] *= scale
    for i in scratch.active[: at.n_active]:
        scratch.alpha[i] = scale * cost(problem, o, at.factor, i, True) / o.C
    at.vb = scale * total
    at.phase = SCORE


@numba.njit(nogil=True, cache=True)
def start_from_duals(
    problem: Problem, s: Settings, samples: Int32, duals: Float32, scratch: Scratch, at: Any
) -> None:
    """The first dual point: one that was given, its samples active. Negative or too large alphas are cut."""
    X, o = problem.X, s.objective
    for p in range(len(samples)):
        i = samples[p]
        positive = scratch.kind[i] == POSITIVE
        alpha = max(0.0, np.float64(duals[p]))
        if o.loss != SQUARED_HINGE:
            alpha = min(alpha, cost(problem, o, at.factor, i, positive))
        if not positive:
            enter(scratch, at, i)
            admit(X, i, scratch, at)
        step = alpha if positive else -alpha
        scratch.alpha[i] = alpha
        add_row(X, i, step, scratch)
        at.vb += step
        at.work += X.indptr[i + 1] - X.indptr[i]
    at.sweeps_left = s.max_sweeps
    at.phase = SWEEP


@numba.njit(nogil=True, cache=True)
def finish_empty(s: Settings, at: Any) -> None:
    """A label without positives: no weights, bias -1; the best bias gives the exact gap."""
    at.bias, at.vb = -1.0, -s.objective.tau
    at.primal, at.loss = 0.5 * s.objective.tau, 0.0
    at.dual = min(at.null, at.primal)
    at.gap = at.primal - at.dual
    at.phase = EXPORT


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def soft_dot(indices: Int32, data: Float32, v: Float64, lam: float) -> float:
    """Sum of data_p * soft(v[indices_p], lam): without a branch to mispredict, in SIMD."""
    dot = 0.0
    for p in range(len(indices)):
        u = v[indices[p]]
        dot += data[p] * (u - max(-lam, min(lam, u)))
    return dot


@numba.njit(nogil=True, cache=True)
def sweep(problem: Problem, s: Settings, scratch: Scratch, at: Any, budget: int) -> int:
    """One pass of dual coordinate descent over the active set (paper, Algorithm 2), or as much as the budget allows."""
    X, v, o = problem.X, scratch.v, s.objective
    vb, violation = at.vb, at.violation
    if at.position == 0:
        at.counter = shuffle(scratch.active[: at.n_active], at.counter)
        violation = 0.0
    work = 0
    a = at.position
    while a < at.n_active and work < budget:
        i = scratch.active[a]
        a += 1
        lo, hi = X.indptr[i], X.indptr[i + 1]
        positive = scratch.kind[i] == POSITIVE
        y = 1.0 if positive else -1.0
        c = cost(problem, o, at.factor, i, positive)
        inv, upper = (0.5 / c, np.inf) if o.loss == SQUARED_HINGE else (0.0, c)
        alpha = scratch.alpha[i]
        e = scratch.begins[i] - 1
        dot = soft_dot(scratch.entries[e : e + hi - lo], X.data[lo:hi], v, o.lam)
        work += hi - lo
        gradient = y * (dot + vb) / o.tau - 1.0 + alpha * inv
        if alpha <= 0.0 and gradient >= 0.0:
            continue
        curvature = (problem.row_sq[i] + 1.0) / o.tau + inv
        step = min(upper, max(0.0, alpha - gradient / curvature)) - alpha
        if step != 0.0:
            violation += step * step * curvature
            scratch.alpha[i] = alpha + step
            add_row(X, i, y * step, scratch)
            vb += y * step
            work += hi - lo
    at.vb, at.violation, at.work = vb, violation, at.work + work
    at.position = a if a < at.n_active else 0
    return work


@numba.njit(nogil=True, cache=True)
def after_sweep(at: Any) -> None:
    """Sweep again, or look at all samples when the sweep gained little or the round's sweeps are used up."""
    at.sweeps += 1
    at.sweeps_left -= 1
    if at.violation < at.inner_tol * at.null or at.sweeps_left <= 0:
        at.phase = SCORE


@numba.njit(nogil=True, cache=True)
def choose(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """Which changes of weights wait: those that gain least for an entry walked, as many as cost `budget` together.

    A change d of weight j moves the primal by about d^2 (tau/2 + C sum of x_ij^2 over violating samples) from its best.
    """
    for t in range(at.n_priced, at.n_touched):
        scratch.walked[t], scratch.length[t] = 0.0, 0.0
    at.n_priced = at.n_touched
    at.share = max(0.05, at.violating / len(scratch.scores)) if at.rounds > 0 else 1.0
    sums = np.zeros(POWERS)
    for t in range(at.n_touched):
        change = (
            np.float32(soft(scratch.v[t], s.objective.lam) / s.objective.tau) - scratch.walked[t]
        )
        if change != 0.0:
            if scratch.length[t] == 0.0:
                j = scratch.touched[t]
                scratch.length[t] = problem.XT.indptr[j + 1] - problem.XT.indptr[j] + OVERHEAD
                scratch.curvature[t] = s.objective.C * problem.column_sq[j]
            gain = change * change * (0.5 * s.objective.tau + at.share * scratch.curvature[t])
            power = math.floor(math.log2(gain / scratch.length[t] + 1e-60)) + 200
            sums[min(POWERS - 1, max(0, power))] += gain
    waiting, power = 0.0, 0
    while power < POWERS and waiting + sums[power] <= at.budget:
        waiting += sums[power]
        power += 1
    at.waiting, at.worth = waiting, 2.0 ** (power - 200)


@numba.njit(nogil=True, cache=True)
def walk(rows: Int32, values: Float32, change: float, scores: Any) -> None:
    """Add a changed weight to the scores of the rows on its posting list."""
    for p in range(len(rows)):
        scores[rows[p]] += change * values[p]


@numba.njit(nogil=True, cache=True)
def score(problem: Problem, s: Settings, scratch: Scratch, at: Any, budget: int) -> int:
    """Walk the postings of weights whose change does not wait, or as many as the budget allows."""
    XT, lam, tau = problem.XT, s.objective.lam, s.objective.tau
    if at.position == 0:
        choose(problem, s, scratch, at)
    work = 0
    t = at.position
    while t < at.n_touched and work < budget:
        w = np.float32(soft(scratch.v[t], lam) / tau)
        change = w - scratch.walked[t]
        if change != 0.0:
            gain = change * change * (0.5 * tau + at.share * scratch.curvature[t])
            if at.waiting == 0.0 or gain >= at.worth * scratch.length[t]:
                j = scratch.touched[t]
                lo, hi = XT.indptr[j], XT.indptr[j + 1]
                walk(XT.indices[lo:hi], XT.data[lo:hi], change, scratch.scores)
                scratch.walked[t] = w
                work += hi - lo
        t += 1
    at.work += work
    at.position = t
    return work


@numba.njit(nogil=True, cache=True)
def certify(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """The duality gap over all N samples: the primal at the walked weights with their best bias, the dual at alpha."""
    o = s.objective
    l1, w2, nnz, dual_w2 = 0.0, 0.0, 0, 0.0
    for t in range(at.n_touched):
        dual_w2 += (soft(scratch.v[t], o.lam) / o.tau) ** 2
        w = np.float64(scratch.walked[t])
        l1 += abs(w)
        w2 += w * w
        nnz += w != 0.0
    first, second, support = 0.0, 0.0, 0
    for i in scratch.active[: at.n_active]:
        alpha = scratch.alpha[i]
        first += alpha
        if o.loss == SQUARED_HINGE:
            second += (
                alpha * alpha * 0.5 / cost(problem, o, at.factor, i, scratch.kind[i] == POSITIVE)
            )
        support += alpha > 0.0
    b = at.vb / o.tau
    at.dual = max(at.dual, first - 0.5 * second - 0.5 * o.tau * (dual_w2 + b * b))
    positives = problem.YT.indices[problem.YT.indptr[at.label] : problem.YT.indptr[at.label + 1]]
    near, enough = at.bias if at.rounds > 0 else -1.0, ENOUGH * s.eps * at.null
    steps = STEPS if at.rounds >= SEARCHES else SEARCH_STEPS
    at.bias, least, at.violating = best_bias(
        o, scratch.scores, problem.weights, positives, at.factor, near, enough, steps
    )
    at.primal = o.lam * l1 + 0.5 * o.tau * w2 + least
    at.gap = max(0.0, at.primal - at.dual)  # rounding may cross them
    at.loss = least - 0.5 * o.tau * at.bias * at.bias
    at.nnz, at.support = nnz, support


@numba.njit(nogil=True, cache=True)
def shrink(scratch: Scratch, at: Any) -> None:
    """Drop negatives whose alpha is zero (paper, Algorithm 1, step 4); the search brings them back if they violate."""
    kept = 0
    for i in scratch.active[: at.n_active]:
        if scratch.kind[i] == NEGATIVE and scratch.alpha[i] == 0.0:
            scratch.kind[i] = UNSEEN
        else:
            scratch.active[kept] = i
            kept += 1
    at.n_active = kept


@numba.njit(nogil=True, cache=True, fastmath={"nnan", "nsz", "reassoc"})
def block_tops(scores: Any, kind: np.ndarray, tops: Any) -> None:
    """The largest score of the unseen samples of each block: block k is samples k, k + len(tops), ...; SIMD over blocks."""
    n_blocks, nothing = len(tops), scores.dtype.type(NOTHING)
    tops[:] = nothing
    for lo in range(0, len(scores), n_blocks):
        row, seen = scores[lo : lo + n_blocks], kind[lo : lo + n_blocks]
        for k in range(len(row)):
            x = row[k] if seen[k] == UNSEEN else nothing
            tops[k] = x if x > tops[k] else tops[k]


@numba.njit(nogil=True, cache=True)
def enter(scratch: Scratch, at: Any, i: int) -> None:
    """Make sample i an active negative."""
    scratch.kind[i] = NEGATIVE
    scratch.active[at.n_active] = i
    at.n_active += 1


@numba.njit(nogil=True, cache=True)
def grow(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> int:
    """Let the most violating unseen negatives in (paper, Algorithm 1, step 2); returns how many.

    About as many as are active now plus `growth` for each positive. The cut is the score that so many blocks of samples
    reach; samples above it enter, then samples at it (often thousands that share no feature with w, all with
    the same score), from a pseudo-random block on.
    """
    n = len(scratch.scores)
    quota = min(s.growth * (1 + at.positives) + at.n_active, n)
    block = BLOCK
    while block > 1 and quota * 4 * block > n:
        block //= 2
    n_blocks = (n + block - 1) // block
    tops = scratch.tops[:n_blocks]
    block_tops(scratch.scores, scratch.kind, tops)
    floor = -1.0 - at.vb / s.objective.tau + 1e-12  # a negative violates above this score
    cut = np.partition(tops, n_blocks - quota)[n_blocks - quota] if quota < n_blocks else NOTHING
    before = at.n_active
    at.counter += GAMMA
    offset = below(at.counter, n_blocks)
    for strict in (True, False):
        for turn in range(n_blocks):
            k = int((offset + turn) % n_blocks)
            if at.n_active - before >= 2 * quota or (not strict and at.n_active - before >= quota):
                break
            if tops[k] > floor and (tops[k] > cut if strict else tops[k] >= cut):
                for i in range(k, n, n_blocks):
                    z = scratch.scores[i]
                    if (
                        scratch.kind[i] == UNSEEN
                        and z > floor
                        and (z > cut if strict else z >= cut)
                    ):
                        enter(scratch, at, i)
    for i in scratch.active[before : at.n_active]:
        admit(problem.X, i, scratch, at)
    admitted: int = at.n_active - before
    return admitted


@numba.njit(nogil=True, cache=True)
def after_score(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """Stop on the certificate; or walk more of what waits; or choose the next active set."""
    certify(problem, s, scratch, at)
    at.position = 0
    asked = s.eps * at.null
    if at.gap <= asked or at.rounds >= s.max_rounds:
        at.phase = EXPORT
        return
    inner = max(0.0, at.gap - FELT * at.waiting)  # what the gap would be if nothing waited, about
    if at.rounds >= SEARCHES and at.waiting > 0.0 and inner < NEAR * asked:
        at.budget = min(0.5 * at.waiting, LAST * (asked - inner) / FELT)
        return
    at.budget = max(LAST * asked, SOON * min(at.gap, at.null)) * at.strict
    if at.rounds > 0:
        shrink(scratch, at)
    entered = grow(problem, s, scratch, at)
    at.rounds += 1
    if entered == 0 or at.rounds > 4:
        at.inner_tol *= SHARPER  # the active set is right or nearly so: solve on it more sharply, and let less wait
        at.strict *= SHARPER
    at.sweeps_left = s.max_sweeps
    at.phase = SWEEP


@numba.njit(nogil=True, cache=True)
def export(s: Settings, scratch: Scratch, at: Any, done: int, out: Columns) -> bool:
    """Write the class's weights by ascending feature and clean the scratch; False when the output has no room."""
    base, dual_base = (out.ends[done - 1], out.dual_ends[done - 1]) if done > 0 else (0, 0)
    if base + at.nnz > len(out.features) or (
        s.keep_duals and dual_base + at.support > len(out.samples)
    ):
        return False
    numbers, kept = np.empty(at.nnz, np.int32), 0
    for t in range(at.n_touched):
        scratch.number[scratch.touched[t]] = 0
        if scratch.walked[t] != 0.0:
            numbers[kept] = t
            kept += 1
    order = np.argsort(scratch.touched[numbers])
    out.features[base : base + kept] = scratch.touched[numbers][order]
    out.weights[base : base + kept] = scratch.walked[numbers][order]
    out.ends[done] = base + kept
    if s.keep_duals:
        for i in np.sort(scratch.active[: at.n_active]):
            if scratch.alpha[i] > 0.0:
                out.samples[dual_base] = i
                out.duals[dual_base] = scratch.alpha[i]
                dual_base += 1
    out.dual_ends[done] = dual_base
    for i in scratch.entered[: at.n_entered]:
        scratch.begins[i] = 0
        scratch.alpha[i] = 0.0
        scratch.kind[i] = UNSEEN
    return True


@numba.njit(nogil=True, cache=True)
def begin(
    problem: Problem, s: Settings, labels: Int32, given: CSR, scratch: Scratch, at: Any, done: int
) -> None:
    """Begin label number `done` of the batch: from given duals, from its positives, or at its end when it has none."""
    start(problem, s, labels[done], scratch, at)
    if at.positives == 0:
        finish_empty(s, at)
    elif len(given.indptr) > 1:
        lo, hi = given.indptr[done], given.indptr[done + 1]
        start_from_duals(problem, s, given.indices[lo:hi], given.data[lo:hi], scratch, at)
    else:
        start_from_positives(problem, s, scratch, at)


@numba.njit(nogil=True, cache=True)
def advance(
    problem: Problem,
    s: Settings,
    labels: Int32,
    given: CSR,
    scratch: Scratch,
    state: np.ndarray,
    done: int,
    out: Columns,
    budget: int,
) -> tuple[int, int]:
    """Solve `labels[done:]` until all are done, `budget` entries of X were visited, or `out` is full.

    given: dual variables to start from, a row (of samples) for each of `labels`; or of no rows. state: (1,) of STATE, zero
    before the first call. Returns (why, done): DONE, BUDGET or FULL, and how many of `labels` are finished; a class
    under way goes on at the next call.
    """
    at = state[0]
    while done < len(labels):
        if at.phase == START:
            begin(problem, s, labels, given, scratch, at, done)
        elif at.phase == SWEEP:
            budget -= sweep(problem, s, scratch, at, budget)
            if at.position == 0:
                after_sweep(at)
        elif at.phase == SCORE:
            budget -= score(problem, s, scratch, at, budget)
            if at.position >= at.n_touched:
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
