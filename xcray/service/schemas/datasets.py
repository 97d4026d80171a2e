"""Uploads and data sets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from xcray.service.schemas.base import Name, Strict, View


class DatasetRequest(Strict):
    """A data set that needs no body of its own: built in, generated, from uploads, or from a folder the operator allows."""

    name: Name
    format: Literal[
        "svmlight", "xc", "jsonl", "csv", "tsv", "parquet", "pydocs", "synthetic", "dataset"
    ]
    options: dict[str, Any] = Field(default_factory=dict)
    uploads: dict[Literal["train", "test"], str] | None = Field(
        None, description="Ids of POST /v1/uploads."
    )
    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A file (a folder: format=dataset) of the server.",
    )
    uri: str | None = Field(
        None,
        min_length=1,
        max_length=2048,
        description="Where the server fetches the file, if it may.",
    )
    sha256: str | None = Field(None, max_length=64, description="With `uri`: what its SHA-256 is.")


class UploadView(View):
    """A body that arrived whole."""

    id: str
    bytes: int
    sha256: str


class DatasetView(View):
    """A data set. `stats` has its sizes when READY; when FAILED, `problem` says why and `errors` where (the first 20)."""

    id: str
    name: str
    status: Literal["BUILDING", "READY", "FAILED"]
    created: str
    stats: dict[str, Any]


class DatasetPage(View):
    """Newest first."""

    datasets: list[DatasetView]
    next_page_token: str | None
