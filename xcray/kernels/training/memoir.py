"""MEMOIR kernel: stochastic subgradient steps of the Crammer-Singer multi-class SVM.

A sample (x, y) has the rival r = argmax of w_c.x over the classes c that its row does not have. If
w_y.x - w_r.x is less than the margin, eta x is added to w_y and subtracted from w_r
(`xcray.solvers.memoir.solver` states the problem).

W is stored by feature: a growable list of (class, value) pairs. The search of r walks the lists of
the row's features and scores every class with a weight there, so that it is exact. An update walks
the same lists. A class with no such weight has score 0. If no other score is above 0, r is a random
one of these classes.

`memoir_groups` has the kernels for groups of samples whose rivals are found before W changes.

W is `scale` times the stored values, so that the shrinkage of the l2 norm costs O(1). The
thresholds of the l1 norm are summed in `threshold`; each entry stores the sum at its last change,
and is shrunk by the difference when it is read.

Most of the time is spent waiting for memory. So a pair has 8 bytes, and what is known about a list
is next to each other.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, Pattern
from xcray.kernels.inner import inner

# results of `advance`
DONE, BUDGET, FULL = 0, 1, 2
MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
TOP_BITS = np.uint64(33)
DENSE_SHARE = 2  # entries per class from which all classes are visited once more
MAX_TRIES = 64  # random classes tried before the classes are visited in order
MIN_CAPACITY = 4  # entries of a list that is not empty
LARGEST = 3e38  # largest size of a stored value

STATE = np.dtype(
    [
        ("scale", np.float64),  # W is scale times the stored values
        ("norm_sq", np.float64),  # |W|^2
        ("threshold", np.float64),  # sum of the thresholds of the l1 norm
        ("position", np.int64),  # samples of the round that are done
        ("used", np.int64),  # allocated entries of the pools
        ("updates", np.int64),  # samples that changed W
    ],
    align=True,
)


HEAD = np.dtype([("begin", np.int64), ("size", np.int32), ("capacity", np.int32)], align=True)
SCORE = np.dtype([("value", np.float64), ("stamp", np.int64)], align=True)
ENTRY = np.dtype([("label", np.int32), ("value", np.float32)], align=True)


class MemoirProblem(NamedTuple):
    """Rows X (N, D), classes of each row Y (N, K), and the samples: pairs of a row and a class."""

    X: CSR
    Y: Pattern
    rows: Int32  # (M,)
    classes: Int32  # (M,)


class MemoirBatch(NamedTuple):
    """Samples of a round: rows X (B, D), the classes of each row Y (B, K), classes (B,) of these.

    numbers: random uint64 (B,), which decide ties among classes without weights.
    """

    X: CSR
    Y: Pattern
    classes: Int32
    numbers: np.ndarray


class MemoirSettings(NamedTuple):
    """margin: required lead of a sample's class. random: whether rivals are random classes."""

    margin: float
    random: bool


class FeatureLists(NamedTuple):
    """W by feature: entries begin .. begin + size - 1 of the pool, of the feature's head.

    heads: (D,) of HEAD. entries: (capacity,) of ENTRY. marks: float64, `threshold` at the last
    change of an entry; (0,) without l1 norm.
    """

    heads: np.ndarray
    entries: np.ndarray
    marks: Float64


class MemoirScratch(NamedTuple):
    """Scratch memory of a search, for one thread: scores (K,) and found (K,).

    visited: (1,) entries visited so far; one more is the number of the next search.
    """

    scores: np.ndarray  # of SCORE: the score, and the number of the search that scored the class
    found: Int32  # (K,) the classes that the search scored
    visited: Int64


@inner()
def read_value(lists: FeatureLists, p: int, threshold: float) -> float:
    """Return the present stored value of entry p, after the thresholds since its last change."""
    value = float(lists.entries[p].value)
    if len(lists.marks) == 0:
        return value
    excess = abs(value) - (threshold - float(lists.marks[p]))
    if excess <= 0.0:
        return 0.0
    return excess if value > 0.0 else -excess


@inner()
def write_entry(lists: FeatureLists, p: int, c: Any, value: float, threshold: float) -> None:
    """Write entry p, with a value limited to LARGEST."""
    lists.entries[p].label = c
    lists.entries[p].value = min(max(value, -LARGEST), LARGEST)
    if len(lists.marks):
        lists.marks[p] = threshold


