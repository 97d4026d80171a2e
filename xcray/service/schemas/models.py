"""Models, aliases and sets of labels."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from xcray.service.schemas.base import Strict, View

Version = Annotated[int, Field(ge=1, le=2**31)]


class ShareRequest(Strict):
    """A version, and which part of the requests it answers."""

    version: Version
    weight: float = Field(gt=0, le=1)


class ShadowRequest(Strict):
    """A version that gets copies of a share of the requests; nobody hears what it says, only figures are kept."""

    version: Version
    share: float = Field(1.0, gt=0, le=1)


def _kind(shadow: Any) -> str:
    """Which of the two ways a shadow is given in."""
    return "version" if isinstance(shadow, int) else "shadow"


class AliasRequest(Strict):
    """Where an alias leads from now on: to one version, or to several by weights that sum to 1; perhaps with a shadow."""

    version: Version | None = Field(None, description="The version that answers; or split.")
    split: list[ShareRequest] | None = Field(
        None, min_length=1, max_length=8, description="The versions that answer, by weight."
    )
    shadow: (
        Annotated[
            Annotated[Version, Tag("version")] | Annotated[ShadowRequest, Tag("shadow")],
            Discriminator(_kind),
        ]
        | None
    ) = Field(None, description="Another version that answers along, unheard.")


class SetRequest(Strict):
    """The labels of a set from now on, by name; those that a version lacks are passed over by it."""

    labels: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field(
        min_length=1, max_length=1_000_000, fail_fast=True
    )


class ShareView(View):
    """A version, and which part of the requests it answers, or gets copies of."""

    version: int
    weight: float


class RouteView(View):
    """Where an alias leads that splits requests or has a shadow. Equal keys (X-Routing-Key, else the request's id) are answered by
    the same version."""

    split: list[ShareView]
    shadow: ShareView | None = None


class PairView(View):
    """A shadow compared with a version that answered, over all requests and processes; null while there was none.

    top1_agreement: share of rows whose best label is the same; overlap: mean share of labels that both answers have. answer_ms:
    from a request's beginning to its answer; shadow_ms: computing the copy.
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


class ShadowView(View):
    """The shadow of an alias now, and what is known of it and of earlier ones, latest first."""

    alias: str
    shadow: ShareView | None
    pairs: list[PairView]


class LoadView(View):
    """What was loaded, and is held: the version that the reference means now."""

    reference: str
    name: str
    version: int


class StateView(View):
    """A version in the process that answers: LOADED, AVAILABLE (the first request loads it) or CORRUPT, with the reason."""

    version: int
    state: str
    reason: str | None = None


class VersionView(View):
    """One version of a model."""

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
    calibrated: bool = Field(
        description="Whether it tells probabilities: by curves, or as softmax."
    )


class ModelView(View):
    """A model: its versions and their states, and where its aliases lead.

    aliases: the version that answers most. splits: only of aliases that lead to several, or have a shadow. latest: null while its
    manifest can't be read.
    """

    name: str
    versions: list[int]
    states: list[StateView]
    aliases: dict[str, int]
    splits: dict[str, RouteView]
    latest: VersionView | None


class ModelPage(View):
    """All models, by name."""

    models: list[ModelView]


class SetSummary(View):
    """A set of labels: how many, and when it was changed (UTC)."""

    name: str
    n_labels: int
    changed: str


class SetView(SetSummary):
    """A set with the names of its labels; `unknown` are those that a version lacks (the latest when none is named)."""

    labels: list[str]
    version: int
    unknown: list[str]


class SetPage(View):
    """All sets of a model, by name."""

    sets: list[SetSummary]
