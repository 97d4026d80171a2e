"""Predictions and their reasons."""

from __future__ import annotations

from pydantic import Field

from xcray.service.schemas.base import (
    LABEL_LIMIT,
    MOST_MILLISECONDS,
    TEXT_LIMIT,
    Indices,
    Labels,
    Strict,
    Values,
    View,
)


class Instance(Strict):
    """One thing to classify: `text`; or `indices` and `values` of a sparse row (any order, no index twice); or `values` alone,
    a dense row as long as the model has features."""

    text: str | None = Field(
        None, max_length=TEXT_LIMIT, examples=["read rows of a csv file into dictionaries"]
    )
    indices: Indices | None = None
    values: Values | None = None


class PredictRequest(Strict):
    """Which instances, how many labels for each (clipped to the number of labels), among which labels, and what to tell of them."""

    instances: list[Instance] = Field(min_length=1, fail_fast=True)
    top_k: int = Field(5, ge=1)
    allow: Labels | None = Field(
        None,
        description="Answer only these: names of labels, and set:NAME for the labels of a set.",
    )
    deny: Labels | None = Field(None, description="Never answer these, named in the same way.")
    deadline_ms: float | None = Field(
        None,
        gt=0,
        le=MOST_MILLISECONDS,
        description="Time to answer: then the best found so far; see `certificate`.",
    )
    certificate: bool = Field(
        False, description="Tell for each instance whether the answer is proven, and what it took."
    )
    probabilities: bool = Field(
        False,
        description="Tell the probability of each label; the model must be calibrated, or softmax.",
    )


class ExplainRequest(Strict):
    """One instance; the label to explain (by name; the best one when left out); how many features to show."""

    instance: Instance
    label: str | None = Field(None, max_length=LABEL_LIMIT)
    top: int = Field(10, ge=1, le=1000)


class Answerer(View):
    """The version that answered: every part of a reply comes from this one."""

    name: str
    version: int
    sha256: str


class CertificateView(View):
    """The proof of an answer: `exact` when no label allowed has a larger score than those told. `labels_scored`: how many in full;
    `postings_read`: weights looked at; `bound_gap`: the last score told less the most that any other label could have, below 0
    only when not exact, null when there is no other label."""

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class PredictionView(View):
    """The best labels of an instance, best first; equal scores by lower label number. Scores are margins, not probabilities."""

    labels: list[str]
    scores: list[float]
    probabilities: list[float] | None = Field(None, description="There when asked for.")
    certificate: CertificateView | None = Field(None, description="There when asked for.")


class PredictReply(View):
    """One prediction for each instance, in order. The search is exact, unless a deadline ended it and the certificate says so."""

    model: Answerer
    predictions: list[PredictionView]


class Contribution(View):
    """The part of one feature in a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class ExplainReply(View):
    """Why a label has its score: score = bias + contributions + rest (of the n_rest features not listed).

    rank: its place among all labels, from 1; gap_to_top, gap_to_kth: what it lacks to be the best, or the k-th best (k=5).
    """

    model: Answerer
    label: str
    score: float
    bias: float
    contributions: list[Contribution]
    rest: float
    n_rest: int
    rank: int
    gap_to_top: float
    gap_to_kth: float
