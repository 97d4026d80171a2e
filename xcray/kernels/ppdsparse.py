"""The PPDSparse kernel: one-vs-all classes by active-set dual coordinate descent, each with a certificate.

For one class, with y_i = +1 or -1 (`xcray.solvers.ppdsparse` states the problem and its sources):

    primal  P(w, b) = lam |w|_1 + tau/2 (|w|^2 + b^2) + sum_i loss(1 - y_i (w.x_i + b))
    dual    D(alpha) = sum_i alpha_i - inv/2 sum_i alpha_i^2 - tau/2 (|w(alpha)|^2 + b(alpha)^2),   0 <= alpha_i <= upper
    v = sum_i alpha_i y_i x_i,   w(alpha) = soft(v, lam) / tau,   b(alpha) = sum_i alpha_i y_i / tau

    squared hinge: loss = C z_+^2, inv = 1/(2C), upper = infinity      hinge: loss = C z_+, inv = 0, upper = C

A class goes START -> SCORE -> (SWEEP -> SCORE)* -> EXPORT. Scoring walks the posting lists of weights that changed; it is most
of the time, bound by reading lists from memory. So while it only searches for violators, small changes wait (`BLUR`); a class ends
on an exact pass alone. `advance` runs such steps for a batch of classes and comes back
when the batch is done, when its work budget is used up, or when the output is full; called again, it goes on where it was.
Whatever a step needs to go on stands in one record (`STATE`) and in `Scratch`, which is clean between classes.

All functions of the chain live in this file: numba's disk cache does not see changes in other files.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern
from xcray.kernels.random import GAMMA, below, stream

START, SWEEP, SCORE, EXPORT = 0, 1, 2, 3
DONE, BUDGET, FULL = 0, 1, 2  # why `advance` came back
SQUARED_HINGE, HINGE = 0, 1
UNSEEN, POSITIVE, NEGATIVE = 0, 1, 2  # what a sample is to the active set

# How searching saves: measured on title and abstract data; none of it moves the optimum or the certificate.
BLUR, SHARPER = 0.2, 0.3  # changes that move no score (on the margin's scale of 1) by more than BLUR SHARPER^round wait
SEARCHES = 2  # rounds whose pass may be inexact, unless it looks done
HOPE = 2.0  # it looks done when the inexact gap is at most so many times the one asked for
SEARCH_STEPS, STEPS = 3, 100  # Newton steps for the bias, in inexact and exact passes
ENOUGH = 0.001  # of the gap asked for: how near the best bias must be
SWEPT = 0.3  # of eps: a sweep that gains less than this of the null objective ends the round
BLOCK = 64  # samples whose largest score is looked at first
NOTHING = -1e30  # a score below all scores

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
        ("n_entered", np.int32),
        ("n_entries", np.int64),
        ("position", np.int32),  # within the sweep or the scoring pass under way
        ("exact", np.int32),  # whether the scores are those of all weights; else of the large changes only
        ("nnz", np.int32),
        ("pruned", np.int32),
        ("support", np.int32),
        ("violating", np.int32),  # samples with a positive loss at the primal point
        ("counter", np.uint64),  # of the class's random stream
        ("work", np.int64),  # entries of X visited
        ("violation", np.float64),  # dual progress of the sweep under way, about
        ("inner_tol", np.float64),
        ("vb", np.float64),  # tau b(alpha)
        ("bias", np.float64),
        ("primal", np.float64),
        ("dual", np.float64),
        ("gap", np.float64),
        ("null", np.float64),  # the primal at w = 0 with the best bias
    ],
    align=True,
)


class Problem(NamedTuple):
    """The data: X by row and by column, and which samples each label is on (K x N).

    row_sq: (N,) squared row norms, float64; largest: (D,) the largest size of a value in each column, float32.
    """

    X: CSR
    XT: CSR
    row_sq: Float64
    largest: Float32
    YT: Pattern


class Settings(NamedTuple):
    """Hyper-parameters as scalars; `loss` is SQUARED_HINGE or HINGE."""

    loss: int
    lam: float
    tau: float
    C: float
    eps: float
    prune: float
    max_rounds: int
    max_sweeps: int
    growth: int
    seed: int


class Scratch(NamedTuple):
    """Working memory of one worker, O(N + D) and the entries of the largest active set; marks are zero between classes.

    A class works on its own numbering of features, in order of first touch, so that what it reads again and again is
    small and dense: feature `touched[t]` has number t.
    """

    number: Int32  # (D,) number of a touched feature plus one; 0: not touched
    touched: Int32  # (D,) the touched features
    v: Float64  # (D,) by number
    walked: Float64  # (D,) by number: the weight that is in `scores`
    scores: Float64  # (N,) walked.x_i, without the bias
    tops: Float64  # (N,) largest scores of blocks of samples
    alpha: Float64  # (N,)
    kind: np.ndarray  # (N,) uint8: UNSEEN, POSITIVE or NEGATIVE
    active: Int32  # (N,) the active samples
    entered: Int32  # (N,) all samples that were active at some time
    begins: Int64  # (N,) where the numbers of a sample's features begin in `entries`, plus one; 0: never active
    entries: Int32  # (nnz,) numbers of features, row after row; memory is taken as it is written


class Columns(NamedTuple):
    """Where finished classes are written, one after the other."""

    ends: Int64  # (classes,) end of each class's weights in `features` and `weights`
    features: Int32
    weights: Float32
    records: np.ndarray  # (classes,) of STATE


@numba.njit(nogil=True, cache=True)
def soft(v: float, lam: float) -> float:
    """The proximal operator of lam |.|: v moved towards zero by lam."""
    if v > lam:
        return v - lam
    if v < -lam:
        return v + lam
    return 0.0


@numba.njit(nogil=True, cache=True)
def admit(X: CSR, i: int, scratch: Scratch, at: Any) -> None:
    """Number the features of a row that becomes active for the first time."""
    if scratch.begins[i] != 0:
        return
    n, e = at.n_touched, at.n_entries
    scratch.begins[i] = e + 1
    scratch.entered[at.n_entered] = i
    at.n_entered += 1
    for p in range(X.indptr[i], X.indptr[i + 1]):
        j = X.indices[p]
        if scratch.number[j] == 0:
            scratch.touched[n] = j
            scratch.v[n] = 0.0
            scratch.walked[n] = 0.0
            n += 1
            scratch.number[j] = n
        scratch.entries[e] = scratch.number[j] - 1
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
def null_objective(n_pos: int, n_neg: int, s: Settings) -> float:
    """The primal at w = 0 with the best bias: what predicting from the class's frequency alone costs."""
    if s.loss == SQUARED_HINGE:
        b = 2.0 * s.C * (n_pos - n_neg) / (s.tau + 2.0 * s.C * (n_pos + n_neg))
        return 0.5 * s.tau * b * b + s.C * (n_pos * (1.0 - b) ** 2 + n_neg * (1.0 + b) ** 2)
    b = min(1.0, max(-1.0, s.C * (n_pos - n_neg) / s.tau))
    return 0.5 * s.tau * b * b + s.C * (n_pos * (1.0 - b) + n_neg * (1.0 + b))


