"""Thresholds of answers: labels below them are left out after the exact search."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from xcray.arrays import Float32, Float64, Int32, TopK
from xcray.errors import ParameterError
from xcray.index.search_result import Bools, SearchResult
from xcray.model.model import Model


class Thresholds(NamedTuple):
    """The least score and the least probability of a label in an answer; None: any.

    by_label: (K,), the least score of each label, or None.
    """

    min_score: float | None = None
    min_probability: float | None = None
    by_label: Float32 | None = None

    def keep(self, labels: Int32, scores: Float64, probabilities: Float64 | None) -> Bools | None:
        """Return which labels (n, k) of a result reach all; None if there is no threshold.

        labels: (n, k), their numbers. probabilities: (n, k), of the same labels. Raises
        ParameterError if they are needed and missing.
        """
        reached: list[Bools] = []
        if self.min_score is not None:
            reached.append(scores >= self.min_score)
        if self.by_label is not None:
            reached.append(scores >= self.by_label[labels])
        if self.min_probability is not None:
            if probabilities is None:
                raise ParameterError(
                    "min_probability needs the probabilities of the labels: give those of "
                    "predictor.probabilities(result)"
                )
            reached.append(probabilities >= self.min_probability)
        return reduce(and_, reached) if reached else None


def thresholds_of(
    model: Model,
    result: TopK | SearchResult,
    min_score: float | None = None,
    min_probability: float | None = None,
    label_thresholds: bool = False,
) -> Thresholds:
    """Return the thresholds of a result of this model.

    label_thresholds: whether those of the labels are used. Raises ParameterError NO_THRESHOLDS,
    with a fix, if the model has none for the scores of this result.
    """
    if not label_thresholds:
        return Thresholds(min_score, min_probability)
    require_label_thresholds(model.manifest)
    is_ranked = isinstance(result, SearchResult) and result.is_ranked
    if is_ranked != (model.ranker is not None):
        raise ParameterError(
            "the thresholds of this model are for scores of its ranker, which needs texts, not "
            "rows of features",
            code="NO_THRESHOLDS",
        )
    return Thresholds(min_score, min_probability, model.label_thresholds)


def require_label_thresholds(manifest: Mapping[str, Any]) -> None:
    """Raise ParameterError NO_THRESHOLDS, with a fix, if a model has no thresholds per label."""
    if "label_thresholds" not in manifest:
        raise ParameterError(
            "this model has no thresholds per label: run `xcray thresholds MODEL DATASET -o NEW`; "
            "held-out rows are needed",
            code="NO_THRESHOLDS",
        )
