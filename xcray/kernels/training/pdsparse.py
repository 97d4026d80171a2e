"""PD-Sparse kernel: all labels together, by block-coordinate ascent on samples' active labels.

With P_i the labels of sample i, N_i all others, V = sum_i x_i beta_i' (D, K), z = W'x_i
(`xcray.solvers.pdsparse` states the problem and derives this):

    primal  P(W) = lam |W|_1 + tau/2 |W|^2
                   + C sum_i max(0, 1 + max over N_i of z - min over P_i of z)
    dual    D(beta) = sum_i m_i - tau/2 |W(beta)|^2,   W(beta) = soft(V, lam) / tau
            beta_ip >= 0 on P_i, beta_in = -u_in <= 0 on N_i,
            m_i = sum of beta_ip = sum of u_in, at most C
    gap     P(W(beta)) - D(beta) = sum_i gap_i,   gap_i = C loss_i - m_i + beta_i.z_i >= 0

A pass visits the samples in random order. SEARCH: score all labels of a sample through the non-zero
rows of W, add the worst negatives to its active set, and move its beta to the maximum of a
quadratic lower bound of D on that set, which is a projection. INNER: the same without the search.
CERTIFY: search all samples without changing beta, for the exact gap. REBASE: recompute V from beta,
without cancelled entries; beta is then all that another process needs to continue with the same
bits.

V is never dense: it is a `DynamicRows`, one row per feature, with lam as threshold.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, Pattern
from xcray.kernels.inner import inner
from xcray.kernels.random import GAMMA, below, stream
from xcray.kernels.training.dynamic_csr import (
    DynamicRows,
    add,
    clear,
    gather,
    has_capacity,
    soft_threshold,
)

BEGIN, SEARCH, INNER, CERTIFY, REBASE, FINISHED = 0, 1, 2, 3, 4, 5
# results of `advance`
DONE, BUDGET, FULL_LISTS, FULL_TABLE, CHECKPOINT = 0, 1, 2, 3, 4
NO_SCORE = -np.inf
# certify when the estimated gap is at most this multiple of the requested one
CERTIFY_FACTOR = 1.5
# samples with a gap of at most this share of eps C are skipped in inner passes
QUIET_SHARE = 0.2
# costs of finding an entry of V and of adding to it, in units of visited entries
FIND_COST, ADD_COST = 16, 40

STATE = np.dtype(
    [
        ("phase", np.int32),
        ("passes", np.int32),
        ("inner_left", np.int32),
        ("n_live", np.int32),  # samples with some label but not all
        ("position", np.int32),  # within the current pass
        ("certified", np.int32),
        ("counter", np.uint64),  # of the random stream of the pass
        ("work", np.int64),  # entries visited
        ("estimate", np.float64),  # of the gap: the sum of its terms as visited
        ("primal", np.float64),
        ("dual", np.float64),
        ("gap", np.float64),
        ("null", np.float64),  # the primal at W = 0
    ],
    align=True,
)


class PDSparseProblem(NamedTuple):
    """Data: X (N, D), labels Y (N, K), row_sq (N,) squared row norms, float64."""

    X: CSR
    Y: Pattern
    row_sq: Float64


class PDSparseSettings(NamedTuple):
    """Hyper-parameters as scalars."""

    lam: float
    tau: float
    C: float
    eps: float
    max_passes: int
    inner: int
    growth: int
    sample: float
    seed: int


class ActiveSets(NamedTuple):
    """Active set of each sample and its dual.

    Row i holds size[i] labels, those of the sample first, and their |beta|.
    """

    begin: Int64  # (N,)
    size: Int32  # (N,)
    capacity: Int32  # (N,)
    labels: Int32
    values: Float64
    used: Int64  # (1,) allocated entries of `labels` and `values`


class PDSparseScratch(NamedTuple):
    """Working memory, O(N + K)."""

    z: Float64  # (K,) zero between samples
    touched: Int32  # (K,) labels whose z was changed
    order: Int32  # (N,) the pass's order of samples
    quiet: np.ndarray  # (N,) uint8: 1 if the sample's last gap was small
    gaps: Float64  # (N,) gap_i at the last visit
    zs: Float64  # (K + 1,) z of the active labels of one sample
    # (K + 1,) unconstrained maximum of the quadratic bound, then the new |beta|
    target: Float64
    sorted_: Float64  # (K + 1,)
    top: Int32  # (growth + 1,) best inactive labels
    top_z: Float64  # (growth + 1,)


# ---- scores ----


@inner()
def add_feature_scores(
    table: DynamicRows,
    j: int,
    x: float,
    s: PDSparseSettings,
    scratch: PDSparseScratch,
    n_touched: int,
) -> int:
    """Add x W[j] to z; return the number of touched labels so far.

    A label whose z returned to zero can be counted again.
    """
    z, touched = scratch.z, scratch.touched
    lo, n = table.begin[j], table.n_large[j]
    labels, values = table.columns[lo : lo + n], table.values[lo : lo + n]
    x, lam = x / s.tau, s.lam
    for p in range(n):
        k, v = labels[p], values[p]
        if z[k] == 0.0 and n_touched < len(touched):
            touched[n_touched] = k
            n_touched += 1
        z[k] += x * soft_threshold(v, lam)
    return n_touched


@numba.njit(nogil=True, cache=True)
def score_all(
    problem: PDSparseProblem,
    table: DynamicRows,
    s: PDSparseSettings,
    scratch: PDSparseScratch,
    i: int,
) -> tuple[int, int]:
    """Compute z = W'x_i for all labels.

    Returns the number of touched labels (K: all of them), and the number of visited entries.
    """
    X = problem.X
    n, work = 0, 0
    for p in range(X.indptr[i], X.indptr[i + 1]):
        n = add_feature_scores(table, X.indices[p], X.data[p], s, scratch, n)
        work += table.n_large[X.indices[p]] + 1
    return n, work


@inner()
def score_some(
    problem: PDSparseProblem,
    table: DynamicRows,
    s: PDSparseSettings,
    scratch: PDSparseScratch,
    i: int,
    at: Any,
) -> tuple[int, int]:
    """Estimate W'x_i without bias from features drawn with replacement by size."""
    X = problem.X
    lo, hi = X.indptr[i], X.indptr[i + 1]
    total = 0.0
    for p in range(lo, hi):
        total += abs(X.data[p])
    draws = int(np.ceil(s.sample * (hi - lo)))
    n, work, counter = 0, 0, at.counter
    for _ in range(draws):
        counter += GAMMA
        left = total * (below(counter, 1 << 53) / (1 << 53))
        p = lo
        while p < hi - 1 and left >= abs(X.data[p]):
            left -= abs(X.data[p])
            p += 1
        n = add_feature_scores(
            table, X.indices[p], np.sign(X.data[p]) * total / draws, s, scratch, n
        )
        work += table.n_large[X.indices[p]] + p - lo + 1
    at.counter = counter
    return n, work


