"""The PPDSparse kernel: one-vs-all classes by active-set dual coordinate descent, each with a certificate.

For one class, with y_i = +1 or -1 (`xcray.solvers.ppdsparse` states the problem and its sources):

    primal  P(w, b) = lam |w|_1 + tau/2 (|w|^2 + b^2) + sum_i loss(1 - y_i (w.x_i + b))
    dual    D(alpha) = sum_i alpha_i - inv/2 sum_i alpha_i^2 - tau/2 (|w(alpha)|^2 + b(alpha)^2),   0 <= alpha_i <= upper
    v = sum_i alpha_i y_i x_i,   w(alpha) = soft(v, lam) / tau,   b(alpha) = sum_i alpha_i y_i / tau

    squared hinge: loss = C z_+^2, inv = 1/(2C), upper = infinity      hinge: loss = C z_+, inv = 0, upper = C

A class goes START -> SCORE -> (SWEEP -> SCORE)* -> EXPORT. `advance` runs such steps for a batch of classes and comes back
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
BINS = 256

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
        ("position", np.int32),  # within the sweep or the scoring pass under way
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
    """The data: X by row and by column, squared row norms (N,) float64, and which samples each label is on (K x N)."""

    X: CSR
    XT: CSR
    row_sq: Float64
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
    """Working memory of one worker, O(N + D); all zero between classes."""

    v: Float64  # (D,)
    marked: np.ndarray  # (D,) uint8: v_j has been touched
    touched: Int32  # (D,) the touched features, in order of first touch
    scores: Float64  # (N,) w.x_i, without the bias
    alpha: Float64  # (N,)
    kind: np.ndarray  # (N,) uint8: UNSEEN, POSITIVE or NEGATIVE
    active: Int32  # (N,) the active samples


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
def touch(X: CSR, i: int, scratch: Scratch, at: Any) -> None:
    """List the features of row i that no active row had."""
    n = at.n_touched
    for p in range(X.indptr[i], X.indptr[i + 1]):
        j = X.indices[p]
        if scratch.marked[j] == 0:
            scratch.marked[j] = 1
            scratch.touched[n] = j
            n += 1
    at.n_touched = n


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
    at.label, at.positives, at.n_active, at.n_touched = label, n_pos, n_pos, 0
    at.rounds, at.sweeps, at.sweeps_left, at.position, at.work = 0, 0, 0, 0, 0
    at.violation = 0.0
    at.nnz, at.pruned, at.support, at.violating = 0, 0, 0, 0
    at.counter = stream(s.seed, label)
    at.null = null_objective(n_pos, n_neg, s)
    at.inner_tol = 0.01 * s.eps
    at.dual, at.primal, at.gap = -np.inf, np.inf, np.inf
    if n_pos == 0:
        finish_empty(s, n_neg, at)
        return
    for a in range(n_pos):
        i = positives[a]
        scratch.kind[i] = POSITIVE
        scratch.active[a] = i
        touch(X, i, scratch, at)
        for p in range(X.indptr[i], X.indptr[i + 1]):
            scratch.v[X.indices[p]] += X.data[p]
        at.work += X.indptr[i + 1] - X.indptr[i]
    square = 0.0
    for t in range(at.n_touched):
        square += scratch.v[scratch.touched[t]] ** 2
    inv = 0.5 / s.C if s.loss == SQUARED_HINGE else 0.0
    alpha = 2.0 / max(inv + square / (n_pos * s.tau), 1e-12)  # minimises the dual along equal alphas when b stays at -1
    if s.loss == HINGE:
        alpha = min(alpha, s.C)
    for t in range(at.n_touched):
        scratch.v[scratch.touched[t]] *= alpha
    for a in range(n_pos):
        scratch.alpha[positives[a]] = alpha
    at.vb = alpha * n_pos
    at.phase = SCORE


@numba.njit(nogil=True, cache=True)
def finish_empty(s: Settings, n_neg: int, at: Any) -> None:
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
        dot = soft_dot(X.indices[lo:hi], X.data[lo:hi], v, lam)
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
            for p in range(lo, hi):
                v[X.indices[p]] += step * X.data[p]
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
def score(problem: Problem, s: Settings, scratch: Scratch, at: Any, budget: int) -> int:
    """w.x_i of every sample by walking the postings of the weights that are not zero, or as many as the budget allows."""
    XT, scores = problem.XT, scratch.scores
    if at.position == 0:
        scores[:] = 0.0
    work = 0
    t = at.position
    while t < at.n_touched and work < budget:
        j = scratch.touched[t]
        t += 1
        w = soft(scratch.v[j], s.lam) / s.tau
        if w != 0.0:
            lo, hi = XT.indptr[j], XT.indptr[j + 1]
            for p in range(lo, hi):
                scores[XT.indices[p]] += w * XT.data[p]
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
def best_bias(scores: Float64, positives: Int32, s: Settings, b: float) -> float:
    """The bias that minimises the primal at fixed w: Newton's method on a monotone piecewise linear slope, kept in a bracket."""
    squared = s.loss == SQUARED_HINGE
    low, high = -np.inf, np.inf
    for _ in range(100):
        n1, _, n0, p1, _, p0 = signed_sums(scores, positives, b)
        if squared:
            slope, curvature = s.tau * b + 2.0 * s.C * (n1 - p1), s.tau + 2.0 * s.C * (n0 + p0)
        else:
            slope, curvature = s.tau * b + s.C * (n0 - p0), s.tau
        if slope > 0.0:
            high = min(high, b)
        else:
            low = max(low, b)
        new = b - slope / curvature
        if not low <= new <= high:
            new = 0.5 * (low + high)
        elif not squared and np.isfinite(low) and np.isfinite(high):
            new = 0.5 * (low + high)  # the hinge's slope jumps: halve the bracket
        if abs(new - b) <= 1e-12 * (1.0 + abs(b)):
            break
        b = new
    return b


