"""Explanations: the contribution of each feature to the score of a label."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.index.label_groups import GroupSummands
from xcray.index.scorer import Contributions
from xcray.model.model import Model

GROUP_NAMES: Final = 5  # labels that are listed of a group


class Contribution(NamedTuple):
    """The contribution of one feature to a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class GroupContribution(NamedTuple):
    """The contribution of a group of similar labels to a score.

    labels: names of its first labels; n_labels: number of all. contribution: of its features and
    its bias; contributions: of features, largest magnitude first.
    """

    labels: tuple[str, ...]
    n_labels: int
    contribution: float
    contributions: tuple[Contribution, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        parts = [part._asdict() for part in self.contributions]
        return {**self._asdict(), "labels": list(self.labels), "contributions": parts}


class Ranking(NamedTuple):
    """What a ranker makes of a label.

    place: among the candidates of the text, from 1. score: logarithm of the odds; probability.
    features: what its trees read, by name; None if missing.
    """

    place: int
    score: float
    probability: float
    features: dict[str, float | None]


class Explanation(NamedTuple):
    """The parts of a label's score: score = bias + contributions + rest + groups, up to rounding.

    label, name: the label. contributions: largest magnitude first. rest: sum of the n_rest
    contributions that are not listed. rank: rank of the label among all labels, from 1. gap_to_top:
    best score - score, 0 for the best label. gap_to_kth: k-th best score - score; a positive value
    is what is missing to be among the k best ("why not this label"). groups: of models with groups
    of similar labels, the parts of those that the label is in, from coarse to fine. ranking: if the
    model has a ranker and the label is a candidate of the text. A label without training rows has
    rank 0 and no contributions.
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
    groups: tuple[GroupContribution, ...] = ()
    ranking: Ranking | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        parts = [part._asdict() for part in self.contributions]
        groups = [group.as_dict() for group in self.groups]
        out = {**self._asdict(), "contributions": parts, "groups": groups}
        ranking = out.pop("ranking")
        return out if ranking is None else {**out, "ranking": ranking._asdict()}


def only_found_by_name(model: Model, label: int) -> Explanation:
    """Return the explanation of a label without training rows: nothing contributes to a score."""
    return Explanation(label, model.answer_names[label], 0.0, 0.0, (), 0.0, 0, 0, 0.0, 0.0, 0)


def list_groups(
    model: Model, summands: Contributions, top: int, text: str | None = None
) -> tuple[GroupContribution, ...]:
    """Return the parts of a label's groups, each with its `top` largest contributions."""
    groups, parts = model.groups, list[GroupContribution]()
    if groups is None:
        return ()
    for own in summands.groups:
        labels = groups.labels_of(own.group)
        names = model.label_names.take(labels[:GROUP_NAMES]).to_pylist()
        value = own.bias + float(np.dot(own.x, own.weights))
        listed = tuple(list_contributions(model, own, text)[:top])
        parts.append(GroupContribution(tuple(names), len(labels), value, listed))
    return tuple(parts)


def list_contributions(
    model: Model, summands: Contributions | GroupSummands, text: str | None = None
) -> list[Contribution]:
    """Return the summands of a score with the names of their features.

    Largest magnitude first, equal magnitudes by feature number. text: of the row; stems are then
    named by its words as they are written.
    """
    features, x, weights = summands.features, summands.x, summands.weights
    order = np.argsort(-np.abs(x * weights), kind="stable")
    names = model.feature_names.take(features[order]).to_pylist()
    if text is not None and model.text is not None and model.text.stemmer is not None:
        written = model.text.written(text)
        names = [
            written.get(j, name) for j, name in zip(features[order].tolist(), names, strict=True)
        ]
    numbers = (values[order].tolist() for values in (x, weights, x * weights))
    return [Contribution(*part) for part in zip(names, *numbers, strict=True)]