@inner()
def clear_scores(scratch: PDSparseScratch, n_touched: int) -> None:
    """Reset z to 0."""
    if 2 * n_touched >= len(scratch.z):
        scratch.z[:] = 0.0
    else:
        for t in range(n_touched):
            scratch.z[scratch.touched[t]] = 0.0


@inner()
def score_active(
    problem: PDSparseProblem,
    table: DynamicRows,
    s: PDSparseSettings,
    lists: ActiveSets,
    scratch: PDSparseScratch,
    i: int,
) -> int:
    """Compute z of the active labels of sample i into `zs`, by the cheaper method.

    Returns the number of visited entries.
    """
    X = problem.X
    base, n = lists.begin[i], lists.size[i]
    zs, labels = scratch.zs[:n], lists.labels[base : base + n]
    features = X.indices[X.indptr[i] : X.indptr[i + 1]]
    work, finding = 0, n * len(features) * FIND_COST
    for j in features:
        work += table.n_large[j]
    if work < finding:
        n_touched, work = score_all(problem, table, s, scratch, i)
        for a in range(n):
            zs[a] = scratch.z[labels[a]]
        clear_scores(scratch, n_touched)
        return int(work + n_touched + n)
    zs[:] = 0.0
    for p in range(X.indptr[i], X.indptr[i + 1]):
        gather(table, X.indices[p], labels, X.data[p] / s.tau, s.lam, zs)
    return int(finding)


