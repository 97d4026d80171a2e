"""Search results: the best labels, and a certificate that no other labels are better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64, Int32, Int64, TopK, frozen

Bools = NDArray[np.bool_]
NOT_COMPUTED = frozen(np.empty(0), np.float64)


class SearchResult(NamedTuple):
    """The best labels of each row with their certificate.

    labels: (n, k) int32, scores: (n, k) float64, best first, equal scores by lower label number.
    exact: (n,) bool, whether these are proven to be the k best of all allowed labels.
    labels_scored: (n,) int64, labels whose score was computed in full. postings_read: (n,) int64,
    weights of the index that were read. bound_gap: (n,) float64, the k-th score minus the upper
    bound of all other labels: at least 0 if exact; a negative value shows by how much a label that
    was not scored before the deadline could be better. log_normaliser: (n,) float64, log of the sum
    of exp(score) over all labels of the model, regardless of the filter; empty if not requested.
    origins: (n, k, 4) float64, where the labels of a ranker come from: rank and score in the
    search, first word and number of words of the match of a name, NaN if missing; empty without a
    ranker. A ranked result has log-odds as scores, and the certificate of the search. missing: (n,)
    int64, labels that were not searched because their shard did not answer; empty if none can be.
    """

    labels: Int32
    scores: Float64
    exact: Bools
    labels_scored: Int64
    postings_read: Int64
    bound_gap: Float64
    log_normaliser: Float64 = NOT_COMPUTED
    origins: Float64 = NOT_COMPUTED
    missing: Int64 = frozen(np.empty(0), np.int64)

    @property
    def is_ranked(self) -> bool:
        """Whether a ranker ordered the labels."""
        return bool(self.origins.ndim > 1)

    @property
    def top(self) -> TopK:
        """Return labels and scores without the certificate."""
        return TopK(self.labels, self.scores)


def concatenate_results(parts: Sequence[SearchResult]) -> SearchResult:
    """Return the results of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    return SearchResult(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def best_positions(scores: Float64, k: int) -> Int64:
    """Return the positions of the k largest of the scores (m,): largest first, ties by position.

    Returns all m positions if there are fewer than k. Time: O(m + k log k) without many ties.
    """
    if k >= len(scores) or not k:
        return frozen(np.argsort(-scores, kind="stable")[:k], np.int64)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= least)
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return frozen(candidates[order], np.int64)
