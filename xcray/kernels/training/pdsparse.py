"""The PD-Sparse kernel: all labels at once, by block-coordinate ascent on each sample's few confusing labels.

With P_i the labels on sample i, N_i all others, V = sum_i x_i beta_i' (D x K), z = W'x_i (`xcray.solvers.pdsparse` states the
problem and derives this):

    primal  P(W) = lam |W|_1 + tau/2 |W|^2 + C sum_i max(0, 1 + max over N_i of z - min over P_i of z)
    dual    D(beta) = sum_i m_i - tau/2 |W(beta)|^2,   W(beta) = soft(V, lam) / tau
            beta_ip >= 0 on P_i, beta_in = -u_in <= 0 on N_i, m_i = sum of beta_ip = sum of u_in, at most C
    gap     P(W(beta)) - D(beta) = sum_i gap_i,   gap_i = C loss_i - m_i + beta_i.z_i >= 0

A pass takes the samples in a random order. SEARCH: score all labels of a sample through the nonzero rows of W, let the worst
negatives into its active set, and move its beta to the maximum of a quadratic lower bound of D on that set: a projection.
INNER: the same without the search. CERTIFY: search all samples and change no beta: the exact gap. REBASE: make V afresh from
beta, without the entries that came and went; beta is then all that another process needs to go on with the same bits.

V is never dense: `kernels.growing`, a row a feature, with lam as its threshold.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, Pattern
from xcray.kernels.random import GAMMA, below, stream
from xcray.kernels.training.dynamic_csr import Table, add, clear, gather, has_room, past

# The content of these files, held by test_house.py: numba's disk cache sees changes of this file alone.
BUILT_ON = {"random": "bd4614dc", "training.dynamic_csr": "44647afd"}

BEGIN, SEARCH, INNER, CERTIFY, REBASE, FINISHED = 0, 1, 2, 3, 4, 5
DONE, BUDGET, FULL_LISTS, FULL_TABLE, KEEP = 0, 1, 2, 3, 4  # why `advance` came back
NOTHING = -np.inf  # a score below all scores
HOPE = 1.5  # it looks done when the estimated gap is at most so many times the one asked for
QUIET = 0.2  # of eps C: a sample that lacks less on its active labels is left out of inner passes
FINDING, ADDING = 16, 40  # what finding an entry of V, and adding to one, take, in entries walked

STATE = np.dtype(
    [
        ("phase", np.int32),
        ("passes", np.int32),
        ("inner_left", np.int32),
        ("n_live", np.int32),  # samples with a label and a label they lack
        ("position", np.int32),  # within the pass under way
        ("certified", np.int32),
        ("counter", np.uint64),  # of the random stream of the pass
        ("work", np.int64),  # entries visited
        ("estimate", np.float64),  # of the gap: its terms as the pass met them
        ("primal", np.float64),
        ("dual", np.float64),
        ("gap", np.float64),
        ("null", np.float64),  # the primal at W = 0
    ],
    align=True,
)


class Problem(NamedTuple):
    """The data: X (N x D), Y (N x K) the labels of each sample, row_sq (N,) squared row norms, float64."""

    X: CSR
    Y: Pattern
    row_sq: Float64


class Settings(NamedTuple):
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


class Lists(NamedTuple):
    """The active set of each sample and its dual: row i holds size[i] labels, those on the sample first, and their |beta|."""

    begin: Int64  # (N,)
    size: Int32  # (N,)
    room: Int32  # (N,)
    labels: Int32
    values: Float64
    used: Int64  # (1,) places of `labels` and `values` given out


class Scratch(NamedTuple):
    """Working memory, O(N + K)."""

    z: Float64  # (K,) zero between samples
    touched: Int32  # (K,) labels whose z was moved
    order: Int32  # (N,) the pass's order of samples
    quiet: np.ndarray  # (N,) uint8: 1 when the sample lacked little at its last visit
    gaps: Float64  # (N,) gap_i, as the last visit saw it
    zs: Float64  # (K + 1,) z of the active labels of one sample
    target: (
        Float64  # (K + 1,) where the quadratic bound alone would move them, then their new |beta|
    )
    sorted_: Float64  # (K + 1,)
    top: Int32  # (growth + 1,) the best labels that are not active
    top_z: Float64  # (growth + 1,)


# ---- scores ----


@numba.njit(nogil=True, cache=True)
def walk(table: Table, j: int, x: float, s: Settings, scratch: Scratch, n_touched: int) -> int:
    """Add x W[j] to z; returns how many labels were touched so far (one that came back to zero may count again)."""
    z, touched = scratch.z, scratch.touched
    lo, n = table.begin[j], table.strong[j]
    labels, values = table.columns[lo : lo + n], table.values[lo : lo + n]
    x, lam = x / s.tau, s.lam
    for p in range(n):
        k, v = labels[p], values[p]
        if z[k] == 0.0 and n_touched < len(touched):
            touched[n_touched] = k
            n_touched += 1
        z[k] += x * past(v, lam)
    return n_touched


@numba.njit(nogil=True, cache=True)
def score_all(
    problem: Problem, table: Table, s: Settings, scratch: Scratch, i: int
) -> tuple[int, int]:
    """z = W'x_i for all labels; returns how many labels were touched (K: count them all) and the entries visited."""
    X = problem.X
    n, work = 0, 0
    for p in range(X.indptr[i], X.indptr[i + 1]):
        n = walk(table, X.indices[p], X.data[p], s, scratch, n)
        work += table.strong[X.indices[p]] + 1
    return n, work


