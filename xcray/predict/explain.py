"""Explanations: the contribution of each feature to the score of a label."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR
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


def contributions(model: Model, x: CSR, label: int) -> list[Contribution]:
    """Return the contributions of the features of a row x (1, D) to a label's score.

    Largest magnitude first, equal magnitudes by feature number.
    """
    (features, values), (weighted, weights) = x.row(0), model.W.row(label)
    shared, at_x, at_w = np.intersect1d(features, weighted, assume_unique=True, return_indices=True)
    xs, ws = values[at_x].astype(np.float64), weights[at_w].astype(np.float64)
    order = np.argsort(-np.abs(xs * ws), kind="stable")
    names = model.feature_names.take(pa.array(shared[order])).to_pylist()
    numbers = (values[order].tolist() for values in (xs, ws, xs * ws))
    return [Contribution(*part) for part in zip(names, *numbers, strict=True)]