@inner()
def score_classes(
    batch: MemoirBatch, lists: FeatureLists, scratch: MemoirScratch, i: Any, threshold: float
) -> int:
    """Score all classes with a weight on a feature of row i, without the factor `scale`.

    Returns the number of classes in `scratch.found`.
    """
    X, scores, found, K = batch.X, scratch.scores, scratch.found, batch.Y.n_cols
    row = X.indices[X.indptr[i] : X.indptr[i + 1]]
    work, n = 0, 0
    stamp = scratch.visited[0] + 1  # larger than those of all searches before
    for f in row:
        work += lists.heads[f].size
    is_dense = work >= DENSE_SHARE * K  # nearly all classes are scored: they are found at the end
    if is_dense:
        for c in range(K):
            scores[c].value = 0.0
    for a in range(len(row)):
        x = np.float64(X.data[X.indptr[i] + a])
        if is_dense:
            add_list(lists, row[a], x, scores, stamp, threshold)
        else:
            n = find_in_list(lists, row[a], x, scores, stamp, threshold, found, n)
    if is_dense:
        for c in range(K):
            found[min(n, K - 1)] = c
            n += scores[c].stamp == stamp
    scratch.visited[0] += work + 1
    return n


@inner()
def add_list(
    lists: FeatureLists, f: Any, x: float, scores: np.ndarray, stamp: int, threshold: float
) -> None:
    """Add x times the weights of feature f to the scores, and stamp them."""
    begin = lists.heads[f].begin
    for p in range(begin, begin + lists.heads[f].size):
        value = read_value(lists, p, threshold)
        if value != 0.0:
            c = lists.entries[p].label
            scores[c].value += x * value
            scores[c].stamp = stamp


@inner()
def find_in_list(
    lists: FeatureLists,
    f: Any,
    x: float,
    scores: np.ndarray,
    stamp: int,
    threshold: float,
    found: Int32,
    n: int,
) -> int:
    """Do the same, and append the classes without this stamp to `found`; return their number.

    n: number of classes in `found` before.
    """
    begin = lists.heads[f].begin
    for p in range(begin, begin + lists.heads[f].size):
        value = read_value(lists, p, threshold)
        if value == 0.0:
            continue
        c = lists.entries[p].label
        if scores[c].stamp == stamp:
            scores[c].value += x * value
        else:
            scores[c].stamp, scores[c].value = stamp, x * value
            found[n] = c
            n += 1
    return n


@inner()
def read_score(scratch: MemoirScratch, c: Any, stamp: int) -> float:
    """Return the score of class c in the search number `stamp`; 0 if it was not scored."""
    return float(scratch.scores[c].value) if scratch.scores[c].stamp == stamp else 0.0


@inner()
def is_own(Y: Pattern, i: Any, c: Any) -> bool:
    """Return whether row i has class c."""
    for p in range(Y.indptr[i], Y.indptr[i + 1]):
        if Y.indices[p] == c:
            break
    else:
        return False
    return True


@inner()
def draw_class(batch: MemoirBatch, scratch: MemoirScratch, i: Any, stamp: int) -> int:
    """Return a random class that row i does not have and that was not scored; -1 if none.

    stamp: number of the search; -1 to draw from scored classes, too.
    """
    K, number, c = batch.Y.n_cols, batch.numbers[i], 0
    for _ in range(MAX_TRIES):
        number = number * MULTIPLIER + INCREMENT
        c = int(np.int64(number >> TOP_BITS) % K)
        if scratch.scores[c].stamp != stamp and not is_own(batch.Y, i, c):
            return c
    for shift in range(K):
        other = (c + shift) % K
        if scratch.scores[other].stamp != stamp and not is_own(batch.Y, i, other):
            return other
    return -1


@inner()
def code_rival(rival: int, is_violated: Any) -> int:
    """Return the rival if its sample takes the step; -2 - rival if its class leads by the margin.

    -1 stands for no rival.
    """
    return rival if is_violated or rival < 0 else -2 - rival


@inner()
def find_rival(
    batch: MemoirBatch,
    s: MemoirSettings,
    lists: FeatureLists,
    scratch: MemoirScratch,
    i: Any,
    at: Any,
) -> int:
    """Return the rival of sample i, see `code_rival`."""
    stamp = scratch.visited[0] + 1
    n = score_classes(batch, lists, scratch, i, at.threshold)
    rival, best = -1, -np.inf
    if s.random:
        rival = draw_class(batch, scratch, i, -1)
        if rival >= 0:
            best = read_score(scratch, rival, stamp)
    else:
        for a in range(n):
            c = int(scratch.found[a])
            z = float(scratch.scores[c].value)
            if (z > best or (z == best and c < rival)) and not is_own(batch.Y, i, c):
                rival, best = c, z
        if best < 0.0:
            unscored = draw_class(batch, scratch, i, stamp)
            if unscored >= 0:
                rival, best = unscored, 0.0
    own = read_score(scratch, batch.classes[i], stamp)
    return code_rival(rival, at.scale * (own - best) < s.margin)


