"""Models, aliases and sets of labels."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from xcray.service.schemas.base import Strict, View


class AliasRequest(Strict):
    """Where an alias points from now on."""

    version: int = Field(ge=1, le=2**31)


class SetRequest(Strict):
    """The labels of a set from now on, by name; those that a version lacks are passed over by it."""

    labels: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field(min_length=1, max_length=1_000_000, fail_fast=True)


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
    calibrated: bool = Field(description="Whether it tells probabilities: by curves, or as softmax.")


class ModelView(View):
    """A model: its versions, and where its aliases point."""

    name: str
    versions: list[int]
    aliases: dict[str, int]
    latest: VersionView


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
