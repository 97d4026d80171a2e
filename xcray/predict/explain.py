"""Explanations: the contribution of each feature to the score of a label."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xcray.index.scorer import Contributions
from xcray.model.model import Model


class Contribution(NamedTuple):
    """The contribution of one feature to a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class Explanation(NamedTuple):
    """The parts of a label's score: score = bias + contributions + rest, up to rounding.

    label, name: the label. contributions: largest magnitude first. rest: sum of the n_rest
    contributions that are not listed. rank: rank of the label among all labels, from 1. gap_to_top:
    best score - score, 0 for the best label. gap_to_kth: k-th best score - score; a positive value
    is what is missing to be among the k best ("why not this label").
    """

    label: int
    name: str
    score: float
    bias: float
    contributions: tuple[Contribution, ...]
    rest: float
    n_rest: int
    rank: int
    gap_to_top: float
    gap_to_kth: float
    k: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {**self._asdict(), "contributions": [part._asdict() for part in self.contributions]}


def list_contributions(
    model: Model, summands: Contributions, text: str | None = None
) -> list[Contribution]:
    """Return the summands of a score with the names of their features.

    Largest magnitude first, equal magnitudes by feature number. text: of the row; stems are then
    named by its words as they are written.
    """
    features, x, weights, _ = summands
    order = np.argsort(-np.abs(x * weights), kind="stable")
    names = model.feature_names.take(features[order]).to_pylist()
    if text is not None and model.text is not None and model.text.stemmer is not None:
        written = model.text.written(text)
        names = [
            written.get(j, name) for j, name in zip(features[order].tolist(), names, strict=True)
        ]
    numbers = (values[order].tolist() for values in (x, weights, x * weights))
    return [Contribution(*part) for part in zip(names, *numbers, strict=True)]