@numba.njit(nogil=True, cache=True)
def start(problem: Problem, s: Settings, label: int, scratch: Scratch, at: Any) -> None:
    """Begin a class: active set = its positives, all with the alpha that is optimal on their mean at b = -1."""
    X, YT = problem.X, problem.YT
    positives = YT.indices[YT.indptr[label] : YT.indptr[label + 1]]
    n_pos, n_neg = len(positives), len(X.indptr) - 1 - len(positives)
    scratch.scores[:] = 0.0
    at.label, at.positives, at.n_active, at.n_touched = label, n_pos, n_pos, 0
    at.n_entered, at.n_entries = 0, 0
    at.rounds, at.sweeps, at.sweeps_left, at.position, at.work = 0, 0, 0, 0, 0
    at.violation, at.exact = 0.0, 0
    at.nnz, at.pruned, at.support, at.violating = 0, 0, 0, 0
    at.counter = stream(s.seed, label)
    at.null = null_objective(n_pos, n_neg, s)
    at.inner_tol = SWEPT * s.eps
    at.dual, at.primal, at.gap = -np.inf, np.inf, np.inf
    if n_pos == 0:
        finish_empty(s, at)
        return
    for a in range(n_pos):
        i = positives[a]
        scratch.kind[i] = POSITIVE
        scratch.active[a] = i
        admit(X, i, scratch, at)
        add_row(X, i, 1.0, scratch)
        at.work += X.indptr[i + 1] - X.indptr[i]
    square = 0.0
    for t in range(at.n_touched):
        square += scratch.v[t] ** 2
    inv = 0.5 / s.C if s.loss == SQUARED_HINGE else 0.0
    alpha = 2.0 / max(inv + square / (n_pos * s.tau), 1e-12)  # minimises the dual along equal alphas when b stays at -1
    if s.loss == HINGE:
        alpha = min(alpha, s.C)
    for t in range(at.n_touched):
        scratch.v[t] *= alpha
    for a in range(n_pos):
        scratch.alpha[positives[a]] = alpha
    at.vb = alpha * n_pos
    at.phase = SCORE


