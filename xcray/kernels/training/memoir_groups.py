"""MEMOIR kernels for groups of samples: all rivals are found before W changes.

The searches of a group do not depend on each other, so threads and other processes can share them.
The updates are applied feature by feature: one walk of a list finds the entries of all classes that
the group changes there, where single updates need a walk each. Entries change in the order of the
samples, as they do without a group.

`step_with_rivals` instead tests the margin of each sample on the W that the samples before it have
changed, and `truncate_classes` is the truncation of the paper.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.training.memoir import (
    BUDGET,
    DONE,
    FULL,
    MIN_CAPACITY,
    FeatureLists,
    MemoirBatch,
    MemoirScratch,
    MemoirSettings,
    add_entry,
    add_row,
    code_rival,
    drop_zeros,
    find_rival,
    grow_list,
    has_capacity,
    read_value,
    write_entry,
)


class GroupLinks(NamedTuple):
    """The entries of a group's rows by feature, as linked lists in the order of the samples.

    first: (D,) first entry of a feature; -1 outside of groups. next: (P,) next entry of the same
    feature, -1 after the last. samples: (P,) of the entries. features: (P,) those of the group,
    each once. seen: (K,) number of the last walk that looked for a class. places: (K,) its place in
    the list of this walk, -1 if none. walks: (1,).
    """

    first: Int32
    next: Int32
    samples: Int32
    features: Int32
    seen: Int64
    places: Int64
    walks: Int64


@numba.njit(nogil=True, cache=True)
def find_rivals(
    batch: MemoirBatch,
    s: MemoirSettings,
    lists: FeatureLists,
    scratch: MemoirScratch,
    lo: int,
    hi: int,
    rivals: Int32,
    state: np.ndarray,
    budget: int,
) -> int:
    """Write rivals[i] of samples i = lo .. hi - 1, see `memoir.find_rival`; W does not change.

    It stops after about `budget` visited entries. Returns the next sample.
    """
    end = scratch.visited[0] + budget
    for i in range(lo, hi):
        if scratch.visited[0] >= end:
            return i
        rivals[i] = find_rival(batch, s, lists, scratch, i, state[0])
    return hi


@numba.njit(nogil=True, cache=True)
def link_entries(X: CSR, lo: int, hi: int, rivals: Int32, links: GroupLinks) -> int:
    """Link the entries of rows lo .. hi - 1 that have a rival; return the number of features.

    Entry p of X has the number p - X.indptr[lo] in `links`.
    """
    begin, n = X.indptr[lo], 0
    for i in range(hi - 1, lo - 1, -1):
        if rivals[i] < 0:
            continue
        for p in range(X.indptr[i], X.indptr[i + 1]):
            f, number = X.indices[p], p - begin
            if links.first[f] < 0:
                links.features[n] = f
                n += 1
            links.next[number] = links.first[f]
            links.samples[number] = i
            links.first[f] = number
    return n


@inner()
def find_places(
    batch: MemoirBatch, lists: FeatureLists, links: GroupLinks, f: Any, rivals: Int32
) -> int:
    """Find the entries of all classes that the group changes on feature f.

    Returns how many of them have no entry.
    """
    links.walks[0] += 1
    walk, missing = links.walks[0], 0
    number = links.first[f]
    while number >= 0:
        i = links.samples[number]
        for c in (batch.classes[i], rivals[i]):
            if links.seen[c] != walk:
                links.seen[c], links.places[c] = walk, -1
                missing += 1
        number = links.next[number]
    begin = lists.heads[f].begin
    for p in range(begin, begin + lists.heads[f].size):
        c = lists.entries[p].label
        if links.seen[c] == walk:
            links.places[c] = p - begin
            missing -= 1
    return missing


@inner()
def make_room(lists: FeatureLists, f: Any, missing: int, at: Any) -> bool:
    """Return whether the list of feature f has capacity for `missing` more entries.

    A list that is too short grows, if the pools suffice.
    """
    while lists.heads[f].size + missing > lists.heads[f].capacity:
        if at.used + max(MIN_CAPACITY, 2 * lists.heads[f].capacity) > len(lists.entries):
            return False
        grow_list(lists, f, at)
    return True


@inner()
def change_entry(
    lists: FeatureLists, links: GroupLinks, f: Any, c: Any, change: float, at: Any
) -> None:
    """Add `change` to the weight of class c on feature f, at its place or as a new entry."""
    if links.places[c] < 0:
        links.places[c] = lists.heads[f].size
        add_entry(lists, f, -1, c, change, at)
    else:
        add_entry(lists, f, lists.heads[f].begin + links.places[c], c, change, at)


@numba.njit(nogil=True, cache=True)
def apply_rivals(
    batch: MemoirBatch,
    lists: FeatureLists,
    links: GroupLinks,
    lo: int,
    n_features: int,
    done: int,
    rivals: Int32,
    step: float,
    state: np.ndarray,
    budget: int,
) -> tuple[int, int]:
    """Add step times the rows of a group to their classes, and subtract it from their rivals.

    lo: first sample of the group. done: number of features whose lists are done; the links of these
    are removed. Stops after about `budget` visited entries, or with full pools. Returns DONE,
    BUDGET or FULL, and the new `done`.
    """
    at, begin, visited = state[0], batch.X.indptr[lo], 0
    while done < n_features:
        if visited > budget:
            return BUDGET, done
        f = links.features[done]
        visited += lists.heads[f].size
        missing = find_places(batch, lists, links, f, rivals)
        if lists.heads[f].size + missing > lists.heads[f].capacity:
            drop_zeros(lists, f, at.threshold)
            missing = find_places(batch, lists, links, f, rivals)
        if not make_room(lists, f, missing, at):
            return FULL, done
        number = links.first[f]
        while number >= 0:
            i = links.samples[number]
            change = step * np.float64(batch.X.data[begin + number]) / at.scale
            change_entry(lists, links, f, batch.classes[i], change, at)
            change_entry(lists, links, f, rivals[i], -change, at)
            number = links.next[number]
        links.first[f] = -1
        done += 1
    return DONE, done


@inner()
def read_lead(
    batch: MemoirBatch, lists: FeatureLists, i: Any, r: Any, at: Any
) -> tuple[float, int]:
    """Return by how much the class of sample i leads class r now, and the visited entries."""
    lead, visited, y = 0.0, 0, batch.classes[i]
    for a in range(batch.X.indptr[i], batch.X.indptr[i + 1]):
        head, x = lists.heads[batch.X.indices[a]], np.float64(batch.X.data[a])
        visited += head.size
        for p in range(head.begin, head.begin + head.size):
            c = lists.entries[p].label
            if c == y:
                lead += x * read_value(lists, p, at.threshold)
            elif c == r:
                lead -= x * read_value(lists, p, at.threshold)
    return at.scale * lead, visited


@numba.njit(nogil=True, cache=True)
def step_with_rivals(
    batch: MemoirBatch,
    s: MemoirSettings,
    lists: FeatureLists,
    hi: int,
    rivals: Int32,
    step: float,
    state: np.ndarray,
    budget: int,
) -> int:
    """Take the steps of samples up to hi - 1, whose rivals are known, one after the other.

    The margin is tested on the present W: `rivals` is written again, see `memoir.code_rival`.
    state.position: the next sample. It stops after about `budget` visited entries, or with full
    pools. Returns DONE, BUDGET or FULL.
    """
    at, visited = state[0], 0
    while at.position < hi:
        if visited > budget:
            return BUDGET
        i = at.position
        r = int(rivals[i]) if rivals[i] >= 0 else -2 - int(rivals[i])
        if r >= 0:
            lead, entries = read_lead(batch, lists, i, r, at)
            visited += entries
            rivals[i] = code_rival(r, lead < s.margin)
            if rivals[i] >= 0:
                if not has_capacity(batch.X, lists, i, at):
                    return FULL
                add_row(batch.X, lists, i, batch.classes[i], r, step, at)
                at.updates += 1
        at.position += 1
    return DONE


@numba.njit(nogil=True, cache=True)
def truncate_classes(
    lists: FeatureLists, is_touched: np.ndarray, by_class: bool, amount: float
) -> None:
    """Move the stored values of some classes towards 0 by `amount`: eq. 13 of the paper.

    is_touched: (K,) bool. by_class: whether there is a list for each class, of its features, in
    place of a list for each feature, of its classes. The lists must not have marks.
    """
    for number, head in enumerate(lists.heads):
        for p in range(head.begin, head.begin + head.size):
            other = lists.entries[p].label
            if is_touched[number if by_class else other]:
                value = float(lists.entries[p].value)
                excess = max(abs(value) - amount, 0.0)
                write_entry(lists, p, other, excess if value > 0.0 else -excess, 0.0)
