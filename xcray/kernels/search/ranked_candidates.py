"""Candidates of a ranker: the best labels of the search and the labels named in the text."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.search.label_groups import GroupArrays, add_group_postings
from xcray.kernels.search.names import LabelNameTable, NameMatches, find_names, match_memory
from xcray.kernels.search.row_weights import find_weights, prefetch_features, sum_weights
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


@inner(allocates=False)
def shared_products(
    a_indices: Int32, a_data: Float32, b_indices: Int32, b_data: Float32
) -> tuple[float, int]:
    """Return the inner product of two sparse rows, and their shared entries.

    Row a is short: each of its columns is searched in row b. Products are added in the order of
    the columns.
    """
    total, shared, low = 0.0, 0, 0
    for p in range(len(a_indices)):
        n = len(b_indices) - low
        while n > 0:
            half = (n + 1) >> 1
            low += half if b_indices[low + half - 1] < a_indices[p] else 0
            n -= half
        if low < len(b_indices) and b_indices[low] == a_indices[p]:
            total += np.float64(a_data[p]) * b_data[low]
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


@inner(allocates=False)
def _prefetch(rows: SearchedTexts, labels: Int32, begin: int, end: int, side: LabelSide) -> None:
    """Prefetch what `_complete` reads of labels: where their rows begin, then the rows."""
    for at in range(begin, end):
        label: Any = np.int64(labels[at])
        prefetch(side.counts, label)
        prefetch(side.texts.indptr, label)
        if at >= begin + rows.labels.shape[1] and label < len(side.b):
            prefetch(side.W.indptr, label)
    for at in range(begin, end):
        label = np.int64(labels[at])
        first = side.texts.indptr[label]
        prefetch(side.texts.indices, first)
        prefetch(side.texts.data, first)
        if at >= begin + rows.labels.shape[1] and label < len(side.b):
            prefetch_features(side.W, label)


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
    places: Int64,
) -> None:
    """Fill the features that do not depend on where the name is, for the candidates of row i."""
    lo, hi = rows.X.indptr[i], rows.X.indptr[i + 1]
    x_indices, x_data = rows.X.indices[lo:hi], rows.X.data[lo:hi]
    x_sq = _norm_sq(x_data)
    best = rows.scores[i, 0] if rows.scores.shape[1] else 0.0
    group_scores = np.empty(0, np.float64)
    _prefetch(rows, labels, begin, end, side)
    for at in range(begin, end):
        label: Any = np.int64(labels[at])
        if np.isnan(features[at, SCORE]) and side.counts[label] > 0:
            if len(group_scores) < len(side.groups.bias):  # once a row, and only if needed
                group_scores = _group_scores(rows.X, i, side.groups)
            find_weights(x_indices, side.W, label, places)
            product = sum_weights(x_data, side.W.data, places)
            features[at, SCORE] = product + _bias(side, label, group_scores)
        features[at, GAP] = features[at, SCORE] - best
        features[at, FREQUENCY] = np.log1p(np.float64(side.counts[label]))
        features[at, COVERED] /= n_words
        first, last = side.texts.indptr[label], side.texts.indptr[label + 1]
        text = side.texts.indices[first:last], side.texts.data[first:last]
        dot, shared = shared_products(*text, x_indices, x_data)
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
    places: Int64,
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
    _complete(rows, i, labels, features, begin, end, max(1, n_words), side, places)
    return labels, features, end


@inner()
def _named(rows: Any, side: Any) -> tuple[SearchedTexts, LabelSide, NameMatches, Int64]:
    """Return plain tuples as named ones, and working memory."""
    x, w, t, n, g = rows[2], side[0], side[3], side[4], side[5]
    texts = SearchedTexts(rows[0], rows[1], CSR(x[0], x[1], x[2], x[3]), rows[3], rows[4], rows[5])
    names = LabelNameTable(Vocabulary(Words(n[0][0][0], n[0][0][1]), n[0][1], n[0][2]), n[1], n[2])
    postings = CSR(g[0][0], g[0][1], g[0][2], g[0][3])
    groups = GroupArrays(postings, g[1], g[2], g[3], g[4], g[5], g[6])
    W, label_texts = CSR(w[0], w[1], w[2], w[3]), CSR(t[0], t[1], t[2], t[3])
    of_labels = LabelSide(W, side[1], side[2], label_texts, names, groups)
    longest: Any = np.int64(0)
    most: Any = np.int64(0)
    for i in range(len(rows[1]) - 1):
        longest = max(longest, rows[1][i + 1] - rows[1][i])
        most = max(most, x[0][i + 1] - x[0][i])
    return texts, of_labels, match_memory(longest), np.empty(most, np.int64)


@numba.njit(nogil=True, cache=True)
def collect_candidates(rows: Any, side: Any) -> tuple[Int64, Int32, Float64]:
    """Return row pointers (n + 1,), labels (m,) int32 and features (m, 11) of all candidates.

    rows, side: `SearchedTexts` and `LabelSide` converted by `as_plain_tuple`, which takes a tenth
    of the time to pass.
    """
    texts, of_labels, matches, places = _named(rows, side)
    n, k = texts.labels.shape
    labels, features = np.empty(2 * n * k + 1, np.int32), np.empty((2 * n * k + 1, len(FEATURES)))
    indptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        labels, features, indptr[i + 1] = _add_row(
            texts, i, of_labels, matches, labels, features, indptr[i], places
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
    texts, of_labels, matches, places = _named(rows, side)
    forest = TreeTable(trees[0], trees[1], trees[2], trees[3])
    n, width = texts.labels.shape
    best, scores, origins = np.empty((n, k), np.int32), np.empty((n, k)), np.empty((n, k, 4))
    labels, features = np.empty(2 * width + 1, np.int32), np.empty((2 * width + 1, len(FEATURES)))
    begin: Any = np.int64(0)
    for i in range(n):
        labels, features, end = _add_row(
            texts, i, of_labels, matches, labels, features, begin, places
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