@numba.njit(nogil=True, cache=True)
def finish_empty(s: Settings, at: Any) -> None:
    """A label without positives: no weights, bias -1; the best bias gives the exact gap."""
    at.bias, at.vb = -1.0, -s.tau
    at.primal = 0.5 * s.tau
    at.dual = min(at.null, at.primal)
    at.gap = at.primal - at.dual
    at.phase = EXPORT


@numba.njit(nogil=True, cache=True)
def shuffle(active: Int32, n: int, at: Any) -> None:
    """Fisher-Yates with the class's own random stream."""
    counter = at.counter
    for a in range(n - 1, 0, -1):
        counter += GAMMA
        r = below(counter, a + 1)
        active[a], active[r] = active[r], active[a]
    at.counter = counter


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
    X, v = problem.X, scratch.v
    lam, tau, vb, violation = s.lam, s.tau, at.vb, at.violation
    squared = s.loss == SQUARED_HINGE
    inv = 0.5 / s.C if squared else 0.0
    if at.position == 0:
        shuffle(scratch.active, at.n_active, at)
        violation = 0.0
    work = 0
    a = at.position
    while a < at.n_active and work < budget:
        i = scratch.active[a]
        a += 1
        lo, hi = X.indptr[i], X.indptr[i + 1]
        y = 1.0 if scratch.kind[i] == POSITIVE else -1.0
        alpha = scratch.alpha[i]
        e = scratch.begins[i] - 1
        dot = soft_dot(scratch.entries[e : e + hi - lo], X.data[lo:hi], v, lam)
        work += hi - lo
        gradient = y * (dot + vb) / tau - 1.0 + alpha * inv
        if alpha <= 0.0 and gradient >= 0.0:
            continue
        curvature = (problem.row_sq[i] + 1.0) / tau + inv
        new = max(0.0, alpha - gradient / curvature)
        if not squared:
            new = min(new, s.C)
        step = new - alpha
        if step != 0.0:
            violation += step * step * curvature
            scratch.alpha[i] = new
            step *= y
            add_row(X, i, step, scratch)
            vb += step
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
def walk(rows: Int32, values: Float32, change: float, scores: Float64) -> None:
    """Add a changed weight to the scores of the rows on its posting list."""
    for p in range(len(rows)):
        scores[rows[p]] += change * values[p]


@numba.njit(nogil=True, cache=True)
def score(problem: Problem, s: Settings, scratch: Scratch, at: Any, budget: int) -> int:
    """Bring the scores up to date by walking the postings of changed weights, or as many as the budget allows.

    While searching, small changes wait: they may delay who is looked at, never decide when to stop. An exact pass
    (`at.exact`) leaves none.
    """
    XT = problem.XT
    blur = BLUR * SHARPER**at.rounds
    work = 0
    t = at.position
    while t < at.n_touched and work < budget:
        w = soft(scratch.v[t], s.lam) / s.tau
        change = w - scratch.walked[t]
        j = scratch.touched[t]
        t += 1
        if change != 0.0 and (at.exact == 1 or abs(change) * problem.largest[j] > blur):
            lo, hi = XT.indptr[j], XT.indptr[j + 1]
            walk(XT.indices[lo:hi], XT.data[lo:hi], change, scratch.scores)
            scratch.walked[t - 1] = w
            work += hi - lo
    at.work += work
    at.position = t
    return work


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def hinge_sums(scores: Float64, b: float) -> tuple[float, float, float]:
    """Sum of z, of z^2, and count of z > 0, for z = (1 + score + b)_+ over all samples as if all were negatives; SIMD."""
    first, second, count = 0.0, 0.0, 0.0
    for i in range(len(scores)):
        z = max(0.0, 1.0 + scores[i] + b)
        first += z
        second += z * z
        count += 1.0 if z > 0.0 else 0.0
    return first, second, count


