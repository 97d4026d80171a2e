"""What a search answers: the best labels, and the proof that there are no better ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64, Int32, Int64, TopK, frozen

Bools = NDArray[np.bool_]
NOT_ASKED = frozen(np.empty(0), np.float64)


class Answer(NamedTuple):
    """The best labels of each row with their certificate.

    labels: (n, k) int32, scores: (n, k) float64, best first, equal scores by lower label number.
    exact: (n,) bool, whether these are proven to be the k best of all labels allowed. labels_scored: (n,) int64, labels whose
    score was computed in full. postings_read: (n,) int64, weights of the index that were looked at. bound_gap: (n,) float64,
    the k-th score less the most that any other label could have: at least 0 when exact; below 0 it says by how much a
    label that was left out when the time was up could be better. log_normaliser: (n,) float64, log of the sum of exp(score)
    over all labels of the model, whichever were allowed; empty where it was not asked for.
    """

    labels: Int32
    scores: Float64
    exact: Bools
    labels_scored: Int64
    postings_read: Int64
    bound_gap: Float64
    log_normaliser: Float64 = NOT_ASKED

    @property
    def top(self) -> TopK:
        """Labels and scores alone."""
        return TopK(self.labels, self.scores)
