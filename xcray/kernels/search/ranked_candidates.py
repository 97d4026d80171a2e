"""Candidates of a ranker: the best labels of the search and the labels named in the text."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.search.label_groups import GroupArrays, add_group_postings
from xcray.kernels.search.names import LabelNameTable, NameMatches, find_names, match_memory
from xcray.kernels.search.trees import TreeTable, sum_trees
from xcray.kernels.vocabulary import Vocabulary, Words

# columns of the features
SCORE, RANK, GAP, FREQUENCY, MATCHES, FIRST_WORD, WORDS, COVERED, SIMILARITY, SHARED, NAMESAKES = (
    range(11)
)
FEATURES: Final = (
    "score",
    "rank",
    "gap to the best score",
    "log(1 + training rows)",
    "matches of a name",
    "first word of the first match",
    "words of the longest match",
    "share of the text in matches",
    "cosine of label text and row",
    "share of the label text in the row",
    "labels of the same name",
)


SLOTS: Final = 4096  # of the hash table of a row; a power of two
BLOCK: Final = 256  # entries of another row that are compared with the table at a time


class LabelSide(NamedTuple):
    """What candidates need of labels; the first K of V have weights.

    W: (K, D); b: (K,) float32; counts: (V,) int64, training rows; texts: (V, D), tf-idf of their
    texts; names: of all labels; groups: of the first K, empty without groups.
    """

    W: CSR
    b: Float32
    counts: Int64
    texts: CSR
    names: LabelNameTable
    groups: GroupArrays


class SearchedTexts(NamedTuple):
    """Texts with their features and the result of their search.

    words: writable uint8, the words of all texts, each followed by SEPARATOR; starts: (n + 1,)
    int64, where each text begins. X: (n, D); labels, scores: (n, k), of the search. allowed: (V,)
    uint8, labels that names can add; empty if all can.
    """

    words: Any
    starts: Int64
    X: CSR
    labels: Int32
    scores: Float64
    allowed: Any


class EntryTable(NamedTuple):
    """Hash table of the columns of a row, for products with other rows.

    last: (SLOTS,) int32, 1 + the last entry whose column modulo SLOTS is the slot, 0 if there is
    none; before: int32, the entry before it, in the same way. found: working memory of a product.
    """

    last: Int32
    before: Int32
    found: Int32


@inner()
def _table_memory(indptr: Int64) -> EntryTable:
    """Return memory for the table of any row of a matrix."""
    longest: Any = np.int64(0)
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return EntryTable(
        np.empty(SLOTS, np.int32), np.empty(longest, np.int32), np.empty(BLOCK, np.int32)
    )


@inner(allocates=False)
def fill_table(table: EntryTable, indices: Int32) -> None:
    """Write the table of a row."""
    table.last[:] = 0
    for p in range(len(indices)):
        slot = indices[p] & (SLOTS - 1)
        table.before[p] = table.last[slot]
        table.last[slot] = p + 1


@inner(allocates=False)
def add_products(
    a_indices: Int32, a_data: Float32, b_indices: Int32, b_data: Float32, table: EntryTable
) -> tuple[float, int]:
    """Return the inner product of two sparse rows, and their shared entries. table: of b.

    Most entries of a row of weights are not in a text. So a pass without branches collects those
    whose slot is not empty, a block at a time. Products are added in the order of the columns.
    """
    total, shared = 0.0, 0
    for begin in range(0, len(a_indices), BLOCK):
        n = 0
        for p in range(begin, min(begin + BLOCK, len(a_indices))):
            table.found[n] = p
            n += table.last[a_indices[p] & (SLOTS - 1)] != 0
        for e in range(n):
            p = table.found[e]
            q = table.last[a_indices[p] & (SLOTS - 1)]
            while q and b_indices[q - 1] != a_indices[p]:
                q = table.before[q - 1]
            if q:
                total += np.float64(a_data[p]) * b_data[q - 1]
                shared += 1
    return total, shared


@inner(allocates=False)
def _norm_sq(data: Float32) -> float:
    """Return the squared length of a row."""
    total = 0.0
    for value in data:
        total += np.float64(value) * value
    return total


@inner(allocates=False)
def _append(features: Float64, labels: Int32, at: int, label: int) -> None:
    """Write a candidate that the search has not scored and the text does not name."""
    labels[at] = label
    features[at, :] = 0.0
    features[at, SCORE] = features[at, RANK] = features[at, FIRST_WORD] = np.nan


@inner(allocates=False)
def _add_match(
    features: Float64,
    labels: Int32,
    begin: int,
    end: int,
    label: int,
    first: int,
    words: int,
    namesakes: int,
) -> int:
    """Count a match of a label in its candidate, which is appended if it is new; return the end."""
    at = begin
    while at < end and labels[at] != label:
        at += 1
    if at == end:
        _append(features, labels, at, label)
        end += 1
    features[at, MATCHES] += 1.0
    features[at, COVERED] += words
    features[at, NAMESAKES] = namesakes
    features[at, WORDS] = max(features[at, WORDS], words)
    if np.isnan(features[at, FIRST_WORD]):
        features[at, FIRST_WORD] = first
    return end


@inner()
def _group_scores(X: CSR, i: int, groups: GroupArrays) -> Float64:
    """Return what each group adds to the scores of its labels for row i: (G,) float64."""
    scores = np.empty(len(groups.bias), np.float64)
    add_group_postings(X, i, groups.postings, scores)
    for g in range(len(scores)):
        scores[g] = groups.share * (scores[g] + np.float64(groups.bias[g]))
    return scores


@inner(allocates=False)
def _bias(side: LabelSide, label: int, group_scores: Float64) -> float:
    """Return the bias of a label for the row of the group scores, as the search adds it up."""
    bias = np.float64(side.b[label])
    if len(group_scores):
        for group in side.groups.members[label]:
            bias += group_scores[group]
    return bias


@inner()
def _complete(
    rows: SearchedTexts,
    i: int,
    labels: Int32,
    features: Float64,
    begin: int,
    end: int,
    n_words: int,
    side: LabelSide,
    table: EntryTable,
) -> None:
    """Fill the features that do not depend on where the name is, for the candidates of row i."""
    lo, hi = rows.X.indptr[i], rows.X.indptr[i + 1]
    x_indices, x_data = rows.X.indices[lo:hi], rows.X.data[lo:hi]
    fill_table(table, x_indices)
    x_sq = _norm_sq(x_data)
    best = rows.scores[i, 0] if rows.scores.shape[1] else 0.0
    group_scores = np.empty(0, np.float64)
    for at in range(begin, end):
        label = labels[at]
        if np.isnan(features[at, SCORE]) and side.counts[label] > 0:
            first, last = side.W.indptr[label], side.W.indptr[label + 1]
            W_row = side.W.indices[first:last], side.W.data[first:last]
            if len(group_scores) < len(side.groups.bias):  # once a row, and only if needed
                group_scores = _group_scores(rows.X, i, side.groups)
            product = add_products(*W_row, x_indices, x_data, table)[0]
            features[at, SCORE] = product + _bias(side, label, group_scores)
        features[at, GAP] = features[at, SCORE] - best
        features[at, FREQUENCY] = np.log1p(np.float64(side.counts[label]))
        features[at, COVERED] /= n_words
        first, last = side.texts.indptr[label], side.texts.indptr[label + 1]
        text = side.texts.indices[first:last], side.texts.data[first:last]
        dot, shared = add_products(*text, x_indices, x_data, table)
        if shared:
            features[at, SIMILARITY] = dot / np.sqrt(_norm_sq(text[1]) * x_sq)
            features[at, SHARED] = shared / (last - first)


@inner()
def _add_row(
    rows: SearchedTexts,
    i: int,
    side: LabelSide,
    matches: NameMatches,
    labels: Int32,
    features: Float64,
    begin: int,
    table: EntryTable,
) -> tuple[Int32, Float64, int]:
    """Append the candidates of row i from `begin` on; return the arrays and the end.

    The arrays are new ones if they have to grow.

    First the labels of the search in its order, then others whose name is in the text, with their
    exact scores. Scores of labels without a training row mean nothing and are NaN.
    """
    names, k = side.names, rows.labels.shape[1]
    n_matches, n_words = find_names(rows.words, rows.starts[i], rows.starts[i + 1], names, matches)
    needed = begin + k
    for m in range(n_matches):
        name = matches.names[m]
        needed += names.starts[name + 1] - names.starts[name]
    if needed > len(labels):
        old_labels, old_features = labels, features
        labels = np.empty(2 * needed, np.int32)
        features = np.empty((2 * needed, features.shape[1]))
        labels[:begin], features[:begin] = old_labels[:begin], old_features[:begin]
    end: Any = begin
    for place in range(k):
        _append(features, labels, end, rows.labels[i, place])
        if side.counts[labels[end]] > 0:
            features[end, SCORE], features[end, RANK] = rows.scores[i, place], place + 1
        end += 1
    for m in range(n_matches):
        name = matches.names[m]
        first, last = names.starts[name], names.starts[name + 1]
        for p in range(first, last):
            label = names.labels[p]
            if len(rows.allowed) and not rows.allowed[label]:
                continue
            where = matches.first[m], matches.length[m]
            end = _add_match(features, labels, begin, end, label, *where, last - first)
    _complete(rows, i, labels, features, begin, end, max(1, n_words), side, table)
    return labels, features, end


@inner()
def _named(rows: Any, side: Any) -> tuple[SearchedTexts, LabelSide, NameMatches, EntryTable]:
    """Return plain tuples as named ones, and working memory."""
    x, w, t, n, g = rows[2], side[0], side[3], side[4], side[5]
    texts = SearchedTexts(rows[0], rows[1], CSR(x[0], x[1], x[2], x[3]), rows[3], rows[4], rows[5])
    names = LabelNameTable(Vocabulary(Words(n[0][0][0], n[0][0][1]), n[0][1], n[0][2]), n[1], n[2])
    postings = CSR(g[0][0], g[0][1], g[0][2], g[0][3])
    groups = GroupArrays(postings, g[1], g[2], g[3], g[4], g[5], g[6])
    of_labels = LabelSide(
        CSR(w[0], w[1], w[2], w[3]), side[1], side[2], CSR(t[0], t[1], t[2], t[3]), names, groups
    )
    longest = 0
    for i in range(len(rows[1]) - 1):
        longest = max(longest, rows[1][i + 1] - rows[1][i])
    return texts, of_labels, match_memory(longest), _table_memory(x[0])


@numba.njit(nogil=True, cache=True)
def collect_candidates(rows: Any, side: Any) -> tuple[Int64, Int32, Float64]:
    """Return row pointers (n + 1,), labels (m,) int32 and features (m, 11) of all candidates.

    rows, side: `SearchedTexts` and `LabelSide` converted by `as_plain_tuple`, which takes a tenth
    of the time to pass.
    """
    texts, of_labels, matches, table = _named(rows, side)
    n, k = texts.labels.shape
    labels, features = np.empty(2 * n * k + 1, np.int32), np.empty((2 * n * k + 1, len(FEATURES)))
    indptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        labels, features, indptr[i + 1] = _add_row(
            texts, i, of_labels, matches, labels, features, indptr[i], table
        )
    return indptr, labels[: indptr[n]], features[: indptr[n]]


@numba.njit(nogil=True, cache=True)
def rank_rows(
    rows: Any, side: Any, trees: Any, baseline: float, k: int
) -> tuple[Int32, Float64, Float64]:
    """Return labels (n, k), scores (n, k) and origins (n, k, 4) of the best candidates.

    Best first, equal scores in the order of the candidates. Each row has at least k candidates.
    origins: rank and score in the search, first word and words of a match; NaN if missing. rows,
    side, trees: as for `collect_candidates`, and `TreeTable`.
    """
    texts, of_labels, matches, table = _named(rows, side)
    forest = TreeTable(trees[0], trees[1], trees[2], trees[3])
    n, width = texts.labels.shape
    best, scores, origins = np.empty((n, k), np.int32), np.empty((n, k)), np.empty((n, k, 4))
    labels, features = np.empty(2 * width + 1, np.int32), np.empty((2 * width + 1, len(FEATURES)))
    begin: Any = np.int64(0)
    for i in range(n):
        labels, features, end = _add_row(
            texts, i, of_labels, matches, labels, features, begin, table
        )
        raw = sum_trees(features[:end], forest, baseline)
        for place in range(k):
            at = 0
            for candidate in range(1, end):
                if raw[candidate] > raw[at]:
                    at = candidate
            best[i, place], scores[i, place] = labels[at], raw[at]
            origins[i, place, 0], origins[i, place, 1] = features[at, RANK], features[at, SCORE]
            origins[i, place, 2] = features[at, FIRST_WORD]
            origins[i, place, 3] = features[at, WORDS] if features[at, WORDS] else np.nan
            raw[at] = -np.inf
    return best, scores, origins