# ---- one sample ----


@inner()
def threshold(c: Float64, mass: float) -> float:
    """Return theta with sum of (c - theta)_+ = mass, for c in descending order."""
    total, theta = 0.0, 0.0
    for r in range(len(c)):
        total += c[r]
        here = (total - mass) / (r + 1)
        if c[r] <= here:
            break
        theta = here
    return theta


@inner()
def sort_descending(source: Float64, out: Float64) -> None:
    """Copy `source` to `out` in descending order."""
    n = len(source)
    if n > 40:
        out[:] = -np.sort(-source)
        return
    for a in range(n):
        value, b = source[a], a
        while b > 0 and out[b - 1] < value:
            out[b] = out[b - 1]
            b -= 1
        out[b] = value


@numba.njit(nogil=True, cache=True)
def project(c: Float64, n_pos: int, C: float, scratch_: Float64) -> None:
    """Project c, in place, on the bi-simplex. Exact.

    All entries are >= 0, and c[:n_pos] and c[n_pos:] have the same sum, at most C. The optimum is
    (c_p - t)_+ and (c_n - h)_+ with t + h >= 0, zero if the sum is below C. In that
    case t is the only unknown; adding labels in descending order changes it such that no included
    label leaves again.
    """
    n = len(c)
    p, q = scratch_[:n_pos], scratch_[n_pos:n]
    sort_descending(c[:n_pos], p)
    sort_descending(c[n_pos:], q)
    if n_pos == 0 or n_pos == n or p[0] + q[0] <= 0.0:
        c[:] = 0.0
        return
    r, s, up, down = 1, 1, p[0], q[0]
    t = 0.5 * (up - down)
    grew = True
    while grew:
        grew = False
        if r < n_pos and p[r] > t:
            up += p[r]
            r, grew = r + 1, True
        elif s < n - n_pos and q[s] > -t:
            down += q[s]
            s, grew = s + 1, True
        t = (up - down) / (r + s)
    h = -t
    if up - r * t > C:
        t, h = threshold(p, C), threshold(q, C)
    for a in range(n_pos):
        c[a] = max(0.0, c[a] - t)
    for a in range(n_pos, n):
        c[a] = max(0.0, c[a] - h)


@inner()
def update_dual(
    problem: PDSparseProblem,
    table: DynamicRows,
    s: PDSparseSettings,
    lists: ActiveSets,
    scratch: PDSparseScratch,
    i: int,
    at: Any,
) -> None:
    """Move beta_i to the maximum of the quadratic bound on its active set; update V."""
    X = problem.X
    base, n = lists.begin[i], lists.size[i]
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    # the lower bound lets an empty row reach the border in one step, without loss of digits
    curvature = max(problem.row_sq[i] / s.tau, 1e-6 / s.C)
    old, new = lists.values[base : base + n], scratch.target[:n]
    for a in range(n_pos):
        new[a] = old[a] + (1.0 - scratch.zs[a]) / curvature
    for a in range(n_pos, n):
        new[a] = old[a] + scratch.zs[a] / curvature
    project(new, n_pos, s.C, scratch.sorted_)
    changed = 0
    for a in range(n):
        change = new[a] - old[a]
        old[a] = new[a]
        new[a] = change if a < n_pos else -change
        changed += change != 0.0
    if changed > 0:
        for p in range(X.indptr[i], X.indptr[i + 1]):
            add(table, X.indices[p], lists.labels[base : base + n], new, X.data[p], s.lam)
        at.work += changed * (X.indptr[i + 1] - X.indptr[i]) * ADD_COST