@inner()
def drop_zeros(lists: FeatureLists, f: Any, threshold: float) -> None:
    """Remove the entries of feature f that are 0 now."""
    head = lists.heads[f]
    kept = head.begin
    for p in range(head.begin, head.begin + head.size):
        value = read_value(lists, p, threshold)
        if value != 0.0:
            write_entry(lists, kept, lists.entries[p].label, value, threshold)
            kept += 1
    head.size = kept - head.begin


@inner()
def grow_list(lists: FeatureLists, f: Any, at: Any) -> None:
    """Move the list of feature f to entries with twice the capacity; the pools must have them."""
    head, new = lists.heads[f], at.used
    for p in range(head.size):
        lists.entries[new + p] = lists.entries[head.begin + p]
        if len(lists.marks):
            lists.marks[new + p] = lists.marks[head.begin + p]
    head.begin, head.capacity = new, max(MIN_CAPACITY, 2 * head.capacity)
    at.used += head.capacity


@inner()
def has_capacity(X: CSR, lists: FeatureLists, i: Any, at: Any) -> bool:
    """Return whether row i can be added to two classes.

    Lists that are too short for that drop their zeros, and grow if the pools suffice.
    """
    for a in range(X.indptr[i], X.indptr[i + 1]):
        f = X.indices[a]
        head = lists.heads[f]
        if head.size + 2 <= head.capacity:
            continue
        drop_zeros(lists, f, at.threshold)
        if head.size + 2 <= head.capacity:
            continue
        if at.used + max(MIN_CAPACITY, 2 * head.capacity) > len(lists.entries):
            return False
        grow_list(lists, f, at)
    return True


@inner()
def add_entry(lists: FeatureLists, f: Any, p: int, c: Any, change: float, at: Any) -> None:
    """Add `change` to the weight of class c on feature f, at entry p; -1 appends an entry."""
    value = 0.0
    if p < 0:
        head = lists.heads[f]
        p = int(head.begin + head.size)
        head.size += 1
    else:
        value = read_value(lists, p, at.threshold)
    write_entry(lists, p, c, value + change, at.threshold)
    new = float(lists.entries[p].value)
    at.norm_sq += at.scale * at.scale * (new - value) * (new + value)


@inner()
def add_row(X: CSR, lists: FeatureLists, i: Any, y: Any, r: int, step: float, at: Any) -> None:
    """Add step times row i to the weights of class y, and subtract it from those of class r."""
    for a in range(X.indptr[i], X.indptr[i + 1]):
        f, x = X.indices[a], np.float64(X.data[a])
        lo, of_y, of_r = lists.heads[f].begin, -1, -1
        hi = lo + lists.heads[f].size
        for p in range(lo, hi):
            c = lists.entries[p].label
            if c == y:
                of_y = p
            elif c == r:
                of_r = p
        change = step * x / at.scale
        add_entry(lists, f, of_y, y, change, at)
        add_entry(lists, f, of_r, r, -change, at)


@numba.njit(nogil=True, cache=True)
def advance(
    batch: MemoirBatch,
    s: MemoirSettings,
    lists: FeatureLists,
    scratch: MemoirScratch,
    rivals: Int32,
    step: float,
    state: np.ndarray,
    budget: int,
) -> int:
    """Continue a round whose samples change W one after the other, and write their rivals.

    It stops after the round, after about `budget` visited entries, or with full pools. rivals:
    (B,), see `code_rival`. step: eta. state: (1,) of STATE; position is 0 before the first call of
    a round. Returns DONE, BUDGET or FULL.
    """
    at = state[0]
    end = scratch.visited[0] + budget
    while at.position < len(batch.classes):
        if scratch.visited[0] >= end:
            return BUDGET
        i = at.position
        rival = find_rival(batch, s, lists, scratch, i, at)
        if rival >= 0:
            if not has_capacity(batch.X, lists, i, at):
                return FULL
            add_row(batch.X, lists, i, batch.classes[i], rival, step, at)
            at.updates += 1
        rivals[i] = rival
        at.position += 1
    return DONE


@numba.njit(nogil=True, cache=True)
def count_weights(lists: FeatureLists, at: Any, counts: Int64) -> None:
    """Count the weights of each class that are not 0: `counts` (K,)."""
    for head in lists.heads:
        for p in range(head.begin, head.begin + head.size):
            if at[0].scale * read_value(lists, p, at[0].threshold) != 0.0:
                counts[lists.entries[p].label] += 1


@numba.njit(nogil=True, cache=True)
def export_weights(
    lists: FeatureLists, at: Any, ends: Int64, features: Int32, values: Float64
) -> None:
    """Write the weights by class; ends: (K,) next output positions, advanced."""
    for f, head in enumerate(lists.heads):
        for p in range(head.begin, head.begin + head.size):
            w = at[0].scale * read_value(lists, p, at[0].threshold)
            if w != 0.0:
                c = lists.entries[p].label
                features[ends[c]], values[ends[c]] = f, w
                ends[c] += 1