@numba.njit(nogil=True, cache=True)
def score_some(
    problem: Problem, table: Table, s: Settings, scratch: Scratch, i: int, at: Any
) -> tuple[int, int]:
    """An unbiased estimate of W'x_i from a share of its features, drawn with replacement by size."""
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
        n = walk(table, X.indices[p], np.sign(X.data[p]) * total / draws, s, scratch, n)
        work += table.strong[X.indices[p]] + p - lo + 1
    at.counter = counter
    return n, work


@numba.njit(nogil=True, cache=True)
def forget(scratch: Scratch, n_touched: int) -> None:
    """z = 0 again."""
    if 2 * n_touched >= len(scratch.z):
        scratch.z[:] = 0.0
    else:
        for t in range(n_touched):
            scratch.z[scratch.touched[t]] = 0.0


@numba.njit(nogil=True, cache=True)
def score_active(
    problem: Problem, table: Table, s: Settings, lists: Lists, scratch: Scratch, i: int
) -> int:
    """z of the active labels of sample i alone, into `zs`, by what is cheaper; returns the entries visited."""
    X = problem.X
    base, n = lists.begin[i], lists.size[i]
    zs, labels = scratch.zs[:n], lists.labels[base : base + n]
    features = X.indices[X.indptr[i] : X.indptr[i + 1]]
    work, finding = 0, n * len(features) * FINDING
    for j in features:
        work += table.strong[j]
    if work < finding:
        n_touched, work = score_all(problem, table, s, scratch, i)
        for a in range(n):
            zs[a] = scratch.z[labels[a]]
        forget(scratch, n_touched)
        return int(work + n_touched + n)
    zs[:] = 0.0
    for p in range(X.indptr[i], X.indptr[i + 1]):
        gather(table, X.indices[p], labels, X.data[p] / s.tau, s.lam, zs)
    return int(finding)


# ---- one sample ----


@numba.njit(nogil=True, cache=True)
def threshold(c: Float64, mass: float) -> float:
    """theta with sum of (c - theta)_+ = mass, for c in descending order."""
    total, theta = 0.0, 0.0
    for r in range(len(c)):
        total += c[r]
        here = (total - mass) / (r + 1)
        if c[r] <= here:
            break
        theta = here
    return theta


@numba.njit(nogil=True, cache=True)
def descend(source: Float64, out: Float64) -> None:
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
def project(c: Float64, n_pos: int, C: float, room: Float64) -> None:
    """Project c, in place, on the bi-simplex: all >= 0, and c[:n_pos] and c[n_pos:] of one sum, at most C. Exact.

    Its conditions: (c_p - t)_+ and (c_n - h)_+ with t + h >= 0, zero where the sum is below C. Where it is, t is the only
    unknown; taking labels in from the largest on moves it so that no label in leaves again.
    """
    n = len(c)
    p, q = room[:n_pos], room[n_pos:n]
    descend(c[:n_pos], p)
    descend(c[n_pos:], q)
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


@numba.njit(nogil=True, cache=True)
def step(
    problem: Problem, table: Table, s: Settings, lists: Lists, scratch: Scratch, i: int, at: Any
) -> None:
    """Move beta_i, at the scores `zs`, to the maximum of the quadratic bound on its active set; V follows."""
    X = problem.X
    base, n = lists.begin[i], lists.size[i]
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    curvature = max(
        problem.row_sq[i] / s.tau, 1e-6 / s.C
    )  # an empty row goes to the border at once, without loss of digits
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
        at.work += changed * (X.indptr[i + 1] - X.indptr[i]) * ADDING