@inner()
def insert_candidate(scratch: PDSparseScratch, k: int, z: float, n_top: int, growth: int) -> int:
    """Insert label k into the best `growth` inactive labels; return their number.

    They are in order of descending z.
    """
    top, top_z = scratch.top, scratch.top_z
    if n_top == growth and z <= top_z[n_top - 1]:
        return n_top
    a = min(n_top, growth - 1)
    while a > 0 and top_z[a - 1] < z:
        top[a], top_z[a] = top[a - 1], top_z[a - 1]
        a -= 1
    top[a], top_z[a] = k, z
    return min(n_top + 1, growth)


@inner()
def best_negatives(
    scratch: PDSparseScratch, n_touched: int, cutoff: float, s: PDSparseSettings, at: Any
) -> int:
    """Collect the best inactive labels with z above `cutoff` in `top`; return their number.

    The z of active labels is NO_SCORE. Clears z. Labels that share no feature with the sample all
    have z = 0; a few of them, from a random label on, represent all.
    """
    z, touched = scratch.z, scratch.touched
    K, n_top = len(z), 0
    at.counter += GAMMA
    k = int(below(at.counter, K))
    if 2 * n_touched >= K:
        for _ in range(K):
            if z[k] > cutoff:
                n_top = insert_candidate(scratch, k, z[k], n_top, s.growth)
            z[k] = 0.0
            k = k + 1 if k + 1 < K else 0
        return n_top
    for t in range(n_touched):
        if z[touched[t]] > cutoff and z[touched[t]] != 0.0:
            n_top = insert_candidate(scratch, touched[t], z[touched[t]], n_top, s.growth)
            z[touched[t]] = NO_SCORE  # it can have been touched twice
    if cutoff < 0.0:
        for _ in range(K):
            if n_top == s.growth and scratch.top_z[n_top - 1] >= 0.0:
                break
            if z[k] == 0.0:
                n_top = insert_candidate(scratch, k, 0.0, n_top, s.growth)
            k = k + 1 if k + 1 < K else 0
    clear_scores(scratch, n_touched)
    return n_top


@numba.njit(nogil=True, cache=True)
def shrink(lists: ActiveSets, i: int, n_pos: int) -> None:
    """Drop active negatives of sample i with beta = 0; a search can add them again."""
    base, kept = lists.begin[i], n_pos
    for a in range(n_pos, lists.size[i]):
        if lists.values[base + a] > 0.0:
            lists.labels[base + kept], lists.values[base + kept] = (
                lists.labels[base + a],
                lists.values[base + a],
            )
            kept += 1
    lists.size[i] = kept


@inner()
def sample_gap(lists: ActiveSets, scratch: PDSparseScratch, i: int, n_pos: int, C: float) -> float:
    """Return gap_i = C loss_i - m_i + beta_i.z_i from the active labels, whose z is `zs`.

    The most confusing label is among them.
    """
    base = lists.begin[i]
    low, best, rest = np.inf, NO_SCORE, 0.0
    for a in range(n_pos):
        low = min(low, scratch.zs[a])
        rest += lists.values[base + a] * (scratch.zs[a] - 1.0)
    for a in range(n_pos, lists.size[i]):
        best = max(best, scratch.zs[a])
        rest -= lists.values[base + a] * scratch.zs[a]
    return C * max(0.0, 1.0 + best - low) + rest


