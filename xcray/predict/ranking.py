"""Ranked answers: candidates of the exact search and of names in the text, ordered by a ranker."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.data.text.vectorizer import AnalysedTexts
from xcray.errors import ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.scorer import Scorer
from xcray.index.search_result import SearchResult, concatenate_results
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.search.label_groups import GroupArrays
from xcray.kernels.search.ranked_candidates import (
    FEATURES,
    LabelSide,
    SearchedTexts,
    collect_candidates,
    rank_rows,
)
from xcray.kernels.search.trees import sum_trees
from xcray.kernels.sparse import row_range
from xcray.kernels.text import as_plain_tuple
from xcray.model.directory import LinearPart
from xcray.model.ranker import LabelIndex, Ranker
from xcray.predict.explain import Ranking

# labels of the search that are ranked: chosen on training rows of GermEval, where 60 are not better
CANDIDATES: Final = 40
BATCH_ROWS: Final = 2_000  # rows whose candidates are in memory at once: 10 MB
NO_GROUPS: Final = GroupArrays(
    csr([0], [], [], 0),
    frozen([], np.float32),
    frozen(np.empty((0, 1)), np.int32),
    frozen([], np.int32),
    frozen([], np.int64),
    frozen([], np.int64),
    0.0,
)


class Candidates(NamedTuple):
    """Candidates of n rows. indptr: (n + 1,); labels: (m,) int32; features: (m, f) float64."""

    indptr: Int64
    labels: Int32
    features: Float64


class CandidateFinder:
    """Finds the candidates of texts. Thread-safe."""

    def __init__(self, linear: LinearPart, labels: LabelIndex) -> None:
        """Initialise. labels: its first labels are those of the weights."""
        self._row_norm = linear.search.row_norm
        self._n_labels = len(labels.counts)
        groups = NO_GROUPS if linear.search.groups is None else linear.search.groups.arrays
        self.side = as_plain_tuple(
            LabelSide(linear.W, linear.b, labels.counts, labels.texts, labels.names, groups)
        )

    def rows(
        self, texts: AnalysedTexts, result: SearchResult, label_filter: LabelFilter | None = None
    ) -> Any:
        """Return `SearchedTexts` as a plain tuple. result: of the search of the texts.

        With a filter, names add only labels that it allows; those without a training row are not
        among them. Raises ShapeMismatch unless there is one row per text.
        """
        if texts.X.n_rows != len(result.labels):
            raise ShapeMismatch(
                f"there are {texts.X.n_rows} texts and {len(result.labels)} results"
            )
        allowed = np.zeros(0, np.uint8)
        if label_filter is not None:
            allowed = np.zeros(self._n_labels, np.uint8)
            allowed[: len(label_filter.allowed)] = label_filter.allowed
        labels, scores = frozen(result.labels, np.int32), frozen(result.scores, np.float64)
        allowed.flags.writeable = False  # kernels expect read-only arrays
        # as the search multiplies them with the weights
        X = normalize_rows(texts.X, self._row_norm)
        return as_plain_tuple(SearchedTexts(texts.words, texts.starts, X, labels, scores, allowed))

    def candidates(self, texts: AnalysedTexts, result: SearchResult) -> Candidates:
        """Return the candidates of texts. result: of their search."""
        return Candidates(*collect_candidates(self.rows(texts, result), self.side))


class TextRanker:
    """Answers texts with the best candidates in the order of a ranker. Thread-safe."""

    def __init__(self, ranker: Ranker, linear: LinearPart, scorer: Scorer) -> None:
        """Initialise. scorer: of the weights, for the search."""
        self._ranker = ranker
        self._trees = as_plain_tuple(ranker.table)
        self._finder = CandidateFinder(linear, ranker.labels)
        self._scorer = scorer

    def search(
        self,
        texts: AnalysedTexts,
        k: int,
        *,
        deadline_ms: float | None = None,
        label_filter: LabelFilter | None = None,
    ) -> SearchResult:
        """Return the k best candidates of texts. Raises as `Scorer.top_k`.

        deadline_ms: time limit of all searches in milliseconds, which the ranker exceeds by about a
        millisecond per text.
        """
        parts, began = [], time.perf_counter()
        for start in range(0, max(1, texts.X.n_rows), BATCH_ROWS):
            if deadline_ms is not None and start:
                now = time.perf_counter()
                deadline_ms, began = max(0.0, deadline_ms - 1e3 * (now - began)), now
            batch = text_range(texts, start, start + BATCH_ROWS)
            found = self._scorer.top_k(
                batch.X, max(k, CANDIDATES), deadline_ms=deadline_ms, label_filter=label_filter
            )
            inputs = self._finder.rows(batch, found, label_filter)
            k = min(k, found.labels.shape[1])
            ranked = rank_rows(inputs, self._finder.side, self._trees, self._ranker.baseline, k)
            labels, scores, origins = ranked
            parts.append(found._replace(labels=labels, scores=scores, origins=origins))
        return concatenate_results(parts)

    def explain(self, text: AnalysedTexts, label: int) -> Ranking | None:
        """Return what the ranker makes of a label; None unless it is a candidate of the text."""
        candidates = self._finder.candidates(text, self._scorer.top_k(text.X, CANDIDATES))
        raw = sum_trees(candidates.features, self._ranker.table, self._ranker.baseline)
        places = np.flatnonzero(candidates.labels == label)
        if not len(places):
            return None
        at = int(places[0])
        order = np.argsort(-raw, kind="stable")
        values = [None if np.isnan(each) else float(each) for each in candidates.features[at]]
        return Ranking(
            int(np.flatnonzero(order == at)[0]) + 1,
            float(raw[at]),
            float(1.0 / (1.0 + np.exp(-raw[at]))),
            dict(zip(FEATURES, values, strict=True)),
        )


def text_range(texts: AnalysedTexts, begin: int, end: int) -> AnalysedTexts:
    """Return texts [begin, end), the same object if these are all."""
    if begin == 0 and end >= texts.X.n_rows:
        return texts
    end = min(end, texts.X.n_rows)
    starts = texts.starts[begin : end + 1]
    words = texts.words[starts[0] : starts[-1]]
    return AnalysedTexts(
        row_range(texts.X, begin, end), words, frozen(starts - starts[0], np.int64)
    )


def origin_views(result: SearchResult) -> list[list[dict[str, Any]]]:
    """Return where the labels of a ranked result come from, label by label; JSON.

    rank, score: in the search; null if it did not retrieve the label, or if the label has no
    training rows. first_word: position from 0 of the first match of a name in the words of the
    text, and words: length of the longest match; null without a match.
    """
    return [
        [
            {
                "rank": _whole(rank),
                "score": None if score != score else score,
                "first_word": _whole(first),
                "words": _whole(words),
            }
            for rank, score, first, words in row
        ]
        for row in result.origins.tolist()
    ]


def _whole(value: float) -> int | None:
    """Return a whole number; None for NaN."""
    return None if value != value else int(value)


def widen(Y: Pattern, counts: Any, n_labels: int) -> tuple[Pattern, Any]:
    """Return the label sets of rows, and training rows per label, of all labels in an answer.

    Labels without training rows follow those of the model; no row of a data set has them.
    """
    if counts is not None:
        counts = np.concatenate([counts, np.zeros(n_labels - len(counts), np.int64)])
    return pattern(Y.indptr, Y.indices, n_labels), counts