@numba.njit(nogil=True, cache=True)
def propose(scratch: Scratch, k: int, z: float, n_top: int, growth: int) -> int:
    """Let label k among the best `growth` that are not active, by descending z; returns how many there are."""
    top, top_z = scratch.top, scratch.top_z
    if n_top == growth and z <= top_z[n_top - 1]:
        return n_top
    a = min(n_top, growth - 1)
    while a > 0 and top_z[a - 1] < z:
        top[a], top_z[a] = top[a - 1], top_z[a - 1]
        a -= 1
    top[a], top_z[a] = k, z
    return min(n_top + 1, growth)


@numba.njit(nogil=True, cache=True)
def best_negatives(scratch: Scratch, n_touched: int, cutoff: float, s: Settings, at: Any) -> int:
    """The best labels with z above `cutoff`, not active (their z is NOTHING), into `top`; returns how many. Clears z.

    Labels that share no feature with the sample have z = 0, all alike: a few from a random label on stand for them.
    """
    z, touched = scratch.z, scratch.touched
    K, n_top = len(z), 0
    at.counter += GAMMA
    k = int(below(at.counter, K))
    if 2 * n_touched >= K:
        for _ in range(K):
            if z[k] > cutoff:
                n_top = propose(scratch, k, z[k], n_top, s.growth)
            z[k] = 0.0
            k = k + 1 if k + 1 < K else 0
        return n_top
    for t in range(n_touched):
        if z[touched[t]] > cutoff and z[touched[t]] != 0.0:
            n_top = propose(scratch, touched[t], z[touched[t]], n_top, s.growth)
            z[touched[t]] = NOTHING  # it may have been touched twice
    if cutoff < 0.0:
        for _ in range(K):
            if n_top == s.growth and scratch.top_z[n_top - 1] >= 0.0:
                break
            if z[k] == 0.0:
                n_top = propose(scratch, k, 0.0, n_top, s.growth)
            k = k + 1 if k + 1 < K else 0
    forget(scratch, n_touched)
    return n_top


@numba.njit(nogil=True, cache=True)
def shrink(lists: Lists, i: int, n_pos: int) -> None:
    """Drop the active negatives of sample i whose beta is zero; the search brings them back if they are confusing."""
    base, kept = lists.begin[i], n_pos
    for a in range(n_pos, lists.size[i]):
        if lists.values[base + a] > 0.0:
            lists.labels[base + kept], lists.values[base + kept] = (
                lists.labels[base + a],
                lists.values[base + a],
            )
            kept += 1
    lists.size[i] = kept


@numba.njit(nogil=True, cache=True)
def gap_of(lists: Lists, scratch: Scratch, i: int, n_pos: int, C: float) -> float:
    """gap_i = C loss_i - m_i + beta_i.z_i from the active labels, whose z is `zs`; the most confusing label is among them."""
    base = lists.begin[i]
    low, best, rest = np.inf, NOTHING, 0.0
    for a in range(n_pos):
        low = min(low, scratch.zs[a])
        rest += lists.values[base + a] * (scratch.zs[a] - 1.0)
    for a in range(n_pos, lists.size[i]):
        best = max(best, scratch.zs[a])
        rest -= lists.values[base + a] * scratch.zs[a]
    return C * max(0.0, 1.0 + best - low) + rest


@numba.njit(nogil=True, cache=True)
def search(
    problem: Problem,
    table: Table,
    s: Settings,
    lists: Lists,
    scratch: Scratch,
    i: int,
    at: Any,
    moving: bool,
) -> None:
    """Score all labels of sample i, note its gap, and let the most confusing labels into its active set.

    After it `zs` holds z of all active labels. moving: it may drop labels, and search a sample of the features only.
    """
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    if moving:
        shrink(lists, i, n_pos)
    sampled = moving and s.sample < 1.0
    if sampled:
        n_touched, work = score_some(problem, table, s, scratch, i, at)
    else:
        n_touched, work = score_all(problem, table, s, scratch, i)
    z, zs, base, n = scratch.z, scratch.zs, lists.begin[i], lists.size[i]
    low = np.inf
    for a in range(n):
        k = lists.labels[base + a]
        zs[a] = z[k]
        z[k] = NOTHING
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
    scratch.gaps[i] = gap_of(lists, scratch, i, n_pos, s.C)
    at.estimate += scratch.gaps[i]
    at.work += work + n_touched + n


# ---- passes ----


@numba.njit(nogil=True, cache=True)
def make_room(lists: Lists, i: int, growth: int) -> bool:
    """Room for `growth` more labels of sample i; False when the pool has none."""
    needed = lists.size[i] + growth
    if needed <= lists.room[i]:
        return True
    room, old, new = max(needed, 2 * lists.room[i]), lists.begin[i], lists.used[0]
    if new + room > len(lists.labels):
        return False
    for a in range(lists.size[i]):
        lists.labels[new + a], lists.values[new + a] = lists.labels[old + a], lists.values[old + a]
    lists.begin[i], lists.room[i] = new, room
    lists.used[0] += room
    return True


