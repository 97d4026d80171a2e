"""Predictions and explanations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from xcray.service.schemas.base import (
    MAX_LABEL_CHARS,
    MAX_MILLISECONDS,
    MAX_TEXT_CHARS,
    WHOLE,
    Indices,
    Labels,
    Strict,
    Values,
    View,
)


class Instance(Strict):
    """One instance to classify: `text`, or a sparse row, or a dense row.

    A sparse row has `indices` (any order, no duplicates) and `values`. A dense row has `values`
    only, one per feature of the model.
    """

    text: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, examples=["read rows of a csv file into dictionaries"]
    )
    indices: Indices | None = None
    values: Values | None = None


class PredictRequest(Strict):
    """Instances to classify, and options.

    `top_k` is the number of labels per instance, clipped to the number of labels of the model.
    """

    instances: list[Instance] = Field(min_length=1, fail_fast=True)
    top_k: Annotated[int, Field(ge=1), WHOLE] = 5
    allow: Labels | None = Field(
        None,
        description="Only these labels can be predicted: label names, or set:NAME for the labels "
        "of a set.",
    )
    deny: Labels | None = Field(
        None, description="These labels are never predicted; same syntax as `allow`."
    )
    deadline_ms: float | None = Field(
        None,
        gt=0,
        le=MAX_MILLISECONDS,
        description="Time limit of the search; at the limit, the best labels found so far are "
        "returned, see `certificate`.",
    )
    certificate: bool = Field(
        False,
        description="Return for each instance whether the result is proven exact, and the search "
        "effort.",
    )
    probabilities: bool = Field(
        False,
        description="Return the probability of each label; needs a calibrated model or a softmax "
        "model.",
    )


class ExplainRequest(Strict):
    """One instance to explain, and options.

    label: name of the label to explain (default: the best label). top: number of features to
    return.
    """

    instance: Instance
    label: str | None = Field(None, max_length=MAX_LABEL_CHARS)
    top: Annotated[int, Field(ge=1, le=1000), WHOLE] = 10


class Answerer(View):
    """The version that answered; all parts of a reply come from it."""

    name: str
    version: int
    sha256: str


class CertificateView(View):
    """The certificate of a prediction.

    exact: no other allowed label has a larger score. labels_scored: labels whose score was computed
    in full. postings_read: index weights that were read. bound_gap: the lowest returned score minus
    the upper bound of all other labels; below 0 only if not exact, null if there is no other label.
    """

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class PredictionView(View):
    """The best labels of an instance, best first; equal scores by lower label number.

    Scores are margins, not probabilities.
    """

    labels: list[str]
    scores: list[float]
    probabilities: list[float] | None = Field(None, description="Set if requested.")
    certificate: CertificateView | None = Field(None, description="Set if requested.")


class PredictWarning(View):
    """A warning about instances that the model can hardly answer.

    EMPTY_ROWS: instances without a feature, for example empty texts or texts without a word that
    the model knows; only the bias of the labels answers them. instances: their numbers, from 0.
    """

    code: Literal["EMPTY_ROWS"]
    message: str
    instances: list[int]


class PredictReply(View):
    """One prediction per instance, in order.

    The search is exact unless a deadline ended it; the certificate shows which.
    """

    model: Answerer
    predictions: list[PredictionView]
    warnings: list[PredictWarning] | None = Field(None, description="Set if there are any.")


class ContributionView(View):
    """The contribution of one feature to a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class ExplainReply(View):
    """The parts of a label's score: score = bias + contributions + rest.

    rest: the sum of the n_rest contributions that are not listed. rank: position of the label among
    all labels, from 1. gap_to_top, gap_to_kth: best score minus this score, and k-th best score
    minus this score (k=5).
    """

    model: Answerer
    label: str
    score: float
    bias: float
    contributions: list[ContributionView]
    rest: float
    n_rest: int
    rank: int
    gap_to_top: float
    gap_to_kth: float
