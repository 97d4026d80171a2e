"""Uploads and data sets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from xcray.api.job_replies import DatasetView
from xcray.data.readers.formats import GeneratedFormat, UploadFormat
from xcray.service.schemas.base import (
    ID_PATTERN,
    SHA256_PATTERN,
    HistogramView,
    Name,
    Reference,
    Strict,
    View,
)

UploadId = Annotated[str, Field(json_schema_extra={"pattern": ID_PATTERN})]


class DatasetRequest(Strict):
    """A data set from another source than the request body.

    Sources: built in, generated, uploads, a URI, or a server path that the operator allows.
    """

    name: Name
    format: Literal[UploadFormat, GeneratedFormat, "dataset", "feedback"]
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the format. If the format does not have one, the error lists the "
        "formats that have it.",
    )
    uploads: dict[Literal["train", "test", "labels", "remove", "relabel"], UploadId] | None = Field(
        None,
        description="Ids from POST /v1/uploads. `labels`: a vocabulary with the names of the "
        "labels, JSON lines with `id` and `name`, or lines of an id, a tab and a name. With "
        "`base`: `train` has rows to add, `remove` and `relabel` rows as for `xcray data delta`.",
    )
    base: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Id or name of a data set whose training rows are changed by the uploads.",
    )
    model: Reference | None = Field(
        None,
        description="With format `feedback`: the model (name, name@alias, name:3) whose feedback "
        "changes `base`, by default the data set of this version.",
    )
    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A file on the server (a folder for format=dataset).",
    )
    uri: str | None = Field(
        None,
        min_length=1,
        max_length=2048,
        description="URI from which the server downloads the file, if allowed.",
    )
    sha256: str | None = Field(
        None,
        max_length=64,
        description="With `uri`: SHA-256 of the file.",
        json_schema_extra={"pattern": SHA256_PATTERN},
    )


class UploadView(View):
    """A complete upload."""

    id: str
    bytes: int
    sha256: str


class DatasetPage(View):
    """A page of data sets, newest first."""

    datasets: list[DatasetView]
    next_page_token: str | None


class ExampleFeature(View):
    """A feature of a row, and its value."""

    feature: str
    value: float


class ExampleRow(View):
    """A row: `labels` are the first of `n_labels`, `features` the largest of `n_features`.

    text: its beginning; null if the data set was not built from texts.
    """

    row: int
    text: str | None
    n_labels: int
    labels: list[str]
    n_features: int
    features: list[ExampleFeature]


class PartHistograms(View):
    """The rows of a part. The histograms are those of `sampled_rows` rows, evenly spaced."""

    n_rows: int
    sampled_rows: int
    labels_per_row: HistogramView
    features_per_row: HistogramView
    examples: list[ExampleRow]


class DatasetHistogramsView(View):
    """Histograms and example rows of a data set.

    rows_per_label: training rows of each label. parts: train, test.
    """

    rows_per_label: HistogramView
    parts: dict[str, PartHistograms]