@numba.njit(nogil=True, cache=True)
def signed_sums(scores: Float64, positives: Int32, b: float) -> tuple[float, float, float, float, float, float]:
    """(sum z, sum z^2, count z > 0) of the negatives, then the same of the positives; all samples are counted."""
    n1, n2, n0 = hinge_sums(scores, b)
    p1, p2, p0 = 0.0, 0.0, 0.0
    for i in positives:
        f = scores[i] + b
        z = max(0.0, 1.0 + f)
        n1, n2, n0 = n1 - z, n2 - z * z, n0 - (1.0 if z > 0.0 else 0.0)
        z = max(0.0, 1.0 - f)
        p1, p2, p0 = p1 + z, p2 + z * z, p0 + (1.0 if z > 0.0 else 0.0)
    return n1, n2, n0, p1, p2, p0


@numba.njit(nogil=True, cache=True)
def best_bias(scores: Float64, positives: Int32, s: Settings, b: float, enough: float, steps: int) -> tuple[float, float, int]:
    """The bias that minimises the primal at fixed w, to within about `enough`.

    With tau/2 b^2 + the sum of losses there, and how many samples have a loss. Newton's method on a monotone piecewise
    linear slope, kept in a bracket, `steps` at most.
    """
    squared = s.loss == SQUARED_HINGE
    low, high = -np.inf, np.inf
    best, least, violating = b, np.inf, 0
    for _ in range(steps):
        n1, n2, n0, p1, p2, p0 = signed_sums(scores, positives, b)
        if squared:
            value, slope, curvature = s.C * (n2 + p2), s.tau * b + 2.0 * s.C * (n1 - p1), s.tau + 2.0 * s.C * (n0 + p0)
        else:
            value, slope, curvature = s.C * (n1 + p1), s.tau * b + s.C * (n0 - p0), s.tau
        if value + 0.5 * s.tau * b * b < least:
            best, least, violating = b, value + 0.5 * s.tau * b * b, int(n0 + p0)
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


