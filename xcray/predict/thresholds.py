"""Thresholds of answers: labels below them are left out after the exact search."""

from __future__ import annotations

from typing import NamedTuple

from xcray.arrays import Float64
from xcray.errors import ParameterError
from xcray.index.search_result import Bools


class Thresholds(NamedTuple):
    """The least score and the least probability of a label in an answer; None: any."""

    min_score: float | None = None
    min_probability: float | None = None

    def keep(self, scores: Float64, probabilities: Float64 | None) -> Bools | None:
        """Return which labels (n, k) of a result reach both; None if there is no threshold.

        probabilities: (n, k), of the same labels. Raises ParameterError if they are needed and
        missing.
        """
        kept: Bools | None = None if self.min_score is None else scores >= self.min_score
        if self.min_probability is None:
            return kept
        if probabilities is None:
            raise ParameterError(
                "min_probability needs the probabilities of the labels: give those of "
                "predictor.probabilities(result)"
            )
        likely = probabilities >= self.min_probability
        return likely if kept is None else kept & likely