@numba.njit(nogil=True, cache=True)
def certify(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """The duality gap over all N samples, at w(alpha) with its best bias; exact after every scoring pass."""
    l1, w2, nnz = 0.0, 0.0, 0
    for t in range(at.n_touched):
        w = soft(scratch.v[scratch.touched[t]], s.lam) / s.tau
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
    at.bias = best_bias(scratch.scores, positives, s, b)
    n1, n2, n0, p1, p2, p0 = signed_sums(scratch.scores, positives, at.bias)
    loss = s.C * (n2 + p2) if s.loss == SQUARED_HINGE else s.C * (n1 + p1)
    at.primal = s.lam * l1 + 0.5 * s.tau * (w2 + at.bias * at.bias) + loss
    at.gap = at.primal - at.dual
    at.nnz, at.support, at.violating = nnz, support, np.int32(n0 + p0)


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


@numba.njit(nogil=True, cache=True)
def cut_of(scratch: Scratch, b: float, quota: int) -> tuple[float, float]:
    """A violation such that about `quota` unseen samples exceed it, by a histogram; and the width of a bin (0: none violates)."""
    worst = 0.0
    for i in range(len(scratch.scores)):
        if scratch.kind[i] == UNSEEN:
            worst = max(worst, 1.0 + scratch.scores[i] + b)
    if worst <= 1e-12:
        return 0.0, 0.0
    counts = np.zeros(BINS + 1, np.int64)
    for i in range(len(scratch.scores)):
        z = 1.0 + scratch.scores[i] + b
        if z > 0.0 and scratch.kind[i] == UNSEEN:
            counts[np.int64(z / worst * BINS)] += 1
    counts[BINS - 1] += counts[BINS]
    total, cut = 0, BINS
    while cut > 0 and total + counts[cut - 1] <= quota:
        cut -= 1
        total += counts[cut]
    return worst * cut / BINS, worst / BINS


@numba.njit(nogil=True, cache=True)
def enter(problem: Problem, scratch: Scratch, at: Any, i: int) -> None:
    """Make sample i an active negative."""
    scratch.kind[i] = NEGATIVE
    scratch.active[at.n_active] = i
    at.n_active += 1
    touch(problem.X, i, scratch, at)


@numba.njit(nogil=True, cache=True)
def grow(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> int:
    """Let the most violating unseen negatives in (paper, Algorithm 1, step 2); returns how many.

    At most as many as are active now plus `growth` for each positive. Of the bin that would exceed that (often thousands of
    samples that share no feature with w, all with the same score) a part enters, from a pseudo-random place on.
    """
    b = at.vb / s.tau
    quota = s.growth * (1 + at.positives) + at.n_active
    cut, width = cut_of(scratch, b, quota)
    if width == 0.0:
        return 0
    n, before = len(scratch.scores), at.n_active
    for i in range(n):
        if scratch.kind[i] == UNSEEN and 1.0 + scratch.scores[i] + b > cut:
            enter(problem, scratch, at, i)
    at.counter += GAMMA
    offset = below(at.counter, n)
    for turn in range(n):
        if at.n_active - before >= quota:
            break
        candidate = int((offset + turn) % n)
        z = 1.0 + scratch.scores[candidate] + b
        if scratch.kind[candidate] == UNSEEN and z > cut - width and z > 0.0:
            enter(problem, scratch, at, candidate)
    entered: int = at.n_active - before
    return entered


@numba.njit(nogil=True, cache=True)
def after_score(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """Stop on the certificate, or choose the next active set."""
    certify(problem, s, scratch, at)
    at.position = 0
    if at.gap <= s.eps * at.null or at.rounds >= s.max_rounds:
        at.phase = EXPORT
        return
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
    touched = np.sort(scratch.touched[: at.n_touched])
    kept, pruned = 0, 0
    for j in touched:
        w = soft(scratch.v[j], s.lam) / s.tau
        if w != 0.0:
            if abs(w) > s.prune:
                out.features[base + kept] = j
                out.weights[base + kept] = w
                kept += 1
            else:
                pruned += 1
    for j in touched:
        scratch.v[j] = 0.0
        scratch.marked[j] = 0
    for a in range(at.n_active):
        scratch.alpha[scratch.active[a]] = 0.0
        scratch.kind[scratch.active[a]] = UNSEEN
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
