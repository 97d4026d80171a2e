"""Candidates of a ranker: the best labels of the search and the labels named in the text."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner

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


class NameMatches(NamedTuple):
    """Names found in texts, see `find_names`.

    indptr: (n + 1,) int64; names, first, length: int32, prefix, first word and words of each.
    rows: (n + 1,) int64, the first word of each text.
    """

    indptr: Int64
    names: Int32
    first: Int32
    length: Int32
    rows: Int64


class LabelSide(NamedTuple):
    """What candidates need of labels; the first K of V have weights.

    W: (K, D); b: (K,) float32; counts: (V,) int64, training rows; texts: (V, D), tf-idf of their
    texts; name_starts, name_labels: see `LabelNameTable`.
    """

    W: CSR
    b: Float32
    counts: Int64
    texts: CSR
    name_starts: Int64
    name_labels: Int32


@inner(allocates=False)
def _dot(
    a_indices: Int32, a_data: Float32, b_indices: Int32, b_data: Float32
) -> tuple[float, int, float]:
    """Return the inner product of two sparse vectors, their shared entries, and the norm^2 of a."""
    total, shared, norm_sq = 0.0, 0, 0.0
    for p in range(len(a_indices)):
        norm_sq += np.float64(a_data[p]) * a_data[p]
        q = np.searchsorted(b_indices, a_indices[p])
        if q < len(b_indices) and b_indices[q] == a_indices[p]:
            total += np.float64(a_data[p]) * b_data[q]
            shared += 1
    return total, shared, norm_sq


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


@numba.njit(nogil=True, cache=True)
def collect_candidates(
    X: CSR,
    top_labels: Int32,
    top_scores: Float64,
    matches: NameMatches,
    side: LabelSide,
    allowed: Any,
) -> tuple[Int64, Int32, Float64]:
    """Return row pointers (n + 1,), labels (m,) int32 and features (m, 11) of all candidates.

    First the labels of the search in its order, then others whose name is in the text, with their
    exact scores. Scores of labels without a training row mean nothing and are NaN.
    X: (n, D); top_labels, top_scores: (n, k). allowed: (V,) uint8, labels that names can add; empty
    if all can.
    """
    n, k = top_labels.shape
    size = n * k
    for name in matches.names:
        size += side.name_starts[name + 1] - side.name_starts[name]
    labels, features = np.empty(size, np.int32), np.empty((size, len(FEATURES)))
    indptr = np.zeros(n + 1, np.int64)
    end: Any = np.int64(0)
    for i in range(n):
        begin = end
        for place in range(k):
            _append(features, labels, end, top_labels[i, place])
            if side.counts[labels[end]] > 0:
                features[end, SCORE], features[end, RANK] = top_scores[i, place], place + 1
            end += 1
        for m in range(matches.indptr[i], matches.indptr[i + 1]):
            name = matches.names[m]
            first, last = side.name_starts[name], side.name_starts[name + 1]
            for p in range(first, last):
                label = side.name_labels[p]
                if len(allowed) and not allowed[label]:
                    continue
                where = matches.first[m], matches.length[m]
                end = _add_match(features, labels, begin, end, label, *where, last - first)
        n_words = max(1, matches.rows[i + 1] - matches.rows[i])
        _complete(X, i, labels, features, begin, end, n_words, top_scores, side)
        indptr[i + 1] = end
    return indptr, labels[:end], features[:end]


@inner()
def _complete(
    X: CSR,
    i: int,
    labels: Int32,
    features: Float64,
    begin: int,
    end: int,
    n_words: int,
    top_scores: Float64,
    side: LabelSide,
) -> None:
    """Fill the features that do not depend on where the name is, for the candidates of row i."""
    lo, hi = X.indptr[i], X.indptr[i + 1]
    x_indices, x_data = X.indices[lo:hi], X.data[lo:hi]
    x_sq = 0.0
    for value in x_data:
        x_sq += np.float64(value) * value
    best = top_scores[i, 0] if top_scores.shape[1] else 0.0
    for at in range(begin, end):
        label = labels[at]
        if np.isnan(features[at, SCORE]) and side.counts[label] > 0:
            first, last = side.W.indptr[label], side.W.indptr[label + 1]
            W_row = side.W.indices[first:last], side.W.data[first:last]
            features[at, SCORE] = _dot(x_indices, x_data, *W_row)[0] + side.b[label]
        features[at, GAP] = features[at, SCORE] - best
        features[at, FREQUENCY] = np.log1p(np.float64(side.counts[label]))
        features[at, COVERED] /= n_words
        first, last = side.texts.indptr[label], side.texts.indptr[label + 1]
        text = side.texts.indices[first:last], side.texts.data[first:last]
        dot, shared, norm_sq = _dot(*text, x_indices, x_data)
        if shared:
            features[at, SIMILARITY] = dot / np.sqrt(norm_sq * x_sq)
            features[at, SHARED] = shared / (last - first)
