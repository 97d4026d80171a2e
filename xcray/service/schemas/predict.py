"""Predictions and explanations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from xcray.api.options import ThresholdOptions
from xcray.data.text.fields import MAX_FIELDS
from xcray.service.schemas.base import (
    MAX_LABEL_CHARS,
    MAX_MILLISECONDS,
    MAX_TEXT_CHARS,
    WHOLE,
    Indices,
    Labels,
    Strict,
    Value,
    Values,
)
from xcray.service.schemas.declared import declared_field

FieldText = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
FieldValues = Annotated[
    dict[str, FieldText | Value | Values], Field(min_length=1, max_length=MAX_FIELDS)
]


class Instance(Strict):
    """One instance to classify: `text`, or `fields`, or a sparse row, or a dense row.

    `fields` has the values of the model's text fields by name (`text_fields` of its `reading`);
    missing ones are empty.
    A sparse row has `indices` (any order, no duplicates) and `values`. A dense row has `values`
    only, one per feature of the model.
    """

    text: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, examples=["read rows of a csv file into dictionaries"]
    )
    fields: FieldValues | None = Field(
        None, examples=[{"title": "Reading rows", "abstract": "Of a csv file"}]
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
    min_score: float | None = declared_field(ThresholdOptions, "min_score")
    min_probability: float | None = declared_field(ThresholdOptions, "min_probability")
    label_thresholds: bool = declared_field(ThresholdOptions, "label_thresholds")
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
