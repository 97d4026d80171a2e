"""MEMOIR kernels that search rivals in a small-world graph of the classes.

W is stored by class: a growable list of (feature, value) pairs for each, with the same functions as
the lists by feature of `memoir`; there the "label" of an entry is its feature. A query is a dense
vector, so that a score costs the entries of one class.

Each class of the graph has directed edges to the classes with the largest inner products at the
time it was inserted. Edges are searched in both directions. After a step the two changed classes
are deleted with their own edges and inserted again; edges of other classes to them stay. So the
graph is never built again, and scores are always those of the present W.

Source: Malkov, Ponomarenko, Logvinov, Krylov, "Approximate nearest neighbor algorithm based on
navigable small world graphs", Information Systems 45, 2014, with an inner product as similarity.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.training.memoir import (
    BUDGET,
    DONE,
    FULL,
    INCREMENT,
    MULTIPLIER,
    TOP_BITS,
    FeatureLists,
    MemoirBatch,
    MemoirScratch,
    MemoirSettings,
    add_entry,
    code_rival,
    draw_class,
    drop_zeros,
    is_own,
    read_score,
    read_value,
)
from xcray.kernels.training.memoir_groups import make_room

NEIGHBOURS = 10  # edges of a class
BEAM = 30  # best classes of a search, whose edges are followed
ENTRIES = 4  # random classes that a search starts from


class SmallWorld(NamedTuple):
    """A graph of K classes: edge e = c * NEIGHBOURS + j leads from class c to targets[e], or -1.

    first: (K,) first edge that leads to a class, -1 if none. next, previous: (K * NEIGHBOURS,)
    other edges to the same class, -1 at the ends. members: (K,) classes of the graph in the order
    of their first insertion, then -1. is_member: (K,). size: (1,) number of members.
    """

    targets: Int32
    first: Int32
    next: Int32
    previous: Int32
    members: Int32
    is_member: np.ndarray
    size: Int64


class GraphScratch(NamedTuple):
    """Scratch memory of a search, for one thread.

    classes: of the classes that share a feature with the query. query: (D,), zeros between two
    searches. seen: (K,) number of the last search that scored a class. labels, values, is_open:
    (BEAM,) the best classes, best first, and whether their edges are still to be followed.
    """

    classes: MemoirScratch
    query: Float64
    seen: Int64
    labels: Int32
    values: Float64
    is_open: np.ndarray


class GraphSearch(NamedTuple):
    """How rivals are found.

    searches: whether they are searched sample by sample; False: they are known. tests: whether the
    margin of a known rival is tested on the present W. every: samples between two whose exact
    rival is searched, too.
    """

    searches: bool
    tests: bool
    every: int


@inner()
def load_row(scratch: GraphScratch, X: CSR, i: Any) -> None:
    """Write row i of X into the query."""
    for p in range(X.indptr[i], X.indptr[i + 1]):
        scratch.query[X.indices[p]] = X.data[p]


@inner()
def clear_row(scratch: GraphScratch, X: CSR, i: Any) -> None:
    """Set the features of row i of X to 0 in the query."""
    for p in range(X.indptr[i], X.indptr[i + 1]):
        scratch.query[X.indices[p]] = 0.0


@inner()
def score_class(
    lists: FeatureLists, scratch: GraphScratch, c: Any, stamp: int, threshold: float
) -> float:
    """Return the stored score of class c for the query, and count its entries as visited."""
    head, z, shares = lists.heads[c], 0.0, False
    for p in range(head.begin, head.begin + head.size):
        x = scratch.query[lists.entries[p].label]
        if x != 0.0:
            value = read_value(lists, p, threshold)
            z += x * value
            shares |= value != 0.0
    scratch.seen[c] = stamp
    if shares:
        scratch.classes.scores[c].value, scratch.classes.scores[c].stamp = z, stamp
    scratch.classes.visited[0] += head.size + 1
    return z


@inner()
def offer(scratch: GraphScratch, n: int, c: Any, z: float) -> int:
    """Insert class c with score z into the n best ones if it is one of them; return their number.

    Of equal scores the lower class is better, so that the order of the offers does not matter.
    """
    k = n
    while k > 0:
        best = scratch.values[k - 1]
        if best > z or (best == z and scratch.labels[k - 1] < c):
            break
        k -= 1
    if k == BEAM:
        return n
    n = min(n + 1, BEAM)
    for j in range(n - 1, k, -1):
        scratch.labels[j], scratch.values[j] = scratch.labels[j - 1], scratch.values[j - 1]
        scratch.is_open[j] = scratch.is_open[j - 1]
    scratch.labels[k], scratch.values[k], scratch.is_open[k] = c, z, True
    return n


@inner()
def visit(
    lists: FeatureLists, scratch: GraphScratch, n: int, c: Any, stamp: int, threshold: float
) -> int:
    """Score class c and offer it, if this search has not done so; return the number of the best."""
    if scratch.seen[c] == stamp:
        return n
    return offer(scratch, n, c, score_class(lists, scratch, c, stamp, threshold))


@inner()
def search_graph(
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    number: Any,
    is_exact: bool,
    stamp: int,
    threshold: float,
) -> int:
    """Find classes with large scores for the query; return their number in `scratch.labels`.

    number: random uint64 that chooses the first classes. is_exact: score all classes.
    """
    n, size = 0, graph.size[0]
    if is_exact:
        for k in range(size):
            n = visit(lists, scratch, n, graph.members[k], stamp, threshold)
        return n
    for _ in range(min(ENTRIES, size)):
        number = number * MULTIPLIER + INCREMENT
        c = graph.members[np.int64(number >> TOP_BITS) % size]
        n = visit(lists, scratch, n, c, stamp, threshold)
    k = 0
    while k < n:
        if not scratch.is_open[k]:
            k += 1
            continue
        scratch.is_open[k], c = False, scratch.labels[k]
        for e in range(c * NEIGHBOURS, (c + 1) * NEIGHBOURS):
            if graph.targets[e] >= 0:
                n = visit(lists, scratch, n, graph.targets[e], stamp, threshold)
        e = graph.first[c]
        while e >= 0:
            n = visit(lists, scratch, n, e // NEIGHBOURS, stamp, threshold)
            e = graph.next[e]
        k = 0
    return n


@inner()
def find_in_graph(
    batch: MemoirBatch,
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    i: Any,
    is_exact: bool,
    at: Any,
) -> tuple[int, float]:
    """Return the rival of sample i, -1 if there is none, and by how much its class leads it.

    As in `memoir.find_rival`, a random class without a shared feature is the rival if no score is
    above 0. If the search has not scored it, its true score counts.
    """
    stamp = scratch.classes.visited[0] + 1
    load_row(scratch, batch.X, i)
    n = search_graph(lists, graph, scratch, batch.numbers[i], is_exact, stamp, at.threshold)
    rival, best = -1, -np.inf
    for k in range(n):
        c = int(scratch.labels[k])
        if scratch.classes.scores[c].stamp == stamp and not is_own(batch.Y, i, c):
            rival, best = c, float(scratch.values[k])
            break
    if best < 0.0:
        c = draw_class(batch, scratch.classes, i, stamp)
        if c >= 0:
            z = 0.0
            if scratch.seen[c] != stamp:
                z = score_class(lists, scratch, c, stamp, at.threshold)
            if z > best:
                rival, best = c, z
    y = batch.classes[i]
    if scratch.seen[y] != stamp:
        score_class(lists, scratch, y, stamp, at.threshold)
    own = read_score(scratch.classes, y, stamp)
    clear_row(scratch, batch.X, i)
    scratch.classes.visited[0] += 1  # the number of a search must not be that of another one
    return rival, at.scale * (own - best) if rival >= 0 else np.inf


@inner()
def find_and_check(
    batch: MemoirBatch,
    s: MemoirSettings,
    how: GraphSearch,
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    i: Any,
    leads: Float64,
    at: Any,
) -> int:
    """Return the rival of sample i, see `memoir.code_rival`.

    leads: (B, 2) receives the lead over it, and over the exact rival for each `every`-th sample.
    """
    rival, lead = find_in_graph(batch, lists, graph, scratch, i, False, at)
    if i % how.every == 0 and rival >= 0:
        leads[i, 0] = lead
        leads[i, 1] = find_in_graph(batch, lists, graph, scratch, i, True, at)[1]
    return code_rival(rival, lead < s.margin)


@inner()
def delete_edges(graph: SmallWorld, c: Any) -> None:
    """Remove the edges of class c."""
    for e in range(c * NEIGHBOURS, (c + 1) * NEIGHBOURS):
        target = graph.targets[e]
        if target < 0:
            continue
        if graph.previous[e] < 0:
            graph.first[target] = graph.next[e]
        else:
            graph.next[graph.previous[e]] = graph.next[e]
        if graph.next[e] >= 0:
            graph.previous[graph.next[e]] = graph.previous[e]
        graph.targets[e] = -1


@inner()
def add_edge(graph: SmallWorld, e: Any, target: Any) -> None:
    """Let edge e lead to a class."""
    graph.targets[e], graph.previous[e] = target, -1
    graph.next[e] = graph.first[target]
    if graph.first[target] >= 0:
        graph.previous[graph.first[target]] = e
    graph.first[target] = e


@inner()
def insert_class(
    lists: FeatureLists, graph: SmallWorld, scratch: GraphScratch, c: Any, number: Any, at: Any
) -> None:
    """Insert class c, in place of its old version if the graph has one."""
    head, stamp = lists.heads[c], scratch.classes.visited[0] + 1
    for p in range(head.begin, head.begin + head.size):
        scratch.query[lists.entries[p].label] = read_value(lists, p, at.threshold)
    n = search_graph(lists, graph, scratch, number, False, stamp, at.threshold)
    for p in range(head.begin, head.begin + head.size):
        scratch.query[lists.entries[p].label] = 0.0
    scratch.classes.visited[0] += 1
    delete_edges(graph, c)
    e = c * NEIGHBOURS
    for k in range(n):
        if scratch.labels[k] != c and e < (c + 1) * NEIGHBOURS:
            add_edge(graph, e, scratch.labels[k])
            e += 1
    if not graph.is_member[c]:
        graph.members[graph.size[0]], graph.is_member[c] = c, True
        graph.size[0] += 1


@inner()
def add_to_class(
    batch: MemoirBatch,
    lists: FeatureLists,
    scratch: GraphScratch,
    i: Any,
    c: Any,
    step: float,
    at: Any,
) -> None:
    """Add step times row i to the weights of class c, which must have room for it."""
    load_row(scratch, batch.X, i)
    head = lists.heads[c]
    for p in range(head.begin, head.begin + head.size):
        f = lists.entries[p].label
        x = scratch.query[f]
        if x != 0.0:
            add_entry(lists, c, p, f, step * x / at.scale, at)
            scratch.query[f] = 0.0
    for a in range(batch.X.indptr[i], batch.X.indptr[i + 1]):
        f = batch.X.indices[a]
        x = scratch.query[f]
        if x != 0.0:
            add_entry(lists, c, -1, f, step * x / at.scale, at)
            scratch.query[f] = 0.0


@inner()
def has_room(batch: MemoirBatch, lists: FeatureLists, i: Any, c: Any, at: Any) -> bool:
    """Return whether class c has capacity for row i; a list that is too short drops its zeros."""
    width = batch.X.indptr[i + 1] - batch.X.indptr[i]
    if lists.heads[c].size + width > lists.heads[c].capacity:
        drop_zeros(lists, c, at.threshold)
    return make_room(lists, c, width, at)


@numba.njit(nogil=True, cache=True)
def search_in_graph(
    batch: MemoirBatch,
    s: MemoirSettings,
    how: GraphSearch,
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    lo: int,
    hi: int,
    rivals: Int32,
    leads: Float64,
    state: np.ndarray,
    budget: int,
) -> int:
    """Write the rivals of samples lo .. hi - 1, see `find_and_check`; W does not change.

    It stops after about `budget` visited entries. Returns the next sample.
    """
    end = scratch.classes.visited[0] + budget
    for i in range(lo, hi):
        if scratch.classes.visited[0] >= end:
            return i
        rivals[i] = find_and_check(batch, s, how, lists, graph, scratch, i, leads, state[0])
    return hi


@numba.njit(nogil=True, cache=True)
def advance_in_graph(
    batch: MemoirBatch,
    s: MemoirSettings,
    how: GraphSearch,
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    hi: int,
    rivals: Int32,
    leads: Float64,
    step: float,
    state: np.ndarray,
    budget: int,
) -> int:
    """Take the steps of samples up to hi - 1, one after the other; state.position: the next one.

    If `how.searches`, each rival is searched before its step, and the changed classes are inserted
    again after it. It stops after about `budget` visited entries, or with full pools. Returns DONE,
    BUDGET or FULL.
    """
    at = state[0]
    end = scratch.classes.visited[0] + budget
    while at.position < hi:
        if scratch.classes.visited[0] >= end:
            return BUDGET
        i = at.position
        y = batch.classes[i]
        if how.searches:
            rivals[i] = find_and_check(batch, s, how, lists, graph, scratch, i, leads, at)
        elif how.tests and rivals[i] != -1:
            r, stamp = max(int(rivals[i]), -2 - int(rivals[i])), scratch.classes.visited[0] + 1
            load_row(scratch, batch.X, i)
            lead = score_class(lists, scratch, y, stamp, at.threshold)
            lead -= score_class(lists, scratch, r, stamp, at.threshold)
            clear_row(scratch, batch.X, i)
            rivals[i] = code_rival(r, at.scale * lead < s.margin)
        r = rivals[i]
        if r >= 0:
            if not (has_room(batch, lists, i, y, at) and has_room(batch, lists, i, r, at)):
                return FULL
            add_to_class(batch, lists, scratch, i, y, step, at)
            add_to_class(batch, lists, scratch, i, r, -step, at)
            if how.searches:
                insert_class(lists, graph, scratch, y, batch.numbers[i], at)
                insert_class(lists, graph, scratch, r, batch.numbers[i], at)
            at.updates += 1
        at.position += 1
    return DONE


@numba.njit(nogil=True, cache=True)
def insert_classes(
    lists: FeatureLists,
    graph: SmallWorld,
    scratch: GraphScratch,
    classes: Int32,
    numbers: np.ndarray,
    state: np.ndarray,
) -> None:
    """Insert classes that have changed; numbers: a random uint64 for each."""
    for k, c in enumerate(classes):
        insert_class(lists, graph, scratch, c, numbers[k], state[0])


@numba.njit(nogil=True, cache=True)
def set_edges(graph: SmallWorld, targets: Int32) -> None:
    """Add the edges of a saved graph, which lead to `targets`, to one without edges."""
    for e, target in enumerate(targets):
        if target >= 0:
            add_edge(graph, e, target)