@numba.njit(nogil=True, cache=True)
def search(
    problem: PDSparseProblem,
    table: DynamicRows,
    s: PDSparseSettings,
    lists: ActiveSets,
    scratch: PDSparseScratch,
    i: int,
    at: Any,
    is_update: bool,
) -> None:
    """Score all labels of sample i, store its gap, and add the most confusing labels.

    Afterwards `zs` holds z of all active labels. is_update: labels can be dropped, and only a
    sample of the features can be searched.
    """
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    if is_update:
        shrink(lists, i, n_pos)
    sampled = is_update and s.sample < 1.0
    if sampled:
        n_touched, work = score_some(problem, table, s, scratch, i, at)
    else:
        n_touched, work = score_all(problem, table, s, scratch, i)
    z, zs, base, n = scratch.z, scratch.zs, lists.begin[i], lists.size[i]
    low = np.inf
    for a in range(n):
        k = lists.labels[base + a]
        zs[a] = z[k]
        z[k] = NO_SCORE
        if a < n_pos:
            low = min(low, zs[a])
    n_top = best_negatives(scratch, n_touched, low - 1.0, s, at)
    for a in range(n):
        z[lists.labels[base + a]] = 0.0
    for r in range(n_top):
        above = r
        for a in range(n_pos, n):
            above += zs[a] >= scratch.top_z[r]
        if above >= s.growth:
            break
        m = lists.size[i]
        lists.labels[base + m], lists.values[base + m], zs[m] = (
            scratch.top[r],
            0.0,
            scratch.top_z[r],
        )
        lists.size[i] += 1
    if sampled:
        work += score_active(problem, table, s, lists, scratch, i)
    scratch.gaps[i] = sample_gap(lists, scratch, i, n_pos, s.C)
    at.estimate += scratch.gaps[i]
    at.work += work + n_touched + n


# ---- passes ----


@inner()
def ensure_capacity(lists: ActiveSets, i: int, growth: int) -> bool:
    """Ensure capacity for `growth` more labels of sample i; return False if the pool is full."""
    needed = lists.size[i] + growth
    if needed <= lists.capacity[i]:
        return True
    capacity, old, new = max(needed, 2 * lists.capacity[i]), lists.begin[i], lists.used[0]
    if new + capacity > len(lists.labels):
        return False
    for a in range(lists.size[i]):
        lists.labels[new + a], lists.values[new + a] = lists.labels[old + a], lists.values[old + a]
    lists.begin[i], lists.capacity[i] = new, capacity
    lists.used[0] += capacity
    return True


@inner()
def process_sample(
    problem: PDSparseProblem,
    s: PDSparseSettings,
    lists: ActiveSets,
    table: DynamicRows,
    scratch: PDSparseScratch,
    i: int,
    at: Any,
) -> int:
    """Process sample i in the current pass; return DONE, or which pool is full."""
    growth = s.growth if at.phase != INNER else 0
    if not ensure_capacity(lists, i, growth):
        return FULL_LISTS
    features = problem.X.indices[problem.X.indptr[i] : problem.X.indptr[i + 1]]
    if at.phase != CERTIFY and not has_capacity(table, features, lists.size[i] + growth):
        return FULL_TABLE
    if at.phase == INNER:
        if scratch.quiet[i]:
            return DONE
        at.work += score_active(problem, table, s, lists, scratch, i)
        n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
        scratch.gaps[i] = sample_gap(lists, scratch, i, n_pos, s.C)
    else:
        search(problem, table, s, lists, scratch, i, at, at.phase == SEARCH)
    scratch.quiet[i] = scratch.gaps[i] <= QUIET_SHARE * s.eps * s.C
    if at.phase != CERTIFY:
        update_dual(problem, table, s, lists, scratch, i, at)
    return DONE


@inner()
def rebuild_sample(
    problem: PDSparseProblem,
    s: PDSparseSettings,
    lists: ActiveSets,
    table: DynamicRows,
    scratch: PDSparseScratch,
    i: int,
    at: Any,
) -> int:
    """Add sample i's part of V; return DONE, or FULL_TABLE."""
    X, base, n = problem.X, lists.begin[i], lists.size[i]
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    if not has_capacity(table, X.indices[X.indptr[i] : X.indptr[i + 1]], n):
        return FULL_TABLE
    for a in range(n):
        scratch.target[a] = lists.values[base + a] if a < n_pos else -lists.values[base + a]
    for p in range(X.indptr[i], X.indptr[i + 1]):
        add(
            table, X.indices[p], lists.labels[base : base + n], scratch.target[:n], X.data[p], s.lam
        )
    at.work += n * (X.indptr[i + 1] - X.indptr[i]) * ADD_COST
    return DONE