@numba.njit(nogil=True, cache=True)
def visit(
    problem: Problem, s: Settings, lists: Lists, table: Table, scratch: Scratch, i: int, at: Any
) -> int:
    """What the pass under way does with sample i; DONE, or which pool is full."""
    growth = s.growth if at.phase != INNER else 0
    if not make_room(lists, i, growth):
        return FULL_LISTS
    features = problem.X.indices[problem.X.indptr[i] : problem.X.indptr[i + 1]]
    if at.phase != CERTIFY and not has_room(table, features, lists.size[i] + growth):
        return FULL_TABLE
    if at.phase == INNER:
        if scratch.quiet[i]:
            return DONE
        at.work += score_active(problem, table, s, lists, scratch, i)
        n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
        scratch.gaps[i] = gap_of(lists, scratch, i, n_pos, s.C)
    else:
        search(problem, table, s, lists, scratch, i, at, at.phase == SEARCH)
    scratch.quiet[i] = scratch.gaps[i] <= QUIET * s.eps * s.C
    if at.phase != CERTIFY:
        step(problem, table, s, lists, scratch, i, at)
    return DONE


@numba.njit(nogil=True, cache=True)
def rebuild(
    problem: Problem, s: Settings, lists: Lists, table: Table, scratch: Scratch, i: int, at: Any
) -> int:
    """Add sample i's part of V; DONE, or FULL_TABLE."""
    X, base, n = problem.X, lists.begin[i], lists.size[i]
    n_pos = problem.Y.indptr[i + 1] - problem.Y.indptr[i]
    if not has_room(table, X.indices[X.indptr[i] : X.indptr[i + 1]], n):
        return FULL_TABLE
    for a in range(n):
        scratch.target[a] = lists.values[base + a] if a < n_pos else -lists.values[base + a]
    for p in range(X.indptr[i], X.indptr[i + 1]):
        add(
            table, X.indices[p], lists.labels[base : base + n], scratch.target[:n], X.data[p], s.lam
        )
    at.work += n * (X.indptr[i + 1] - X.indptr[i]) * ADDING
    return DONE


@numba.njit(nogil=True, cache=True)
def begin_pass(problem: Problem, s: Settings, scratch: Scratch, at: Any) -> None:
    """A random order of the samples that have a label and lack one; it depends on the number of the pass alone."""
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
def certify(s: Settings, lists: Lists, table: Table, at: Any) -> None:
    """The objectives at W(beta), after a pass that met every sample's gap there."""
    square, mass = 0.0, 0.0
    for j in range(len(table.begin)):
        lo = table.begin[j]
        for p in range(lo, lo + table.strong[j]):
            w = (abs(table.values[p]) - s.lam) / s.tau
            square += w * w
    for i in range(len(lists.begin)):
        lo = lists.begin[i]
        for p in range(lo, lo + lists.size[i]):
            mass += lists.values[p]
    at.gap, at.dual = at.estimate, 0.5 * mass - 0.5 * s.tau * square
    at.primal = at.dual + at.gap


@numba.njit(nogil=True, cache=True)
def after_pass(s: Settings, lists: Lists, table: Table, at: Any) -> None:
    """Stop on the certificate, or choose the next pass."""
    if at.phase == SEARCH:
        at.passes += 1
        at.inner_left = s.inner
        if at.estimate <= HOPE * s.eps * at.null or at.passes >= s.max_passes:
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
    problem: Problem,
    s: Settings,
    lists: Lists,
    table: Table,
    scratch: Scratch,
    state: np.ndarray,
    budget: int,
) -> int:
    """Go on until all is done (DONE), about `budget` entries were visited, a pool is full, or V was made afresh (KEEP).

    state: (1,) of STATE, zero before the first call. To go on from kept `lists` and `state`, begin with phase REBASE,
    position 0 and an empty table.
    """
    at = state[0]
    end = at.work + budget
    while at.phase != FINISHED:
        if at.phase == BEGIN:
            begin_pass(problem, s, scratch, at)
        n = len(lists.begin) if at.phase == REBASE else at.n_live
        while at.position < n:
            if at.phase == REBASE:
                why = rebuild(problem, s, lists, table, scratch, at.position, at)
            else:
                why = visit(problem, s, lists, table, scratch, scratch.order[at.position], at)
            if why != DONE:
                return why
            at.position += 1
            at.work += 1
            if at.work >= end:
                return BUDGET
        at.position = 0
        if at.phase == REBASE:
            at.phase = BEGIN
            return KEEP
        after_pass(s, lists, table, at)
    return DONE
