"""Models, aliases and label sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag

from xcray.api.model_replies import (
    Answerer,
    LabelSummaryView,
    ModelView,
    SetSummary,
    ShareView,
    VersionView,
)
from xcray.errors import ParameterError
from xcray.model.traffic_split import TrafficSplit
from xcray.service.schemas.base import WHOLE, HistogramView, Reference, Strict, View

Version = Annotated[int, Field(ge=1, le=2**31), WHOLE]


class ShareRequest(Strict):
    """A version and its share of the requests."""

    version: Version
    weight: float = Field(gt=0, le=1)


class ShadowRequest(Strict):
    """A shadow version, which gets copies of a share of the requests.

    Its answers are not returned to callers, only compared.
    """

    version: Version
    share: float = Field(1.0, gt=0, le=1)

    @property
    def pair(self) -> tuple[int, float]:
        """Return version and share."""
        return self.version, self.share


def _shadow_kind(shadow: Any) -> str:
    """Return in which of the two forms a shadow is given."""
    return "version" if isinstance(shadow, int | float) else "shadow"


class AliasRequest(Strict):
    """The new target of an alias.

    One version, or several versions with weights that sum to 1; optionally a shadow.
    """

    version: Version | None = Field(
        None, description="The version that answers. Either this or split."
    )
    split: list[ShareRequest] | None = Field(
        None, min_length=1, max_length=8, description="The versions that answer, by weight."
    )
    shadow: (
        Annotated[
            Annotated[Version, Tag("version")] | Annotated[ShadowRequest, Tag("shadow")],
            Discriminator(_shadow_kind),
        ]
        | None
    ) = Field(
        None, description="A version that gets copies of requests; its answers are only compared."
    )

    def to_split(self) -> TrafficSplit:
        """Return the requested target. Raises ParameterError."""
        if (self.version is None) == (self.split is None):
            raise ParameterError(
                "set either version or split, the target of the alias", code="SPLIT"
            )
        split = [(share.version, share.weight) for share in self.split or ()]
        given = self.shadow
        shadow = None if given is None else (given, 1.0) if isinstance(given, int) else given.pair
        return TrafficSplit.from_weights(split or [(self.version or 0, 1.0)], shadow)


class SetRequest(Strict):
    """The new labels of a set, by name. A version ignores those that it does not have."""

    labels: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field(
        min_length=1, max_length=1_000_000, fail_fast=True
    )


class PairView(View):
    """A shadow compared with a version that answered, over all requests and processes.

    top1_agreement: share of rows with the same best label. overlap: mean share of labels that both
    answers have. answer_ms: from the start of a request to its answer. shadow_ms: computing the
    copy. Values are null while there is no data.
    """

    answered: int
    shadow: int
    requests: int
    rows: int
    top1_agreement: float | None
    overlap: float | None
    answer_ms: float | None
    shadow_ms: float | None
    failed: int
    dropped: int

    @classmethod
    def of(cls, answered: int, shadow: int, sums: Mapping[str, float]) -> Self:
        """Return the view of the sums of `shadow_statistics`."""

        def mean(name: str, by: str, times: float = 1.0) -> float | None:
            return times * sums[name] / sums[by] if sums[by] else None

        return cls(
            answered=answered,
            shadow=shadow,
            top1_agreement=mean("top1", "rows"),
            overlap=mean("overlap", "rows"),
            answer_ms=mean("answer_seconds", "requests", 1e3),
            shadow_ms=mean("shadow_seconds", "requests", 1e3),
            **{name: int(sums[name]) for name in ("requests", "rows", "failed", "dropped")},
        )


class ShadowView(View):
    """The current shadow of an alias, and statistics of it and of earlier shadows, latest first."""

    alias: str
    shadow: ShareView | None
    pairs: list[PairView]


class LoadView(View):
    """The version that was loaded; its reference is pinned."""

    reference: str
    name: str
    version: int


class ModelPage(View):
    """A page of models, by name. total: the number of models that match, on all pages."""

    models: list[ModelView]
    total: int
    next_page_token: str | None


class GapsView(HistogramView):
    """Duality gaps of the labels as shares of their null objectives, and the requested `eps`."""

    eps: float | None


class ReportView(View):
    """The report of a version's training; null where the version does not record them.

    by_frequency: for ten groups of labels, rarest first, with equally many "labels" or "positives":
    their training rows (least, most), their part of P@k, recall@k and precision@k. calibration: by
    k, the "ece" and the "groups" (rows, mean predicted probability, observed share), also for the
    sigmoid of the score ("_sigmoid"). label_thresholds: how they were fitted, and the measures of
    their decisions. pictures: those that exist, for `/pictures/{picture}`.
    """

    params: dict[str, Any]
    training: dict[str, Any]
    by_frequency: dict[str, list[dict[str, Any]]] | None
    calibration: dict[str, dict[str, Any]] | None
    label_thresholds: dict[str, Any] | None
    gaps: GapsView | None
    pictures: list[str]


class FirstLabels(View):
    """A number of labels, and the first names."""

    count: int
    first: list[str]


class DiffView(View):
    """The differences from the first to the second of `versions`.

    params: parameters that differ, each with both values. identical: number of labels whose bias
    and weights have the same bits; changed: other labels of both versions; same_content: whether
    the versions have the same SHA-256.
    """

    versions: list[VersionView]
    params: dict[str, list[Any]]
    same_content: bool
    identical: int
    added: FirstLabels
    removed: FirstLabels
    changed: FirstLabels


class ComparisonRequest(Strict):
    """Two to five models, by reference, and the id or name of a READY data set."""

    models: list[Reference] = Field(
        min_length=2,
        max_length=5,
        description="name, name:3 or name@alias. The differences are to the first.",
    )
    dataset: str = Field(min_length=1, max_length=64)
    gate: str | None = Field(
        None,
        max_length=1000,
        description="Conditions, separated by commas, for all after the first: a measure and the "
        "least difference in points.",
        examples=["P@1 >= -0.2, PSP@5 >= -0.5"],
    )


class ComparisonView(View):
    """Models on the same rows of a data set.

    part: test or train. models: the "model", "solver", "params" that are not the defaults,
    "seconds" and "core_seconds" of its training, "ms_per_row"; "measures" with their "intervals"
    (standard error, low, high: 95 %, by `bootstrap`), "by_frequency" of the labels, and against the
    first model "differences" with paired intervals, "labels_gained" and "labels_lost", and the
    conditions of the "gate" with "passed" of each and of all.
    """

    dataset: str
    part: str
    rows: int
    rows_without_labels: int
    labels: int
    bootstrap: dict[str, Any]
    warnings: list[dict[str, str]]
    models: list[dict[str, Any]]


class SetPage(View):
    """All label sets of a model, by name."""

    sets: list[SetSummary]


class LabelPage(View):
    """A page of the labels of a version, by number."""

    model: Answerer
    labels: list[LabelSummaryView]
    next_page_token: str | None
