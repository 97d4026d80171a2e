"""Feedback."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from xcray.api.model_replies import FeedbackView
from xcray.service.schemas.base import MAX_LABEL_CHARS, Strict, View
from xcray.service.schemas.predict import Instance

JudgedLabels = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARS)]], Field(max_length=1000)
]


class FeedbackRequest(Strict):
    """An instance as it was asked, its right labels, and labels that are wrong.

    right: a new row of the next data set gets exactly these labels. Names that the model does not
    have become new labels.
    """

    id: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        # not dots alone, which clients remove from a path
        pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f.][^\x00-\x1f\x7f]*$",
        description="Unique per model, not dots alone; of a document of the data set: its id, "
        "whose labels are then corrected. By default the server makes one.",
        examples=["doc-17"],
    )
    instance: Instance
    right: JudgedLabels = Field(default_factory=list)
    wrong: JudgedLabels = Field(default_factory=list)


class FeedbackPage(View):
    """A page of feedback, newest first."""

    feedback: list[FeedbackView]
    next_page_token: str | None