@inner()
def begin_pass(
    problem: PDSparseProblem, s: PDSparseSettings, scratch: PDSparseScratch, at: Any
) -> None:
    """Draw a random order of the samples with some label but not all.

    It depends only on the seed and the number of the pass.
    """
    Y, order = problem.Y, scratch.order
    n = 0
    for i in range(len(Y.indptr) - 1):
        if 0 < Y.indptr[i + 1] - Y.indptr[i] < Y.n_cols:
            order[n] = i
            n += 1
    counter = stream(s.seed, at.passes)
    for a in range(n - 1, 0, -1):
        counter += GAMMA
        r = below(counter, a + 1)
        order[a], order[r] = order[r], order[a]
    at.counter, at.n_live, at.null, at.estimate = counter, n, s.C * n, 0.0
    at.phase = SEARCH


@numba.njit(nogil=True, cache=True)
def certify(s: PDSparseSettings, lists: ActiveSets, table: DynamicRows, at: Any) -> None:
    """Compute the objectives at W(beta), after a pass over the gaps of all samples."""
    square, mass = 0.0, 0.0
    for j in range(len(table.begin)):
        lo = table.begin[j]
        for p in range(lo, lo + table.n_large[j]):
            w = (abs(table.values[p]) - s.lam) / s.tau
            square += w * w
    for i in range(len(lists.begin)):
        lo = lists.begin[i]
        for p in range(lo, lo + lists.size[i]):
            mass += lists.values[p]
    at.gap, at.dual = at.estimate, 0.5 * mass - 0.5 * s.tau * square
    at.primal = at.dual + at.gap


@numba.njit(nogil=True, cache=True)
def finish_pass(s: PDSparseSettings, lists: ActiveSets, table: DynamicRows, at: Any) -> None:
    """Finish on the certificate, or choose the next phase."""
    if at.phase == SEARCH:
        at.passes += 1
        at.inner_left = s.inner
        if at.estimate <= CERTIFY_FACTOR * s.eps * at.null or at.passes >= s.max_passes:
            at.phase, at.estimate = CERTIFY, 0.0
            return
    elif at.phase == INNER:
        at.inner_left -= 1
    else:
        certify(s, lists, table, at)
        if at.gap <= s.eps * at.null or at.passes >= s.max_passes:
            at.certified = at.gap <= s.eps * at.null
            at.phase = FINISHED
            return
    at.phase = INNER
    if at.inner_left == 0:
        clear(table)
        at.phase = REBASE


@numba.njit(nogil=True, cache=True)
def advance(
    problem: PDSparseProblem,
    s: PDSparseSettings,
    lists: ActiveSets,
    table: DynamicRows,
    scratch: PDSparseScratch,
    state: np.ndarray,
    budget: int,
) -> int:
    """Continue until the training is DONE or must pause.

    It pauses after about `budget` visited entries, when a pool is full, or when V was recomputed
    (CHECKPOINT). state: (1,) of STATE, zero before the first call. To resume from saved `lists` and
    `state`, start with phase REBASE, position 0 and an empty table.
    """
    at = state[0]
    end = at.work + budget
    while at.phase != FINISHED:
        if at.phase == BEGIN:
            begin_pass(problem, s, scratch, at)
        n = len(lists.begin) if at.phase == REBASE else at.n_live
        while at.position < n:
            if at.phase == REBASE:
                reason = rebuild_sample(problem, s, lists, table, scratch, at.position, at)
            else:
                reason = process_sample(
                    problem, s, lists, table, scratch, scratch.order[at.position], at
                )
            if reason != DONE:
                return reason
            at.position += 1
            at.work += 1
            if at.work >= end:
                return BUDGET
        at.position = 0
        if at.phase == REBASE:
            at.phase = BEGIN
            return CHECKPOINT
        finish_pass(s, lists, table, at)
    return DONE
