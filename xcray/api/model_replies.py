"""Replies of the REST API about models and predictions.

The service makes these dictionaries, and the client returns them. The OpenAPI description and the
checks of the service are made from them. Times are UTC in ISO 8601.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

# pydantic reads the TypedDict of the standard library from Python 3.12 on
from typing_extensions import TypedDict


class Answerer(TypedDict):
    """The version that answered; all parts of a reply come from it."""

    name: str
    version: int
    sha256: str


class CertificateView(TypedDict):
    """The certificate of a prediction.

    exact: no other allowed label has a larger score. labels_scored: labels whose score was computed
    in full. postings_read: index weights that were read. bound_gap: the lowest returned score minus
    the upper bound of all other labels; below 0 only if not exact, null if there is no other label.
    """

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class OriginView(TypedDict):
    """Where a ranked label comes from.

    rank, score: in the exact search; null if the search did not retrieve the label, or if it has no
    training rows. first_word: position of the first match of its name in the words of the text,
    from 0; words: length of the longest match; null without a match.
    """

    rank: int | None
    score: float | None
    first_word: int | None
    words: int | None


class PredictionView(TypedDict):
    """The best labels of an instance, best first; equal scores by lower label number.

    Scores are margins, not probabilities. probabilities and certificate are set if requested,
    names if the model has label texts, origins if a ranker ordered the labels: scores are then the
    logarithms of odds.
    """

    labels: list[str]
    scores: list[float]
    names: NotRequired[list[str]]
    origins: NotRequired[list[OriginView]]
    probabilities: NotRequired[list[float]]
    certificate: NotRequired[CertificateView]


class PredictWarning(TypedDict):
    """A warning about instances that the model can hardly answer.

    EMPTY_ROWS: instances without a feature, for example empty texts or texts without a word that
    the model knows; only the bias of the labels answers them. PARTIAL: instances for which a shard
    of the model did not answer. instances: their numbers, from 0.
    """

    code: Literal["EMPTY_ROWS", "PARTIAL"]
    message: str
    instances: list[int]


class PredictReply(TypedDict):
    """One prediction per instance, in order.

    The search is exact unless a deadline ended it; the certificate shows which. warnings: if there
    are any.
    """

    model: Answerer
    predictions: list[PredictionView]
    warnings: NotRequired[list[PredictWarning]]


class ContributionView(TypedDict):
    """The contribution of one feature to a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class GroupContributionView(TypedDict):
    """The contribution of a group of similar labels to a score.

    labels: its first labels; n_labels: number of all. contribution: of all features and its bias;
    contributions: of the features with the largest ones.
    """

    labels: list[str]
    n_labels: int
    contribution: float
    contributions: list[ContributionView]


class RankingView(TypedDict):
    """What a ranker makes of a label.

    place: among the candidates of the text, from 1. score: logarithm of the odds. features: what
    its trees read, null if missing.
    """

    place: int
    score: float
    probability: float
    features: dict[str, float | None]


class ExplainReply(TypedDict):
    """The parts of a label's score: score = bias + contributions + rest + groups.

    name: of its label texts. ranking: if the model has a ranker and the label is a candidate of the
    text. A label without training rows has no contributions, and rank 0.
    rest: the sum of the n_rest contributions that are not listed. rank: position of the label among
    all labels, from 1. gap_to_top, gap_to_kth: best score minus this score, and k-th best score
    minus this score (k=5). groups: of a model with groups of similar labels, the parts of those
    that the label is in, from coarse to fine; else empty.
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
    groups: list[GroupContributionView]
    name: NotRequired[str]
    ranking: NotRequired[RankingView]


class ShareView(TypedDict):
    """A version and its share of the requests, or of the copies for a shadow."""

    version: int
    weight: float


class RouteView(TypedDict):
    """The route of an alias with a traffic split or a shadow.

    Equal keys (X-Routing-Key, else the id of the request) are answered by the same version.
    """

    split: list[ShareView]
    shadow: NotRequired[ShareView | None]


class StateView(TypedDict):
    """A version in the process that answers this request.

    state: LOADED, AVAILABLE (the first request loads it) or CORRUPT, with the reason.
    """

    version: int
    state: str
    reason: str | None


class VersionView(TypedDict):
    """One version of a model.

    measures: fractions, on `held_out` rows of the data set `dataset_name`; null if unknown.
    calibrated: whether it has probabilities: by calibration curves, from softmax, or as scores.
    reading: how the files of its training data were read: first_index of svmlight, text_fields,
    label_field, label_separator and delimiter, if they are not the defaults.
    """

    name: str
    version: int
    aliases: list[str]
    sha256: str
    created: str
    solver: str
    n_labels: int
    n_features: int
    nnz: int
    n_bytes: int
    measures: dict[str, Any]
    dataset_hash: str
    dataset_name: str | None
    held_out: int | None
    calibrated: bool
    reading: dict[str, Any]


class ModelView(TypedDict):
    """A model with its versions, their states, and its aliases.

    aliases: the version with the largest share. splits: only aliases with several versions or a
    shadow. latest: null while its manifest can't be read.
    """

    name: str
    versions: list[int]
    states: list[StateView]
    aliases: dict[str, int]
    splits: dict[str, RouteView]
    latest: VersionView | None


class SetSummary(TypedDict):
    """A label set: its size, and when it was last changed (UTC)."""

    name: str
    n_labels: int
    changed: str


class SetView(SetSummary):
    """A label set with its labels.

    `unknown` are the labels that a version does not have (default: the latest version).
    """

    labels: list[str]
    version: int
    unknown: list[str]


class LabelSummaryView(TypedDict):
    """A label of a model.

    positives: training rows. gap: duality gap as a share of the null objective. Both are null if
    the model does not record them. weights: number of stored weights.
    """

    number: int
    label: str
    positives: int | None
    gap: float | None
    weights: int


class FeatureView(TypedDict):
    """A feature and its weight for a label."""

    feature: str
    weight: float


class SimilarView(TypedDict):
    """A label, and the cosine of its weights and those of another label."""

    label: str
    cosine: float


class GroupView(TypedDict):
    """A group of similar labels: number of labels, and the names of the first."""

    n_labels: int
    labels: list[str]


class FeedbackView(TypedDict):
    """What a caller said of an instance. model, version: that it was sent to."""

    id: str
    model: str
    version: int
    created: str
    instance: dict[str, Any]
    right: list[str]
    wrong: list[str]


class NewFeedbackView(FeedbackView):
    """Feedback that was stored. new_labels: right labels that the version does not have."""

    new_labels: list[str]


class LabelView(LabelSummaryView):
    """A label with its bias, its largest weights by magnitude, and the most similar labels.

    groups: of similar labels that share evidence, from coarse to fine; empty without groups.
    """

    model: Answerer
    bias: float
    features: list[FeatureView]
    similar: list[SimilarView]
    groups: list[GroupView]