@numba.njit(nogil=True, cache=True)
def certify(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """The duality gap over all N samples, at w(alpha) with its best bias; as exact as the scores are."""
    l1, w2, nnz = 0.0, 0.0, 0
    for t in range(at.n_touched):
        w = soft(scratch.v[t], s.lam) / s.tau
        if w != 0.0:
            l1 += abs(w)
            w2 += w * w
            nnz += 1
    first, second, support = 0.0, 0.0, 0
    for a in range(at.n_active):
        alpha = scratch.alpha[scratch.active[a]]
        first += alpha
        second += alpha * alpha
        support += alpha > 0.0
    b = at.vb / s.tau
    inv = 0.5 / s.C if s.loss == SQUARED_HINGE else 0.0
    at.dual = max(at.dual, first - 0.5 * inv * second - 0.5 * s.tau * (w2 + b * b))
    positives = problem.YT.indices[problem.YT.indptr[at.label] : problem.YT.indptr[at.label + 1]]
    near, steps = at.bias if at.rounds > 0 else -1.0, STEPS if at.exact == 1 else SEARCH_STEPS
    at.bias, least, at.violating = best_bias(scratch.scores, positives, s, near, ENOUGH * s.eps * at.null, steps)
    at.primal = s.lam * l1 + 0.5 * s.tau * w2 + least
    at.gap = at.primal - at.dual
    at.nnz, at.support = nnz, support


@numba.njit(nogil=True, cache=True)
def shrink(scratch: Scratch, at: Any) -> None:
    """Drop negatives whose alpha is zero (paper, Algorithm 1, step 4); the search brings them back if they violate."""
    kept = 0
    for a in range(at.n_active):
        i = scratch.active[a]
        if scratch.kind[i] == NEGATIVE and scratch.alpha[i] == 0.0:
            scratch.kind[i] = UNSEEN
        else:
            scratch.active[kept] = i
            kept += 1
    at.n_active = kept


@numba.njit(nogil=True, cache=True, fastmath={"nnan", "nsz", "reassoc"})
def largest_unseen(scores: Float64, kind: np.ndarray) -> float:
    """The largest score of the unseen samples of a block; NOTHING without any; SIMD."""
    out = NOTHING
    for i in range(len(scores)):
        out = max(out, scores[i] if kind[i] == UNSEEN else NOTHING)
    return out


@numba.njit(nogil=True, cache=True)
def enter(problem: Problem, scratch: Scratch, at: Any, i: int) -> None:
    """Make sample i an active negative."""
    scratch.kind[i] = NEGATIVE
    scratch.active[at.n_active] = i
    at.n_active += 1
    admit(problem.X, i, scratch, at)


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
    for k in range(n_blocks):
        tops[k] = largest_unseen(scratch.scores[k * block : (k + 1) * block], scratch.kind[k * block : (k + 1) * block])
    floor = -1.0 - at.vb / s.tau  # a negative violates above this score
    cut = np.partition(tops, n_blocks - quota)[n_blocks - quota] if quota < n_blocks else NOTHING
    before = at.n_active
    at.counter += GAMMA
    offset = below(at.counter, n_blocks)
    for strict in (True, False):
        for turn in range(n_blocks):
            k = int((offset + turn) % n_blocks)
            if at.n_active - before >= 2 * quota or (not strict and at.n_active - before >= quota):
                break
            if tops[k] > floor + 1e-12 and (tops[k] > cut if strict else tops[k] >= cut):
                for i in range(k * block, min(n, (k + 1) * block)):
                    z = scratch.scores[i]
                    if scratch.kind[i] == UNSEEN and z > floor + 1e-12 and (z > cut if strict else z >= cut):
                        enter(problem, scratch, at, i)
    admitted: int = at.n_active - before
    return admitted


@numba.njit(nogil=True, cache=True)
def after_score(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """Stop on the certificate, or choose the next active set."""
    certify(problem, s, scratch, at)
    at.position = 0
    asked = s.eps * at.null * (1.0 if at.exact == 1 else HOPE)
    if at.gap <= asked or at.rounds >= s.max_rounds:
        if at.exact == 1:
            at.phase = EXPORT
        at.exact = 1  # it looks done: walk what waited, and look again
        return
    at.exact = 1 if at.rounds >= SEARCHES else 0
    if at.rounds > 0:
        shrink(scratch, at)
    entered = grow(problem, s, scratch, at)
    at.rounds += 1
    if entered == 0 or at.rounds > 4:
        at.inner_tol *= 0.3  # the active set is right or nearly so: solve on it more sharply
    at.sweeps_left = s.max_sweeps
    at.phase = SWEEP


@numba.njit(nogil=True, cache=True)
def export(s: Settings, scratch: Scratch, at: Any, done: int, out: Columns) -> bool:
    """Write the class's weights by ascending feature and clean the scratch; False when the output has no room."""
    base = out.ends[done - 1] if done > 0 else 0
    if base + at.nnz > len(out.features):
        return False
    kept, pruned = 0, 0
    numbers = np.empty(at.nnz, np.int32)
    for t in range(at.n_touched):
        scratch.number[scratch.touched[t]] = 0
        w = soft(scratch.v[t], s.lam) / s.tau
        if abs(w) > s.prune:
            numbers[kept] = t
            kept += 1
        elif w != 0.0:
            pruned += 1
    order = np.argsort(scratch.touched[numbers[:kept]])
    for p in range(kept):
        t = numbers[order[p]]
        out.features[base + p] = scratch.touched[t]
        out.weights[base + p] = soft(scratch.v[t], s.lam) / s.tau
    for a in range(at.n_entered):
        i = scratch.entered[a]
        scratch.begins[i] = 0
        scratch.alpha[i] = 0.0
        scratch.kind[i] = UNSEEN
    at.nnz, at.pruned = kept, pruned
    out.ends[done] = base + kept
    return True


@numba.njit(nogil=True, cache=True)
def advance(
    problem: Problem, s: Settings, labels: Int32, scratch: Scratch, state: np.ndarray, done: int, out: Columns, budget: int
) -> tuple[int, int]:
    """Solve `labels[done:]` until all are done, `budget` entries of X were visited, or `out` is full.

    state: (1,) of STATE, zero before the first call. Returns (why, done): DONE, BUDGET or FULL, and how many of `labels`
    are finished; a class under way goes on at the next call.
    """
    at = state[0]
    while done < len(labels):
        if at.phase == START:
            start(problem, s, labels[done], scratch, at)
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
